"""`GroupView`: the rewards of one group, their mean and standard deviation, and the advantages."""

from __future__ import annotations

import math
import statistics

import traitlets as t

from .group_strips import all_equal
from .view import BLUE, GREY, ORANGE, View, figure, module, number, plain, png, record_list, style_axes, table


class GroupView(View):
    """Shows each trajectory's reward and advantage in a selected group.

    records: trajectory records (see Trajectory.record). A record without an advantage gets GRPO's: reward minus the group's
    mean, divided by its standard deviation (ddof 1) + 1e-4; 0 if all are equal. Source: DeepSeekMath, section 4.1.2; TRL.

    Raises: ValueError when there is no record or one lacks a key.
    """

    _esm = module("group_view")
    groups = t.List().tag(sync=True)
    start = t.Int(0).tag(sync=True)

    def __init__(self, records) -> None:
        gathered: dict[tuple[int, str, int], list[dict]] = {}
        for record in record_list(records):
            key = (record["step"], record.get("split", "train"), record["group"])
            gathered.setdefault(key, []).append(record)
        groups = [_group(*key, members) for key, members in gathered.items()]
        latest = max(group["step"] for group in groups)
        start = max(range(len(groups)), key=lambda i: (groups[i]["step"] == latest, groups[i]["std"], -i))
        super().__init__(groups=groups, start=start)

    def _title(self) -> str:
        group = self.groups[self.start]
        return (f"Step {group['step']}, group {group['group']}: {len(group['rewards'])} trajectories, "
                f"mean reward {number(group['mean'])}, std {number(group['std'])}")  # fmt: skip

    def summary(self) -> str:
        return f"{self._title()} (one of {len(self.groups)} groups)"

    def static_png(self) -> bytes:
        group = self.groups[self.start]
        names = [str(i) for i in group["index"]]
        advantages = [each or 0.0 for each in group["advantages"]]  # None: not a finite number
        fig = figure(8, 1.1 + 0.24 * min(24, len(names)))
        left, right = fig.subplots(1, 2, sharey=True)
        style_axes(left, "Reward (line and band: mean ± std)")
        left.axvspan(group["mean"] - group["std"], group["mean"] + group["std"], color=GREY, alpha=0.1, linewidth=0)
        left.axvline(group["mean"], color=GREY, linewidth=1, linestyle="--")
        left.plot([math.nan if r is None else r for r in group["rewards"]], names, "o", color="#1f2328", markersize=5)
        style_axes(right, "Advantage" if any(advantages) else "No signal: every advantage is zero")
        right.barh(names, advantages, color=[ORANGE if a < 0 else BLUE for a in advantages], height=0.6)
        right.axvline(0, color=GREY, linewidth=0.8)
        left.invert_yaxis()
        fig.suptitle(self._title(), fontsize=10, x=0.01, ha="left")
        return png(fig)

    def static_html(self) -> str:
        group = self.groups[self.start]
        rows = zip(group["index"], map(number, group["rewards"]), map(number, group["advantages"]), strict=True)
        return table(["trajectory", "reward", "advantage"], [list(row) for row in rows])


def _group(step: int, split: str, group: int, members: list[dict]) -> dict:
    rewards = [float(member["reward"]) for member in members]
    finite = [reward for reward in rewards if math.isfinite(reward)] or [0.0]
    mean = statistics.fmean(finite)
    std = 0.0 if all_equal(finite) else statistics.stdev(finite)
    given = [None if (a := member.get("advantage")) is None else float(a) for member in members]
    computed = [(reward - mean) / (std + 1e-4) if std else 0.0 for reward in rewards]
    return plain({
        "step": step, "split": split, "group": group, "rewards": rewards, "mean": mean, "std": std,
        "index": [member["index"] for member in members],
        "advantages": [own if a is None else a for a, own in zip(given, computed, strict=True)],
        "metrics": [dict(list((member.get("metrics") or {}).items())[:6]) for member in members],
    })  # fmt: skip
