"""`TrajectoryViewer`: any trajectory, turn by turn and token by token, with a game's boards or a task's own view."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import traitlets as t

from art_nb.environments import clean
from art_nb.trajectories.records import histories

from .view import BLUE, GREY, ORANGE, View, figure, module, number, plain, png, record_list, style_axes, stylesheet, table

Board = list[list[int]]
CHUNK = 8  # trajectories compressed together: the browser decompresses a chunk when one of them is opened


@dataclass(frozen=True)
class TaskPane:
    """A task's own view of a trajectory, shown first; a button switches to the messages. For `TrajectoryViewer.task_pane`.

    name: label of its button.
    data: record -> JSON data with a list "steps", each with "turn" and "result", the indices of its turns; None: no pane.
    lines: data -> lines of text for the static picture.
    script: a JavaScript file that defines `taskPane(goTo)` -> {box, show(data), at(step)}. style: its CSS file.
    """

    name: str
    data: Callable[[dict], dict | None]
    lines: Callable[[dict], list[str]]
    script: Path
    style: Path


class TrajectoryViewer(View):
    """Shows trajectories, listed with step and group; the list can be sorted and filtered, and tokens coloured.

    A subclass may set `task_pane`.

    records: trajectory records (see Trajectory.record), e.g. `model.records()`.
    boards: for a game, a function from a turn's text to its board (rows of integers, 0 is empty) or None. It is called when
        the viewer is created, for each turn that is not the assistant's, so that replaying needs no kernel.
    kind: a function from a record to the kind of its outcome, a word or two; each kind gets a filter button.

    Raises: ValueError when there is no record or one lacks a key; TypeError when `kind` does not return a str.
    """

    _esm = module("trajectory_viewer")
    task_pane: ClassVar[TaskPane | None] = None
    index = t.List().tag(sync=True)  # a row per trajectory, for list and filters
    bodies = t.Bytes().tag(sync=True)  # gzipped JSON in chunks; index[i]["at"]: start and end of its chunk, place in it
    has_boards = t.Bool(False).tag(sync=True)
    pane = t.Unicode().tag(sync=True)  # name of the task's pane; empty if no record has one
    kinds = t.List(t.Unicode()).tag(sync=True)  # the most frequent first; empty without `kind`
    has_advantages = t.Bool(False).tag(sync=True)
    advantage_scale = t.Float(1.0).tag(sync=True)

    def __init_subclass__(cls) -> None:
        if cls.task_pane and "task_pane" in cls.__dict__:  # not in the subclasses that traitlets makes for instances
            cls._esm = cls.task_pane.script.read_text("utf-8") + TrajectoryViewer._esm
            cls._css = stylesheet(cls.task_pane.style)
        super().__init_subclass__()

    def __init__(
        self,
        records,
        boards: Callable[[str], Board | None] | None = None,
        kind: Callable[[dict], str] | None = None,
    ) -> None:
        records = record_list(records, ("step", "group", "index", "reward", "turns"))
        index: list[dict] = []
        bodies: list[dict] = []
        packed, pane = bytearray(), self.task_pane
        for first in range(0, len(records), CHUNK):
            some = records[first : first + CHUNK]
            chunk = [_body(record, boards, pane.data(record) if pane else None) for record in some]
            start = len(packed)
            packed += gzip.compress(json.dumps(chunk, separators=(",", ":")).encode(), compresslevel=5, mtime=0)
            index += [_index_row(record, [start, len(packed), place], kind) for place, record in enumerate(some)]
            bodies += chunk
        best, worst = (choose(zip(index, bodies, strict=True), key=lambda pair: _rank(pair[0])) for choose in (max, min))
        self._extremes = {"best": best, "worst": worst}  # (index row, body), for the picture
        self._kinds = Counter(row["kind"] for row in index if kind).most_common()
        has_boards = any("board" in turn for body in bodies for turn in body["turns"])
        pane_name = pane.name if pane and any("pane" in body for body in bodies) else ""
        largest = max(map(_largest_advantage, records))
        super().__init__(index=index, bodies=bytes(packed), has_boards=has_boards, kinds=[name for name, _ in self._kinds],
                         pane=pane_name, has_advantages=largest > 0, advantage_scale=min(largest, 2.0) or 1.0)  # fmt: skip

    def summary(self) -> str:
        rewards = [row["reward"] for row in self.index if row["reward"] is not None] or [None]
        kinds = "; " + ", ".join(f"{count} {name}" for name, count in self._kinds) if self._kinds else ""
        return f"{len(self.index)} trajectories, rewards from {number(min(rewards))} to {number(max(rewards))}{kinds}"

    def static_png(self) -> bytes:
        fig = figure(8.6, 3.2)
        grid = fig.add_gridspec(2, 2, width_ratios=[1, 2.6])
        left = fig.add_subplot(grid[:, 0])
        if self._kinds:
            _bars(left, self._kinds[:12])
        else:
            _scatter(left, self.index)
        for place, name in enumerate(("best", "worst")):
            row, body = self._extremes[name]
            axes = fig.add_subplot(grid[place, 1])
            style_axes(axes, f"{name}: reward {number(row['reward'])}, step {row['step']}, group {row['group']}, "
                       f"trajectory {row['index']}, {row['turns']} messages")  # fmt: skip
            _strip(axes, body, self.task_pane.lines(body["pane"]) if self.task_pane and "pane" in body else None)
        return png(fig)

    def static_html(self) -> str:
        ranked = sorted(self.index, key=_rank, reverse=True)
        some = ranked if len(ranked) <= 20 else ranked[:10] + ranked[-10:]
        keys = ["step", "group", "index", "reward", "advantage", "turns", *(["kind"] if self._kinds else [])]
        shown = {"reward": number, "advantage": number}
        rows = [[shown.get(key, str)(row[key]) for key in keys] for row in some]
        heads = {"index": "trajectory", "turns": "messages"}
        return table([heads.get(key, key) for key in keys], rows)


def _index_row(record: dict, at: list[int], kind: Callable[[dict], str] | None) -> dict:
    named = kind(record) if kind else None
    if kind and not isinstance(named, str):
        raise TypeError(f"kind(record) returned {type(named).__name__}: expected a str, e.g. 'wrong answer'")
    advantage = record.get("advantage")
    return plain({
        "step": record["step"], "split": record.get("split", "train"), "group": record["group"], "index": record["index"],
        "reward": float(record["reward"]), "advantage": None if advantage is None else float(advantage),
        "metrics": record.get("metrics") or {},
        "turns": sum(map(len, histories(record))), "at": at, "kind": None if named is None else clean(named),
    })  # fmt: skip


def _body(record: dict, boards: Callable[[str], Board | None] | None, pane: dict | None) -> dict:
    body = {
        "metadata": plain(record.get("metadata") or {}),
        "logs": [str(line) for line in record.get("logs") or []],
        "turns": [_turn(turn, i, boards) for i, turns in enumerate(histories(record)) for turn in turns],
    }
    return body | {"pane": pane} if pane else body


def _turn(turn: dict, conversation: int, boards: Callable[[str], Board | None] | None) -> dict:
    body = {"role": turn["role"], "content": turn.get("content") or "", "trainable": bool(turn.get("trainable"))}
    body |= {"conversation": conversation} | {key: turn[key] for key in ("tool_calls", "tokens") if turn.get(key)}
    body |= {key: [_short(x) for x in turn[key]] for key in ("logprobs", "advantages") if turn.get(key)}
    if turn.get("reward") is not None:
        body["reward"] = plain(float(turn["reward"]))
    board = boards(body["content"]) if boards and turn["role"] != "assistant" else None
    if board:
        body["board"] = plain(board)
    return body


def _short(x: float) -> float | None:
    """Round to four decimals, enough for a colour; clip to ±10,000, and return None for NaN, which JSON lacks."""
    return None if math.isnan(float(x)) else round(max(-1e4, min(1e4, float(x))), 4)


def _largest_advantage(record: dict) -> float:
    each = [a for turns in histories(record) for turn in turns for a in turn.get("advantages") or []]
    found = map(float, [*each, record.get("advantage") or 0.0])
    return max((abs(a) for a in found if math.isfinite(a)), default=0.0)


def _rank(row: dict) -> float:
    """Return the reward as a sort key; one that is not a finite number ranks last."""
    return -math.inf if row["reward"] is None else row["reward"]


def _scatter(axes, index: list[dict]) -> None:
    style_axes(axes, "Reward of each trajectory, by step")
    spread = [row["step"] + 0.5 * (i % 9 / 8 - 0.5) for i, row in enumerate(index)]
    rewards = [math.nan if row["reward"] is None else row["reward"] for row in index]
    axes.scatter(spread, rewards, s=9, alpha=0.5, color=BLUE, linewidths=0)
    axes.locator_params(axis="x", integer=True, nbins=5)


def _bars(axes, kinds: list[tuple[str, int]]) -> None:
    style_axes(axes, "Trajectories of each kind")
    places = range(len(kinds))
    axes.barh(places, [count for _, count in kinds], color=BLUE, height=0.6)
    axes.set_yticks(places, [name[:24] for name, _ in kinds], parse_math=False)
    axes.grid(False)
    axes.invert_yaxis()
    axes.locator_params(axis="x", integer=True, nbins=4)


def _strip(axes, body: dict, task_lines: list[str] | None) -> None:
    """Draw a summary of one trajectory: up to six of its boards; else the task's lines, its calls, or its last answer."""
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    boards = [turn["board"] for turn in body["turns"] if "board" in turn]
    if not boards:
        text = clean("\n".join(_lines(body) if task_lines is None else _some([line[:96] for line in task_lines])))
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
    if any(turn.get("tool_calls") for turn in body["turns"]):
        return _some([*filter(None, map(_line, body["turns"])), *(log[:96] for log in body["logs"])])
    answers = [turn["content"] for turn in body["turns"] if turn["role"] == "assistant"] or [""]
    text = answers[-1][:420]
    return [text[i : i + 84] for i in range(0, len(text), 84)]


