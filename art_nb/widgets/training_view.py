"""`TrainingView`: charts of a training run, updated live while the cell runs."""

from __future__ import annotations

import time
from collections.abc import Iterable

import traitlets as t

from art_nb.storage import run_log

from .group_strips import draw_strips
from .view import BLUE, GREY, HERE, ORANGE, View, figure, module, number, plain, png, style_axes, table

TILES = {  # key -> (label, the metrics that the panel shows)
    "kl": ("KL to the base", ("kl",)),
    "entropy": ("Entropy", ("entropy",)),
    "clip_fraction": ("Clip fraction", ("clip_fraction",)),
    "rollout_tokens_per_s": ("Tokens/s", ("rollout_tokens_per_s", "train_tokens_per_s")),
    "loss": ("Loss", ("loss",)),
    "costs/all": ("Cost, US$", ("costs/all",)),
    "duration": ("Seconds per rollout", ("duration",)),
    "sampled_tokens": ("Tokens per rollout", ("sampled_tokens", "judge_tokens")),
    "cost_usd": ("Cost per rollout, US$", ("cost_usd", "judge_cost_usd")),
}
KNOWN = {  # metrics that have a fixed place in the view or are not shown; all others are task metrics
    *(metric for _, series in TILES.values() for metric in series), "step", "split", "time", "reward", "reward_std",
    "reward_min", "reward_max", "group_rewards", "ratio_min", "ratio_max", "grad_norm", "learning_rate", "rollout_s",
    "train_s", "save_s", "groups", "groups_without_signal", "trajectories", "tokens_trained", "advantage", "exceptions",
}  # fmt: skip
TOTALS = ("costs/", "time/", "data/", "throughput/")  # sections of `art_nb.metrics`, not shown except costs/all
TAIL = 64
FIRST = 2  # number of small panels that are shown at first, unless `panels` selects them

# When a panel is replaced by an explanation, and the explanations.
LOSS_NEAR_ZERO = 0.01
SAME_LENGTH = 0.05  # lengths that differ by at most this share of the largest count as constant
ENOUGH = 3  # equal values needed for any other metric to count as constant

ZERO = {
    "clip_fraction": "0 at every step. With one update for each batch (num_updates=1) no token can leave the clip range.",
    "kl": "0: it is measured before the update, and the policy has not moved from the base model yet.",
}
LOSS = "within {most} of 0, as expected: a group's advantages sum to 0. The gradient is not 0, so the policy still learns."


