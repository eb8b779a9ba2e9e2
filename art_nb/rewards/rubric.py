"""RubricJudge: a judge without a model. It works out weighted criteria by rule, always the same, each with a reason.

Every task has criteria of its own: functions from a trajectory to a share from 0 to 1 and the reason in words. They read
what was said and done, and the facts that the rollout noted; never `reward`.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from art_nb.rewards.judge_answers import TrajectoryScore
from art_nb.rewards.judges import Judgement
from art_nb.trajectories import Trajectory

WEIGHTS = {"accuracy": 0.4, "efficiency": 0.3, "completeness": 0.2, "user satisfaction": 0.1}

Measure = Callable[[Trajectory], tuple[float, str]]


@dataclass(frozen=True)
class Criterion:
    """One thing that makes a trajectory good.

    name: as the reasons call it. weight: above 0; what counts is its share in the sum of all weights.
    measure: trajectory -> (from 0, missed, to 1, met in full; the reason in words).
    """

    name: str
    weight: float
    measure: Measure

    def __post_init__(self):
        if not self.weight > 0:
            raise ValueError(f"criterion {self.name!r} has weight {self.weight}: give a number above 0, or leave it out.")


def weighted(**measures: Measure) -> tuple[Criterion, ...]:
    """Criteria under the names and weights of WEIGHTS; `user_satisfaction=` stands for "user satisfaction"."""
    return tuple(Criterion(name, weight, measures[name.replace(" ", "_")]) for name, weight in WEIGHTS.items())


# task -> its criteria, or the module that holds them as CRITERIA (imported when they are needed: tasks stand above
# rewards, and their modules may import this one)
_CRITERIA: dict[str, Sequence[Criterion] | str] = {
    "game_2048": "art_nb.tasks.game_2048.criteria",
    "email_search": "art_nb.tasks.email_search.criteria",
    "tools": "art_nb.rewards.criteria_tools",
}


def register(task: str, criteria: Sequence[Criterion] | str) -> None:
    """Judge trajectories whose metadata["task"] is `task` by these criteria, or by CRITERIA of the module so named."""
    _CRITERIA[task] = criteria


def criteria_of(task: str) -> Sequence[Criterion]:
    """Raises: ValueError for a task that nobody registered."""
    if task not in _CRITERIA:
        known = ", ".join(sorted(_CRITERIA))
        raise ValueError(f"no criteria for the task {task!r}, but for {known}. Add yours with register(task, criteria).")
    found = _CRITERIA[task]
    return importlib.import_module(found).CRITERIA if isinstance(found, str) else found


@dataclass(frozen=True)
class RubricJudge:
    """Scores each trajectory by itself: the weighted mean of its criteria. Costs nothing and asks nobody.

    task: whose criteria; None takes each trajectory's metadata["task"].
    criteria: these instead of the task's.
    weights: other weights by criterion, {"efficiency": 0.1}; 0 leaves it out.
    """

    task: str | None = None
    criteria: Sequence[Criterion] | None = None
    weights: Mapping[str, float] | None = None

    async def judge(self, trajectories: Sequence[Trajectory], rubric: str, order: int = 0, sample: int = 0) -> Judgement:
        """Whatever `rubric` says in words, and in whatever order: the criteria and the scores stay the same.

        Raises: ValueError for a trajectory without a known task, or a criterion that does not give a share from 0 to 1.
        """
        return Judgement([self._score(trajectory, n) for n, trajectory in enumerate(trajectories, start=1)])

    def _score(self, trajectory: Trajectory, number: int) -> TrajectoryScore:
        criteria = self._criteria(trajectory)
        found = [(criterion, *_measured(criterion, trajectory)) for criterion in criteria]
        total = sum(criterion.weight for criterion in criteria)
        score = sum(criterion.weight * share for criterion, share, _ in found) / total
        reason = "; ".join(f"{criterion.name} {share:.2f}, {why}" for criterion, share, why in found)
        return TrajectoryScore(trajectory_id=str(number), explanation=reason, score=min(1.0, score))

    def _criteria(self, trajectory: Trajectory) -> Sequence[Criterion]:
        task = self.task or trajectory.metadata.get("task")
        if self.criteria is None and task is None:
            raise ValueError('which task is it? Give RubricJudge("game_2048"), or set metadata["task"] in the rollout.')
        criteria = self.criteria if self.criteria is not None else criteria_of(str(task))
        weights = self.weights or {}
        weighed = [(c, weights.get(c.name, c.weight)) for c in criteria]
        used = [Criterion(c.name, weight, c.measure) for c, weight in weighed if weight != 0]
        if not used or set(weights) - {c.name for c in criteria}:
            names = ", ".join(c.name for c in criteria)
            raise ValueError(f"weights are {dict(weights)}; give some of {names or 'the criteria'} a weight above 0.")
        return used


def _measured(criterion: Criterion, trajectory: Trajectory) -> tuple[float, str]:
    share, reason = criterion.measure(trajectory)
    if not 0 <= share <= 1:  # so that NaN is refused too
        raise ValueError(f"criterion {criterion.name!r} gave {share} ({reason}) for {trajectory}: expected 0 to 1.")
    return float(share), reason
