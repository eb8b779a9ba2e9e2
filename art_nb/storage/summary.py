"""One row of metrics from a batch of trajectory groups. Does not access files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

from art_nb.metrics import SUMMED_PREFIXES
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.trajectories.records import as_float
from art_nb.trajectories.usage import rollout_seconds


def as_groups(trajectories: Iterable[Trajectory | BaseException] | Iterable[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Return groups unchanged, and loose trajectories and exceptions as one group. Raises: TypeError for a mixture."""
    items = [trajectories] if isinstance(trajectories, TrajectoryGroup | Trajectory) else list(trajectories)
    groups = [item for item in items if isinstance(item, TrajectoryGroup)]
    members = [item for item in items if isinstance(item, Trajectory | BaseException)]
    if len(groups) == len(items):
        return groups
    if len(members) == len(items):
        return [TrajectoryGroup(members)]
    kinds = sorted({type(item).__name__ for item in items})
    raise TypeError(f"expected only groups or only trajectories, but got {', '.join(kinds)}.")


def summary(groups: list[TrajectoryGroup]) -> dict[str, Any]:
    """Return the metrics of a batch of groups.

    reward (the mean), reward_min, reward_max: over all trajectories.
    reward_std: the sample standard deviation (n - 1) within a group, averaged over the groups of two or more trajectories.
    group_rewards: the rewards of each group, as a list of lists.
    groups, trajectories, exceptions: counts. duration: mean seconds of a rollout.
    Each trajectory metric: its mean over the trajectories that have it. Each group metric: the same, as "group_{name}".
    Metrics that are added up rather than averaged, such as costs, are left out (see `art_nb.metrics`).
    """
    trajectories = [trajectory for group in groups for trajectory in group]
    by_group = [[as_float(trajectory.reward) for trajectory in group] for group in groups]
    rewards = [reward for group in by_group for reward in group]
    deviations = [statistics.stdev(r) if all(map(math.isfinite, r)) else math.nan for r in by_group if len(r) > 1]
    row: dict[str, Any] = {
        **_means(trajectory.metrics for trajectory in trajectories),
        **{f"group_{name}": mean for name, mean in _means(group.metrics for group in groups).items()},
        "groups": len(groups),
        "trajectories": len(trajectories),
        "exceptions": sum(len(group.exceptions) for group in groups),
        "group_rewards": by_group,
    }
    if durations := [took for t in trajectories if (took := rollout_seconds(t)) is not None]:
        row["duration"] = sum(durations) / len(durations)
    if rewards:
        row |= {"reward": sum(rewards) / len(rewards), "reward_min": min(rewards), "reward_max": max(rewards)}
    if deviations:
        row["reward_std"] = sum(deviations) / len(deviations)
    return row


def _means(metrics: Iterable[dict[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for each in metrics:
        for name, value in each.items():
            if not name.startswith(SUMMED_PREFIXES):
                values.setdefault(name, []).append(as_float(value))
    return {name: sum(column) / len(column) for name, column in values.items()}


def counts(groups: list[TrajectoryGroup], split: str) -> dict[str, int]:
    """Return ART's counts of groups, rollouts (including failed ones) and sampled tokens; only for train, val and test."""
    if not groups or split not in ("train", "val", "test"):
        return {}
    found = {
        "data/step_num_scenarios": len(groups),
        "data/step_num_trajectories": sum(len(group) + len(group.exceptions) for group in groups),
        "data/step_num_groups_submitted": len(groups),
    }
    choices = [choice for group in groups for trajectory in group for choice in trajectory.all_choices()]
    if tokens := sum(len(getattr(choice, "token_ids", None) or ()) for choice in choices):
        found["data/step_actor_tokens"] = tokens
    if split == "train":
        found["data/step_num_groups_trainable"] = sum(_has_signal(group) for group in groups)
    return found


def _has_signal(group: TrajectoryGroup) -> bool:
    """Whether the rewards, or the rewards of a turn, differ. A turn that a trajectory did not reach has reward 0."""
    rewards = [[t.reward] if t.turn_rewards is None else t.turn_rewards for t in group]
    return any(len({*turn}) > 1 for turn in zip_longest(*rewards, fillvalue=0.0))


def scenario_ids(groups: Iterable[TrajectoryGroup]) -> list[str]:
    """Return metadata["scenario_id"] of each group, or of its first trajectory that has one; omit groups without one."""
    found = [[each.metadata.get("scenario_id") for each in (group, *group)] for group in groups]
    return [str(next(i for i in ids if i is not None)) for ids in found if any(i is not None for i in ids)]