class TrainingView(View):
    """Live charts of reward, the groups of a step, task metrics, KL, entropy, speed, progress and remaining time.

    A panel whose metrics are constant is replaced by one line of explanation. At first the view has four panels (reward,
    groups and two others) unless `panels` is given; a button shows the rest. The static picture has only the first panels.

    Display it (last line of a cell, or `display(view)`), then call `update(row)` after each step and `status(text)` while
    waiting. A busy kernel can send messages but not receive any, so the browser alone handles moving from step to step.

    total_steps: planned number of steps, for "step x of y" and the remaining time; None if unknown.
    panels: keys of the metrics to show at first; by default the first two that are not constant, task metrics before others.
    """

    _esm = (HERE / "group_strips.js").read_text("utf-8") + module("training_view")
    # `rows` grows by TAIL rows at a time, so that most steps send at most TAIL rows instead of all.
    rows = t.List().tag(sync=True)
    tail = t.List().tag(sync=True)
    tiles = t.List().tag(sync=True)  # the small panels: key, label and series (the metrics in the panel)
    quiet = t.Dict().tag(sync=True)  # a panel's key -> explanation
    total_steps = t.Int(None, allow_none=True).tag(sync=True)
    panels = t.List(t.Unicode()).tag(sync=True)
    title = t.Unicode("").tag(sync=True)
    message = t.Unicode("").tag(sync=True)
    elapsed = t.Float(0.0).tag(sync=True)
    finished = t.Bool(False).tag(sync=True)

    def __init__(self, total_steps: int | None = None, title: str | None = None, panels: Iterable[str] = ()) -> None:
        panels = [panels] if isinstance(panels, str) else list(panels)
        super().__init__(total_steps=total_steps, title=title or "", panels=panels)
        self._started: float | None = None
        self._waits_for_cell = False

    @classmethod
    def from_history(
        cls, rows, total_steps: int | None = None, title: str | None = None, panels: Iterable[str] = ()
    ) -> TrainingView:
        """Return a view of the training and validation rows of a history: dicts, or the DataFrame of `model.history()`."""
        if hasattr(rows, "to_dict"):
            rows = rows.to_dict("records")
        view = cls(total_steps, title, panels)
        view.rows = [_row(row) for row in rows if row.get("split", "train") in ("train", "val")]
        view._arrange()
        if view.rows:
            first, last = view.rows[0], view.rows[-1]
            spent = (first.get("rollout_s") or 0) + (first.get("train_s") or 0)
            view.elapsed = max(0.0, float(last["time"] - first["time"] + spent))
        view.finished = True
        return view

    @property
    def history(self) -> list[dict]:
        """All rows so far, in the order in which they were added."""
        return [*self.rows, *self.tail]

    def update(self, row: dict) -> None:
        """Add one history row. Raises: ValueError unless its "step" is a number."""
        row = _row(row)
        self._beat()
        with self.hold_sync():
            if len(self.tail) >= TAIL:
                self.rows, self.tail = self.history, [row]
            else:
                self.tail = [*self.tail, row]
            self._arrange()
            self.message, self.finished = "", False
        self._picture_when_cell_ends()

    def status(self, text: str) -> None:
        """Show a status text while waiting, e.g. "gathering 12/64 games"."""
        self._beat()
        self.message = text

    def finish(self) -> None:
        """Stop the clock and draw the static picture. Called automatically when the cell ends, even after an error."""
        self.finished, self._started = True, None
        self.refresh_still()

    def _beat(self) -> None:
        now = time.monotonic()
        self._started = self._started if self._started is not None else now - self.elapsed
        self.elapsed = now - self._started

    def _picture_when_cell_ends(self) -> None:
        from IPython import get_ipython

        shell = get_ipython()
        if shell is None or self._waits_for_cell:
            return

        def cell_ended(*_) -> None:
            shell.events.unregister("post_run_cell", cell_ended)
            self._waits_for_cell = False
            self.finish()

        shell.events.register("post_run_cell", cell_ended)
        self._waits_for_cell = True

    def _split(self) -> tuple[list[dict], list[dict]]:
        rows = self.history
        return [r for r in rows if r.get("split", "train") == "train"], [r for r in rows if r.get("split") == "val"]

    def _arrange(self) -> None:
        """Set `tiles`, task metrics first, and `quiet`: the explanations of the tiles whose metrics are all constant."""
        found = {key: None for row in self.history for key, value in row.items() if isinstance(value, (int, float))}
        tiles = [{"key": key, "label": key.replace("_", " "), "series": [key]} for key in found if key not in KNOWN]
        for key, (label, series) in TILES.items():
            if there := [metric for metric in series if metric in found]:
                tiles.append({"key": key, "label": label, "series": there})
        quiet = {}
        for tile in tiles:
            reasons = [_why_quiet(key, [r[key] for r in self.history if r.get(key) is not None]) for key in tile["series"]]
            if all(reasons):
                quiet[tile["key"]] = " ".join(dict.fromkeys(filter(None, reasons)))
        self.tiles, self.quiet = tiles, quiet

    def summary(self) -> str:
        train, _ = self._split()
        if not train:
            return "TrainingView: no step yet"
        return (f"Training: {len(train)} steps, reward {number(train[0].get('reward'))} at the first, "
                f"{number(train[-1].get('reward'))} at the last")  # fmt: skip

    def static_png(self) -> bytes | None:
        train, val = self._split()
        if not train and not val:
            return None
        loud = [tile for tile in self.tiles if tile["key"] not in self.quiet]
        panels = [tile for tile in loud if {*tile["series"]} & {*self.panels}] or loud[:FIRST]
        quiet = [t for t in self.tiles if t["key"] in self.quiet and (not self.panels or {*t["series"]} & {*self.panels})]
        fig = figure(9, 3.1 + 0.18 * len(quiet))
        grid = fig.add_gridspec(max(1, len(panels)), 3, width_ratios=[1.7, 1.7, 1.2])
        big = fig.add_subplot(grid[:, 0])
        known = [row for row in train if None not in (row.get("reward"), row.get("reward_std"))]
        low, high = ([row["reward"] + sign * row["reward_std"] for row in known] for sign in (-1, 1))
        big.fill_between([row["step"] for row in known], low, high, color=BLUE, alpha=0.15, linewidth=0)
        _draw(big, ["reward"], "Reward (band: std within groups)", train, val)
        big.set_xlabel("step", fontsize=7.5, color=GREY)
        strips = fig.add_subplot(grid[:, 1], sharey=big)
        big.use_sticky_edges = strips.use_sticky_edges = False  # else the axis ends at the bars' ends and cuts dots in half
        draw_strips(strips, train)
        for i, tile in enumerate(panels):
            _draw(fig.add_subplot(grid[i, 2]), tile["series"], tile["label"], train, val)
        lines = "\n".join(f"{tile['label']}: {self.quiet[tile['key']]}" for tile in quiet)
        fig.supxlabel(lines, x=0.01, ha="left", fontsize=7.5, color=GREY, linespacing=1.5, parse_math=False)
        return png(fig)

    def static_html(self) -> str:
        train, val = self._split()
        lines = []
        panels = [(tile["label"], i, metric) for tile in self.tiles for i, metric in enumerate(tile["series"])]
        names = {metric: f"{label}, {metric.partition('_')[0]}" if i else label for label, i, metric in panels}
        for key, name in {"reward": "reward", **names}.items():
            values = [row[key] for row in train if row.get(key) is not None] or [None]
            checks = [row[key] for row in val if row.get(key) is not None] or [None]
            lines.append([name, *map(number, (values[0], values[-1], checks[0], checks[-1]))])
        return table(["", "first step", "last step", "first validation", "last validation"], lines)


