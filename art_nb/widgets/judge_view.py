"""JudgeView: a judged group, the scores and reasons beside the truth, and an order of your own to hold against both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import traitlets as t

from .view import BLUE, GREY, HERE, ORANGE, View, calm, figure, module, number, plain, png, table

if TYPE_CHECKING:
    from art_nb.trajectories import Trajectory, TrajectoryGroup

REASON = "RULER explanation: "
SHOWN = 4_000  # characters of a conversation, from its end: how it came out matters most


class JudgeView(View):
    """Groups as `ruler_score_group` returns them: pick one; each trajectory's score, reason and true rank.

    groups: scored groups. truth: the true outcome of a trajectory, higher is better, or the name of its metric; by default
    the reward that the trajectory had before it was judged.

    In the view, "my order" hides scores and truth: drag the trajectories (or move them with Alt and an arrow) into the
    order you find right, and see how many pairs you, the judge and the truth order alike. `mine` holds what you did, as
    {index of the group: indices of trajectories, best first}.

    Raises: ValueError when there is no group, or a trajectory was not judged or lacks the metric.
    """

    _esm = module("judge_view")
    _css = View._css + (HERE / "judge_view.css").read_text("utf-8")
    groups = t.List().tag(sync=True)
    mine = t.Dict().tag(sync=True)

    def __init__(
        self, groups: Iterable[TrajectoryGroup], truth: Callable[[Trajectory], float] | str = "independent_reward"
    ) -> None:
        groups = [group for group in groups if len(group)]
        if not groups:
            raise ValueError("There is no group to show. Pass groups that ruler_score_group returned.")
        super().__init__(groups=[[_member(trajectory, truth) for trajectory in group] for group in groups])

    def summary(self) -> str:
        right, pairs = (sum(column) for column in zip(*map(pairs_alike, self.groups), strict=True))
        return f"{len(self.groups)} groups; the judge orders {right:g} of {pairs} pairs as the truth does"

    def static_png(self) -> bytes:
        group = self.groups[0]
        names = [str(i) for i in range(len(group))]
        fig = figure(8, 1.1 + 0.24 * min(24, len(names)))
        left, right = fig.subplots(1, 2, sharey=True)
        for axes, title, key, colour in ((left, "The judge's score", "score", BLUE), (right, "The truth", "truth", ORANGE)):
            calm(axes, title)
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


def pairs_alike(group: list[dict]) -> tuple[float, int]:
    """(pairs with different truths that the judge orders alike, such pairs); a pair that it scores alike is half."""
    pairs = [(a, b) for i, a in enumerate(group) for b in group[:i] if a["truth"] != b["truth"]]
    alike = [((a["score"] - b["score"]) * (a["truth"] - b["truth"]) > 0) + (a["score"] == b["score"]) / 2 for a, b in pairs]
    return sum(alike), len(pairs)


def _member(trajectory: Trajectory, truth: Callable[[Trajectory], float] | str) -> dict:
    named = {"ruler_score", truth} if isinstance(truth, str) else {"ruler_score"}
    if missing := sorted(named - set(trajectory.metrics)):
        raise ValueError(f"{trajectory} lacks the metrics {missing}. Judge it first: await ruler_score_group(group, ...).")
    reasons = [line.removeprefix(REASON) for line in trajectory.logs if line.startswith(REASON)]
    said = "\n\n".join(f"{message['role']}: {_text(message)}" for message in trajectory.messages())
    return plain({
        "score": float(trajectory.metrics["ruler_score"]),
        "truth": float(trajectory.metrics[truth] if isinstance(truth, str) else truth(trajectory)),
        "reason": reasons[-1] if reasons else "",
        "said": said if len(said) <= SHOWN else f"[...]\n{said[-SHOWN:]}",
    })  # fmt: skip


def _text(message: Mapping[str, Any]) -> str:
    calls = [call.get("function", call) for call in message.get("tool_calls") or []]
    return "\n".join([str(message["content"]), *(f"{call['name']}({call['arguments']})" for call in calls)]).strip()