def _line(turn: dict) -> str:
    """Return a turn of a tool conversation as one line, indented by its role; "" for a system message."""
    calls = "; ".join(f"{call['name']} {call['arguments']}" for call in turn.get("tool_calls") or [])
    mark = {"assistant": "  ", "tool": "    -> "}.get(turn["role"], "")
    text = " ".join((calls or turn["content"]).split())
    return "" if turn["role"] == "system" else f"{mark}{text}"[:96]


def _some(lines: list[str]) -> list[str]:
    """Return the lines; if there are more than nine, the first six, an ellipsis and the last two."""
    return lines if len(lines) <= 9 else [*lines[:6], "  ...", *lines[-2:]]


def _cell(axes, x: float, y: float, value: int) -> None:
    from matplotlib.patches import Rectangle

    level = min(1.0, math.log2(abs(value) + 1) / 11) if value else 0.0
    tint = ORANGE if value < 0 else BLUE if value else GREY
    alpha = 0.12 + 0.88 * level**1.5 if value else 0.07
    axes.add_patch(Rectangle((x, y), 0.92, 0.92, facecolor=tint, alpha=alpha, linewidth=0))
    if value:
        axes.text(x + 0.46, y + 0.48, str(value), ha="center", va="center", fontsize=5.6 if abs(value) < 1000 else 4.4,
                  color="white" if level > 0.5 else "#1f2328")  # fmt: skip