def _row(row: dict) -> dict:
    shown = {key: value for key, value in dict(row).items() if not key.startswith(TOTALS) or key in KNOWN}
    stored = {key: run_log.number(value) for key, value in plain(shown).items()}  # history.jsonl has NaN as text
    row = {key: value for key, value in plain(stored).items() if value is not None}
    if not isinstance(row.get("step"), (int, float)):
        raise ValueError(f'A history row needs a number under "step"; this one has {sorted(row)}.')
    row.setdefault("time", time.time())
    return row


def _why_quiet(key: str, values: list[float]) -> str | None:
    """Return the explanation of a metric that is constant, or nearly so; None for any other."""
    low, high = min(values), max(values)
    most = max(abs(low), abs(high))
    if key in ZERO:
        return ZERO[key] if most == 0 else None
    if key == "loss":
        return LOSS.format(most=number(most)) if most < LOSS_NEAR_ZERO else None
    if key == "completion_tokens" and high - low <= SAME_LENGTH * most:
        span = " to ".join(dict.fromkeys([number(low), number(high)]))
        return f"{span} at every step: all answers have about the same length."
    return f"{number(low)} at every step so far." if low == high and len(values) >= ENOUGH else None


def _draw(axes, series: list[str], title: str, train: list[dict], val: list[dict]) -> None:
    from matplotlib.ticker import MaxNLocator

    style_axes(axes, title)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    validation = {"color": ORANGE, "linewidth": 0.9, "linestyle": "--", "marker": "D", "markersize": 3.5}
    for key, rows, style in (
        *((key, train, {"color": GREY if i else BLUE, "linewidth": 1.4}) for i, key in enumerate(series)),
        (series[0], val, validation),
    ):
        points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
        if len(points) == 1 and rows is train:
            style = {**style, "marker": "o", "markersize": 3}
        if points:
            axes.plot(*zip(*points, strict=True), **style)
