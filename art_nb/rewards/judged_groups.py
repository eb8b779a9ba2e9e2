"""Groups whose outcome is known, to hold a judge against: how they are kept, and the course's own.

A line of the file is a group: {"metadata": {...}, "tools": [...] or null, "trajectories": [record, ...]}, the records as in
`art_nb.trajectories.records`, without tokens.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

from art_nb.storage.checkpoints import write_file
from art_nb.trajectories import Trajectory, TrajectoryGroup

DATA = Path(__file__).resolve().parents[2] / "data" / "judged_groups" / "groups.jsonl.gz"


def judged_groups(task: str | None = None, n: int | None = None, path: Path = DATA) -> list[TrajectoryGroup]:
    """The first n (or all) groups of a task ("email_search" or "game_2048"; None: of any), by policies of different skill.

    Each trajectory's `reward` is its true outcome; its metadata name the task, the scenario and the policy.

    Raises: ValueError when there are not so many.
    """
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [row for row in map(json.loads, lines) if task in (None, row["metadata"]["task"])]
    if n is not None and not 0 <= n <= len(rows):
        raise ValueError(f"{path.name} has {len(rows)} groups of the task {task!r}; {n} were asked for.")
    return [_group(row) for row in rows[:n]]


def save_groups(path: Path, groups: Iterable[TrajectoryGroup]) -> None:
    """Write groups as gzipped JSON lines; equal groups make equal files. Their metadata must name the task."""
    text = "".join(json.dumps(_row(group), ensure_ascii=False) + "\n" for group in groups)
    write_file(path, gzip.compress(text.encode(), mtime=0))


def _row(group: TrajectoryGroup) -> dict:
    spoken = [t.model_copy(update={"messages_and_choices": t.messages(), "turn_rewards": None}) for t in group]
    return {
        "metadata": group.metadata,
        "tools": group.trajectories[0].tools,
        "trajectories": [trajectory.record(index=i) for i, trajectory in enumerate(spoken)],
    }


def _group(row: dict) -> TrajectoryGroup:
    trajectories = [Trajectory.from_record(record) for record in row["trajectories"]]
    for trajectory in trajectories:
        trajectory.tools = row["tools"]
    return TrajectoryGroup(trajectories, metadata=row["metadata"])
