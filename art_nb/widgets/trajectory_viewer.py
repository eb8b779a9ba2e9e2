"""TrajectoryViewer: any trajectory, turn by turn and token by token, with a game's board or a mail client."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from collections.abc import Callable

import traitlets as t

from art_nb.tasks.email_search.mailbox import clean

from .mail_view import mail_lines, mail_view
from .view import BLUE, GREY, HERE, ORANGE, View, calm, figure, module, number, plain, png, record_list, table

Board = list[list[int]]
CHUNK = 8  # trajectories compressed together: the browser unpacks one chunk when one of them is opened


class TrajectoryViewer(View):
    """Pick a step, group and trajectory; sort and filter by reward or kind; read, colour and replay it.

    A trajectory of the email task is shown as a mail client would, and as any other at the press of a button.

    records: trajectory records (see Trajectory.record), e.g. `model.records()`.
    boards: for a game, a function from a turn's text to its board (rows of integers, 0 is empty) or None. It is
        called once for each turn that the policy did not write, here, so that replaying needs no kernel.
    kind: how a trajectory came out, in a word or two (record -> str): a button for each kind, with its count, shows
        those alone.

    Raises: ValueError when there is no record or one lacks a key; TypeError when a kind is no str.
    """

    _esm = (HERE / "mail_view.js").read_text("utf-8") + module("trajectory_viewer")
    _css = View._css + (HERE / "mail_view.css").read_text("utf-8")
    index = t.List().tag(sync=True)  # a row for each trajectory: what the list and the filters need
    bodies = t.Bytes().tag(sync=True)  # the turns, as gzipped JSON in chunks; index[i]["at"] says where
    has_boards = t.Bool(False).tag(sync=True)
    has_mails = t.Bool(False).tag(sync=True)
    kinds = t.List(t.Unicode()).tag(sync=True)  # the most frequent first; empty without `kind`
    has_advantages = t.Bool(False).tag(sync=True)
    advantage_scale = t.Float(1.0).tag(sync=True)

    def __init__(
        self,
        records,
        boards: Callable[[str], Board | None] | None = None,
        kind: Callable[[dict], str] | None = None,
    ) -> None:
        records = record_list(records, ("step", "group", "index", "reward", "turns"))
        index, packed, largest, has_mails = [], bytearray(), 0.0, False
        self._stills = _Stills()
        for first in range(0, len(records), CHUNK):
            chunk = [_body(record, boards) for record in records[first : first + CHUNK]]
            start = len(packed)
            packed += gzip.compress(json.dumps(chunk, separators=(",", ":")).encode(), compresslevel=5, mtime=0)
            for place, (record, body) in enumerate(zip(records[first : first + CHUNK], chunk, strict=True)):
                index.append(_index_row(record, [start, len(packed), place], kind))
                self._stills.see(index[-1], body)
                has_mails |= "mail" in body
                largest = max(largest, _largest_advantage(record))
        has_boards = any("board" in turn for _, body in self._stills.shown.values() for turn in body["turns"])
        kinds = [name for name, _ in Counter(row["kind"] for row in index if kind).most_common()]
        super().__init__(index=index, bodies=bytes(packed), has_boards=has_boards, has_mails=has_mails, kinds=kinds,
                         has_advantages=largest > 0, advantage_scale=min(largest, 2.0) or 1.0)  # fmt: skip

    def summary(self) -> str:
        rewards = [row["reward"] for row in self.index]
        kinds = "; " + ", ".join(f"{count} {name}" for name, count in self._count_kinds()) if self.kinds else ""
        return f"{len(rewards)} trajectories, rewards from {number(min(rewards))} to {number(max(rewards))}{kinds}"

    def _count_kinds(self) -> list[tuple[str, int]]:
        return Counter(row["kind"] for row in self.index).most_common()

    def static_png(self) -> bytes:
        fig = figure(8.6, 3.2)
        grid = fig.add_gridspec(2, 2, width_ratios=[1, 2.6])
        left = fig.add_subplot(grid[:, 0])
        if self.kinds:
            _bars(left, self._count_kinds()[:12])
        else:
            _scatter(left, self.index)
        for place, name in enumerate(("best", "worst")):
            row, body = self._stills.shown[name]
            axes = fig.add_subplot(grid[place, 1])
            calm(axes, f"{name}: reward {number(row['reward'])}, step {row['step']}, group {row['group']}, "
                       f"trajectory {row['index']}, {row['turns']} turns")  # fmt: skip
            _strip(axes, body)
        return png(fig)

    def static_html(self) -> str:
        ranked = sorted(self.index, key=lambda row: -row["reward"])
        some = ranked if len(ranked) <= 20 else ranked[:10] + ranked[-10:]
        rows = [[row["step"], row["group"], row["index"], number(row["reward"]), number(row["advantage"]), row["turns"],
                 *([row["kind"]] if self.kinds else [])] for row in some]  # fmt: skip
        kind = ["kind"] if self.kinds else []
        return table(["step", "group", "trajectory", "reward", "advantage", "turns", *kind], rows)


class _Stills:
    """The best and the worst trajectory seen so far, kept for the picture: "best" and "worst" -> (index row, body)."""

    def __init__(self) -> None:
        self.shown: dict[str, tuple[dict, dict]] = {}

    def see(self, row: dict, body: dict) -> None:
        if "best" not in self.shown or row["reward"] > self.shown["best"][0]["reward"]:
            self.shown["best"] = (row, body)
        if "worst" not in self.shown or row["reward"] < self.shown["worst"][0]["reward"]:
            self.shown["worst"] = (row, body)


def _index_row(record: dict, at: list[int], kind: Callable[[dict], str] | None) -> dict:
    named = kind(record) if kind else None
    if kind and not isinstance(named, str):
        raise TypeError(f"kind(record) returned {type(named).__name__}; expected a str, e.g. 'wrong answer'.")
    return plain({
        "step": record["step"], "split": record.get("split", "train"), "group": record["group"], "index": record["index"],
        "reward": float(record["reward"]), "advantage": record.get("advantage"), "metrics": record.get("metrics") or {},
        "turns": len(record["turns"]), "at": at, "kind": None if named is None else clean(named),
    })  # fmt: skip


def _body(record: dict, boards: Callable[[str], Board | None] | None) -> dict:
    body = {
        "metadata": plain(record.get("metadata") or {}),
        "logs": [str(line) for line in record.get("logs") or []],
        "turns": [_turn(turn, boards) for turn in record["turns"]],
    }
    mail = mail_view(record)
    return body | {"mail": mail} if mail else body


def _turn(turn: dict, boards: Callable[[str], Board | None] | None) -> dict:
    body = {"role": turn["role"], "content": turn.get("content") or "", "trainable": bool(turn.get("trainable"))}
    if turn.get("tool_calls"):
        body["tool_calls"] = turn["tool_calls"]
    if turn.get("tokens"):
        body["tokens"] = turn["tokens"]
        body["logprobs"] = [_short(x) for x in turn["logprobs"]]
    if turn.get("advantages"):
        body["advantages"] = [_short(x) for x in turn["advantages"]]
    if turn.get("reward") is not None:
        body["reward"] = _short(turn["reward"])
    board = boards(body["content"]) if boards and turn["role"] != "assistant" else None
    if board:
        body["board"] = plain(board)
    return body


def _short(x: float) -> float:
    """Four decimals are more than a colour shows; an infinite log-probability becomes a very small one."""
    return round(max(-1e4, min(1e4, float(x))), 4)


def _largest_advantage(record: dict) -> float:
    each = [a for turn in record["turns"] for a in turn.get("advantages") or []]
    return max((abs(a) for a in [*each, record.get("advantage") or 0.0] if math.isfinite(a)), default=0.0)


def _scatter(axes, index: list[dict]) -> None:
    calm(axes, "Reward of each trajectory, by step")
    spread = [row["step"] + 0.5 * (i % 9 / 8 - 0.5) for i, row in enumerate(index)]
    axes.scatter(spread, [row["reward"] for row in index], s=9, alpha=0.5, color=BLUE, linewidths=0)
    axes.locator_params(axis="x", integer=True, nbins=5)


def _bars(axes, kinds: list[tuple[str, int]]) -> None:
    calm(axes, "Trajectories of each kind")
    places = range(len(kinds))
    axes.barh(places, [count for _, count in kinds], color=BLUE, height=0.6)
    axes.set_yticks(places, [name[:24] for name, _ in kinds], parse_math=False)
    axes.grid(False)
    axes.invert_yaxis()
    axes.locator_params(axis="x", integer=True, nbins=4)


def _strip(axes, body: dict) -> None:
    """Draw one trajectory in little room: boards from start to end; else a search of mails, calls, or the last answer."""
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    boards = [turn["board"] for turn in body["turns"] if "board" in turn]
    if not boards:
        text = clean("\n".join(_lines(body)))
        axes.text(0, 0.95, text, fontsize=7, family="monospace", va="top", color=GREY, parse_math=False, in_layout=False)
        return
    count = min(6, len(boards))
    chosen = [round(i * (len(boards) - 1) / max(1, count - 1)) for i in range(count)]
    height, width = len(boards[0]), len(boards[0][0])
    for place, move in enumerate(chosen):
        for r, row in enumerate(boards[move]):
            for c, value in enumerate(row):
                _cell(axes, place * (width + 0.7) + c, r, value)
        axes.text(place * (width + 0.7), height + 0.2, f"move {move}", fontsize=6.5, color=GREY, va="top")
    axes.set(xlim=(-0.2, 6 * (width + 0.7)), ylim=(height + 0.9, -0.2), aspect="equal", anchor="W")


def _lines(body: dict) -> list[str]:
    if "mail" in body:
        return _some([line[:96] for line in mail_lines(body["mail"])])
    if any(turn.get("tool_calls") for turn in body["turns"]):
        return _some([*filter(None, map(_line, body["turns"])), *(log[:96] for log in body["logs"])])
    answers = [turn["content"] for turn in body["turns"] if turn["role"] == "assistant"] or [""]
    text = answers[-1][:420]
    return [text[i : i + 84] for i in range(0, len(text), 84)]


def _line(turn: dict) -> str:
    """A turn of a conversation with tools, in one line: who speaks is told by what stands before it."""
    calls = "; ".join(f"{call['name']} {call['arguments']}" for call in turn.get("tool_calls") or [])
    mark = {"assistant": "  ", "tool": "    -> "}.get(turn["role"], "")
    said = " ".join((calls or turn["content"]).split())
    return "" if turn["role"] == "system" else f"{mark}{said}"[:96]


def _some(lines: list[str]) -> list[str]:
    """As many as there is room for: the first and the last."""
    return lines if len(lines) <= 9 else [*lines[:6], "  ...", *lines[-2:]]


def _cell(axes, x: float, y: float, value: int) -> None:
    level = min(1.0, math.log2(abs(value) + 1) / 11) if value else 0.0
    tint = ORANGE if value < 0 else BLUE
    axes.add_patch(_square(x, y, tint if value else GREY, 0.12 + 0.88 * level**1.5 if value else 0.07))
    if value:
        axes.text(x + 0.46, y + 0.48, str(value), ha="center", va="center", fontsize=5.6 if abs(value) < 1000 else 4.4,
                  color="white" if level > 0.5 else "#1f2328")  # fmt: skip


def _square(x: float, y: float, colour: str, alpha: float):
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 0.92, 0.92, facecolor=colour, alpha=alpha, linewidth=0)
