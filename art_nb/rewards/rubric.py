"""`RubricJudge`, a deterministic judge without a model: weighted criteria, computed by rules.

Each task has its own criteria: functions from a trajectory to a share from 0 to 1 and the reason in words. They should
read the conversation and the rollout's metrics and metadata, but not `reward`.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

from art_nb.rewards.judge_answers import TrajectoryScore
from art_nb.rewards.judges import Judgement
from art_nb.trajectories import Trajectory

WEIGHTS = {"accuracy": 0.4, "efficiency": 0.3, "completeness": 0.2, "user satisfaction": 0.1}

Measure = Callable[[Trajectory], tuple[float, str]]


@dataclass(frozen=True)
class Criterion:
    """A quality of a trajectory.

    name: for the explanation and `RubricJudge.weights`. weight: above 0 (else ValueError), relative to the sum of all.
    measure: trajectory -> (share from 0, not met, to 1, met in full; the reason in words).
    """

    name: str
    weight: float
    measure: Measure

    def __post_init__(self):
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"criterion {self.name!r} has weight {self.weight}: expected a finite number above 0.")


def weighted(**measures: Measure) -> tuple[Criterion, ...]:
    """Return a criterion for each of WEIGHTS, all required; `user_satisfaction=` is "user satisfaction"."""
    if unknown := measures.keys() ^ {name.replace(" ", "_") for name in WEIGHTS}:
        raise TypeError(f"missing or unknown measures: {', '.join(sorted(unknown))}; expected those of {', '.join(WEIGHTS)}")
    return tuple(Criterion(name, weight, measures[name.replace(" ", "_")]) for name, weight in WEIGHTS.items())


# Task name -> its criteria, or the module that defines them as CRITERIA. Installed environments register theirs in the entry
# point group ENTRY_POINTS.
ENTRY_POINTS = "art_nb.criteria"
_CRITERIA: dict[str, Sequence[Criterion] | str] = {"tools": "art_nb.rewards.criteria_tools"}


def register(task: str, criteria: Sequence[Criterion] | str) -> None:
    """Set the criteria for trajectories with this metadata["task"]; a string names a module with CRITERIA."""
    _CRITERIA[task] = criteria


def criteria_of(task: str) -> Sequence[Criterion]:
    """Return the criteria registered for a task, by `register` or by an installed environment's entry point.

    Raises: ValueError when there are none.
    """
    if task not in _CRITERIA:  # looking for entry points reads a file of each installed package
        _CRITERIA.update({each.name: each.value for each in entry_points(group=ENTRY_POINTS)} | _CRITERIA)
    if task not in _CRITERIA:
        names = ", ".join(sorted(_CRITERIA))
        raise ValueError(f"no criteria for the task {task!r}: expected one of {names}. Add them: register(task, criteria).")
    found = _CRITERIA[task]
    return importlib.import_module(found).CRITERIA if isinstance(found, str) else found


@dataclass(frozen=True)
class RubricJudge:
    """Scores each trajectory independently, by the weighted mean of its criteria.

    task: name of the task whose criteria are used; None: each trajectory's metadata["task"].
    criteria: used instead of the task's. weights: new weights by criterion, e.g. {"efficiency": 0.1}; 0 omits a criterion.
    """

    task: str | None = None
    criteria: Sequence[Criterion] | None = None
    weights: Mapping[str, float] | None = None

    async def judge(self, trajectories: Sequence[Trajectory], rubric: str, order: int = 0, sample: int = 0) -> Judgement:
        """Score by the criteria; `rubric`, `order` and `sample` have no effect.

        Raises: ValueError for an unknown task, invalid weights, or a criterion's value outside 0 to 1.
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
            raise ValueError('the task is unknown: use RubricJudge("game_2048"), or set metadata["task"] in the rollout.')
        criteria = self.criteria if self.criteria is not None else criteria_of(str(task))
        weights = self.weights or {}
        weighed = [(c, weights.get(c.name, c.weight)) for c in criteria]
        used = [Criterion(c.name, weight, c.measure) for c, weight in weighed if weight != 0]
        if not used or set(weights) - {c.name for c in criteria}:
            names = ", ".join(c.name for c in criteria)
            wanted = f"names of criteria ({names or 'none'}), at least one with a weight above 0"
            raise ValueError(f"weights are {dict(weights)}: expected {wanted}.")
        return used


def _measured(criterion: Criterion, trajectory: Trajectory) -> tuple[float, str]:
    share, reason = criterion.measure(trajectory)
    if not 0 <= share <= 1:  # also true for NaN
        raise ValueError(f"criterion {criterion.name!r} returned {share} ({reason}) for {trajectory}: expected 0 to 1.")
    return float(share), reason
