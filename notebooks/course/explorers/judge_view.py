"""`JudgeView`: judged groups, with scores and explanations next to the true outcomes, and your own order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import traitlets as t

from art_nb.rewards.agreement import pairs_right
from art_nb.trajectories.records import turn_text
from art_nb.widgets.view import BLUE, GREY, ORANGE, View, figure, module, number, plain, png, style_axes, stylesheet, table

if TYPE_CHECKING:
    from art_nb.trajectories import Trajectory, TrajectoryGroup

HERE = Path(__file__).parent
REASON = "RULER explanation: "
SHOWN = 4_000  # last characters of a conversation


class JudgeView(View):
    """Shows a group as `ruler_score_group` returned it: each trajectory's score, explanation and true rank.

    groups: scored groups. truth: the true outcome of a trajectory, higher is better, or the name of its metric; by default
    the reward before judging.

    The order "my own" hides scores and truth: drag the trajectories (or move them with Alt and an arrow key) into your
    order, and see how many pairs you order as the truth and as the judge do. `mine` contains your orders, as
    {index of the group, as a string: indices of trajectories, best first}.

    Raises: ValueError when there is no group, a trajectory was not judged or lacks the metric, or a value is not finite.
    """

    _esm = module("judge_view", HERE)
    _css = stylesheet(HERE / "judge_view.css")
    groups = t.List().tag(sync=True)
    mine = t.Dict().tag(sync=True)

    def __init__(
        self, groups: Iterable[TrajectoryGroup], truth: Callable[[Trajectory], float] | str = "independent_reward"
    ) -> None:
        groups = [group for group in groups if len(group)]
        if not groups:
            raise ValueError("no group to show: expected groups that ruler_score_group returned")
        super().__init__(groups=[[_member(trajectory, truth) for trajectory in group] for group in groups])

    def summary(self) -> str:
        right = pairs = 0.0
        for group in self.groups:
            share, n = pairs_right([member["truth"] for member in group], [member["score"] for member in group])
            right, pairs = right + share * n, pairs + n
        groups = "1 group" if len(self.groups) == 1 else f"{len(self.groups)} groups"
        return f"{groups}; the judge orders {right:g} of {pairs:g} pairs as the truth does"

    def static_png(self) -> bytes:
        group = self.groups[0]
        names = [str(i) for i in range(len(group))]
        fig = figure(8, 1.1 + 0.24 * min(24, len(names)))
        left, right = fig.subplots(1, 2, sharey=True)
        for axes, title, key, colour in ((left, "The judge's score", "score", BLUE), (right, "The truth", "truth", ORANGE)):
            style_axes(axes, title)
            axes.barh(names, [member[key] or 0 for member in group], color=colour, height=0.6)
            axes.axvline(0, color=GREY, linewidth=0.8)
        left.invert_yaxis()
        fig.suptitle(f"The first of {self.summary()}", fontsize=10, x=0.01, ha="left")
        return png(fig)

    def static_html(self) -> str:
        rows = [
            [g, i, number(member["score"]), number(member["truth"]), member["reason"]]
            for g, group in enumerate(self.groups)
            for i, member in enumerate(group)
        ]
        return table(["group", "trajectory", "score", "truth", "reason"], rows)


def _member(trajectory: Trajectory, truth: Callable[[Trajectory], float] | str) -> dict:
    named = {"ruler_score", truth} if isinstance(truth, str) else {"ruler_score"}
    if missing := sorted(named - set(trajectory.metrics)):
        judge_first = "Judge it first: await ruler_score_group(group, ...)"
        advice = judge_first if "ruler_score" in missing else "Choose another `truth`."
        raise ValueError(f"{trajectory} lacks the metrics {missing}. {advice}")
    reasons = [line.removeprefix(REASON) for line in trajectory.logs if line.startswith(REASON)]
    text = "\n\n".join(map(turn_text, trajectory.record()["turns"]))
    score = float(trajectory.metrics["ruler_score"])
    true = float(trajectory.metrics[truth] if isinstance(truth, str) else truth(trajectory))
    if not (isfinite(score) and isfinite(true)):
        raise ValueError(f"{trajectory} has the score {score} and the truth {true}: expected finite numbers")
    return plain({
        "score": score,
        "truth": true,
        "reason": reasons[-1] if reasons else "",
        "text": text if len(text) <= SHOWN else f"[...]\n{text[-SHOWN:]}",
    })  # fmt: skip
