"""What a run writes beside its checkpoints, and reading it back: history.jsonl, trajectories/, state.json.

    history.jsonl                        one row of metrics a line
    trajectories/{split}/{step:04d}.jsonl   one trajectory record a line (see `records`)
    state.json                           whatever the training loop wants to remember

All of it lies in the model's output folder, and is written whole or not at all.
"""

import json
import re
import statistics
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art_nb.storage.checkpoints import append_jsonl, read_jsonl, write_file
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.trajectories.records import json_number

if TYPE_CHECKING:
    import pandas


def as_groups(
    trajectories: Iterable[Trajectory | BaseException] | Iterable[TrajectoryGroup],
) -> list[TrajectoryGroup]:
    """Groups as they are; loose trajectories and exceptions as one group. Raises: TypeError otherwise."""
    items = list(trajectories)
    groups = [item for item in items if isinstance(item, TrajectoryGroup)]
    members = [item for item in items if isinstance(item, Trajectory | BaseException)]
    if len(groups) == len(items):
        return groups
    if len(members) == len(items):
        return [TrajectoryGroup(members)]
    kinds = sorted({type(item).__name__ for item in items})
    raise TypeError(f"expected either groups or trajectories, all of one kind, but got {', '.join(kinds)}.")


def summary(groups: list[TrajectoryGroup]) -> dict[str, Any]:
    """Metrics of a batch of groups.

    reward, reward_min, reward_max: over all trajectories.
    reward_std: the standard deviation within a group (n - 1), averaged over the groups of two or more.
    group_rewards: per group, per trajectory.
    groups, trajectories, exceptions: counts.
    Each metric of the trajectories: the mean where set. Of the groups: the same, "group_{name}".
    """
    trajectories = [trajectory for group in groups for trajectory in group]
    rewards = [trajectory.reward for trajectory in trajectories]
    spreads = [statistics.stdev(t.reward for t in group) for group in groups if len(group) > 1]
    row: dict[str, Any] = {
        **_means(trajectory.metrics for trajectory in trajectories),
        **{f"group_{name}": mean for name, mean in _means(group.metrics for group in groups).items()},
        "groups": len(groups),
        "trajectories": len(trajectories),
        "exceptions": sum(len(group.exceptions) for group in groups),
        "group_rewards": [[t.reward for t in group] for group in groups],
    }
    if rewards:
        row |= {"reward": sum(rewards) / len(rewards), "reward_min": min(rewards), "reward_max": max(rewards)}
    if spreads:
        row["reward_std"] = sum(spreads) / len(spreads)
    return row


def _means(metrics: Iterable[dict[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for each in metrics:
        for name, value in each.items():
            values.setdefault(name, []).append(float(value))
    return {name: sum(column) / len(column) for name, column in values.items()}


def write_trajectories(folder: Path, groups: list[TrajectoryGroup], split: str, step: int) -> None:
    """Write trajectories/{split}/{step:04d}.jsonl, in place of what was there for that step."""
    rows = [
        trajectory.record(step=step, split=split, group=g, index=i)
        for g, group in enumerate(groups)
        for i, trajectory in enumerate(group)
    ]
    path = folder / "trajectories" / _checked(split) / f"{step:04d}.jsonl"
    write_file(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())


def append_row(folder: Path, split: str, step: int, metrics: dict[str, Any]) -> None:
    """Add a row to history.jsonl."""
    row = {"step": step, "split": _checked(split), "time": time.time()}
    append_jsonl(folder / "history.jsonl", [{**plain_numbers(metrics), **row}])


def rows(folder: Path) -> list[dict[str, Any]]:
    """All rows of history.jsonl, in the order written; none when there is no such file."""
    return read_jsonl(folder / "history.jsonl")


def history(folder: Path) -> "pandas.DataFrame":
    """One row per logged row, one column per metric, with the columns step, split and time first."""
    import pandas

    read = [{name: _number(value) for name, value in row.items()} for row in rows(folder)]
    table = pandas.DataFrame(read, columns=None if read else ["step", "split", "time"])
    first = ["step", "split", "time"]
    return table[first + [name for name in table.columns if name not in first]]


def records(folder: Path, split: str | None = None, step: int | None = None) -> list[dict[str, Any]]:
    """Trajectory records, by split, step, group and index; None takes every split, every step."""
    paths = (folder / "trajectories").glob(f"{'*' if split is None else _checked(split)}/*.jsonl")
    chosen = [path for path in paths if step is None or int(path.stem) == step]
    ordered = sorted(chosen, key=lambda path: (path.parent.name, int(path.stem)))
    return [record for path in ordered for record in read_jsonl(path)]


def trajectory_table(found: list[dict[str, Any]]) -> "pandas.DataFrame":
    """Records as a table: one row per trajectory, its metrics and metadata as columns of their own.

    A metric or fact called like a field of the record (`step`, `reward`, ...) gives way to that field.
    """
    import pandas

    nested = ("metrics", "metadata")
    table = []
    for record in found:
        fields = {name: value for name, value in record.items() if name not in nested}
        numbers = {name: _number(value) for name, value in record["metrics"].items()}
        fields["reward"], fields["advantage"] = _number(record["reward"]), _number(record["advantage"])
        table.append({**{n: fields[n] for n in ("step", "split")}, **record["metadata"], **numbers, **fields})
    return pandas.DataFrame(table)


def best_step(folder: Path, metric: str, among: Collection[int] | None = None) -> int | None:
    """Step with the highest mean of `metric` ("split/name"), the latest of equals; None if there is none.

    among: the steps to choose from; None: all.
    """
    split, slash, name = metric.partition("/")
    if not slash:
        raise ValueError(f'metric {metric!r}: write it as "split/name", e.g. "val/{metric}".')
    values: dict[int, list[float]] = {}
    for row in rows(folder):
        is_number = isinstance(row.get(name), int | float)  # a string is NaN or infinity
        if row["split"] == split and is_number and (among is None or row["step"] in among):
            values.setdefault(row["step"], []).append(row[name])
    return max(values, key=lambda step: (statistics.fmean(values[step]), step), default=None)


def read_state(folder: Path) -> Any:
    """What was written last; None when nothing was."""
    path = folder / "state.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Write state.json in place of what was there."""
    write_file(folder / "state.json", json.dumps(state, indent=2).encode())


def merged(base: dict[str, Any], updates: dict[str, Any]) -> dict[str, Any]:
    """`base` with `updates`, dicts within dicts merged too."""
    both = {
        k: merged(base[k], v)
        for k, v in updates.items()
        if isinstance(v, dict) and isinstance(base.get(k), dict)
    }
    return {**base, **updates, **both}


def _checked(split: str) -> str:
    if not re.fullmatch(r"[\w-]+", split):
        raise ValueError(f"split {split!r}: it names a folder, so use letters, digits, _ and - only.")
    return split


def plain_numbers(value: Any) -> Any:
    """Numbers as JSON can hold them, inside dicts and lists too (numpy's and torch's scalars have `item`)."""
    if isinstance(value, dict):
        return {name: plain_numbers(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(each) for each in value]
    if value is None or isinstance(value, str):
        return value
    return json_number(value.item() if hasattr(value, "item") else value)


def _number(value: Any) -> Any:
    if isinstance(value, list):
        return [_number(each) for each in value]
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value
