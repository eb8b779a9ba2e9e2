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

from art_nb.metrics import ADDED_UP, SCENARIOS, UNIQUE
from art_nb.storage.checkpoints import append_jsonl, read_jsonl, write_file
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.trajectories.accounts import seconds
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
    groups, trajectories, exceptions: counts. duration: seconds of a rollout, the mean.
    Each metric of the trajectories: the mean where set. Of the groups: the same, "group_{name}". What is added up instead
    (`art_nb.metrics`), costs say, is left out.
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
    if durations := [took for t in trajectories if (took := seconds(t)) is not None]:
        row["duration"] = sum(durations) / len(durations)
    if rewards:
        row |= {"reward": sum(rewards) / len(rewards), "reward_min": min(rewards), "reward_max": max(rewards)}
    if spreads:
        row["reward_std"] = sum(spreads) / len(spreads)
    return row


def _means(metrics: Iterable[dict[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for each in metrics:
        for name, value in each.items():
            if name.startswith(ADDED_UP):
                continue
            values.setdefault(name, []).append(float(value))
    return {name: sum(column) / len(column) for name, column in values.items()}


def counts(groups: list[TrajectoryGroup], split: str) -> dict[str, int]:
    """How much a row of groups stands for, under ART's names; of splits that train or evaluate."""
    if not groups or split not in ("train", "val", "test"):
        return {}
    found = {
        "data/step_num_scenarios": len(groups),
        "data/step_num_trajectories": sum(len(group) + len(group.exceptions) for group in groups),
        "data/step_num_groups_submitted": len(groups),
    }
    histories = [history for group in groups for t in group for history in (t, *t.additional_histories)]
    if tokens := sum(len(getattr(choice, "token_ids", ())) for history in histories for choice in history.choices()):
        found["data/step_actor_tokens"] = tokens
    if split == "train":
        found["data/step_num_groups_trainable"] = sum(len({t.reward for t in group}) > 1 for group in groups)
    return found


def scenario_ids(groups: Iterable[TrajectoryGroup]) -> list[str]:
    """metadata["scenario_id"] of each group, or of a trajectory of it, where there is one."""
    found = [[each.metadata.get("scenario_id") for each in (group, *group)] for group in groups]
    return [str(next(i for i in ids if i is not None)) for ids in found if any(i is not None for i in ids)]


def sums_so_far(folder: Path) -> dict[str, Any]:
    """The sums over the run of the rows in history.jsonl, for `MetricsBuilder.load_state_dict`."""
    read = rows(folder)
    sums = {name: value for row in read for name, value in row.items() if "/cum/" in name and isinstance(value, int | float)}
    sums.pop(UNIQUE, None)
    return {"cum_state": sums, "unique_scenario_ids": [each for row in read for each in row.get(SCENARIOS, ())]}


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

    read = [{name: number(value) for name, value in row.items()} for row in rows(folder)]
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
        numbers = {name: number(value) for name, value in record["metrics"].items()}
        fields["reward"], fields["advantage"] = number(record["reward"]), number(record["advantage"])
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


def number(value: Any) -> Any:
    """What JSON had to spell as a string is a float again, in lists too."""
    if isinstance(value, list):
        return [number(each) for each in value]
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value
