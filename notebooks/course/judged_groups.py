"""Groups of trajectories with known outcomes, to measure a judge on: reading and writing, and the course's own groups.

A line of the file is a group: {"metadata": {...}, "tools": [...] or null, "trajectories": [record, ...]}, the records as in
`art_nb.trajectories.records`, without tokens.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from openai.types.chat.chat_completion import Choice

from art_nb.storage.checkpoints import write_file
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.trajectories.records import turn_message

DATA = Path(__file__).resolve().parents[2] / "data" / "judged_groups" / "groups.jsonl.gz"


def judged_groups(task: str | None = None, n: int | None = None, path: Path = DATA) -> list[TrajectoryGroup]:
    """Return the first n (or all) groups of a task: "email_search", "game_2048", or None for any.

    Policies of different skill played them. Each trajectory's `reward` is its true outcome; its metadata name the task, the
    scenario and the policy.

    Raises: ValueError when there are fewer than n, or none of a named task.
    """
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [row for row in map(json.loads, lines) if task in (None, row["metadata"]["task"])]
    least = n if n is not None else 1 if task else 0
    if not 0 <= least <= len(rows):
        raise ValueError(f"{path.name} has {len(rows)} groups of the task {task!r}; expected at least {least}")
    return [_group(row) for row in rows[:n]]


def save_groups(path: Path, groups: Iterable[TrajectoryGroup]) -> None:
    """Write groups as gzipped JSON lines, without turn rewards. Equal groups give equal files.

    The metadata of each group must name its task. The tools are those of its first trajectory.
    """
    text = "".join(json.dumps(_row(group), ensure_ascii=False) + "\n" for group in groups)
    write_file(path, gzip.compress(text.encode(), mtime=0))


def _row(group: TrajectoryGroup) -> dict:
    plain = []
    for t in group:
        others = [each.model_copy(update={"messages_and_choices": each.messages()}) for each in t.additional_histories]
        changes = {"messages_and_choices": t.messages(), "additional_histories": others, "turn_rewards": None}
        plain.append(t.model_copy(update=changes))
    return {
        "metadata": group.metadata,
        "tools": group.trajectories[0].tools,
        "trajectories": [trajectory.record(index=i) for i, trajectory in enumerate(plain)],
    }


def _group(row: dict) -> TrajectoryGroup:
    trajectories = [trajectory_of(record) for record in row["trajectories"]]
    for trajectory in trajectories:
        trajectory.tools = row["tools"]
    return TrajectoryGroup(trajectories, metadata=row["metadata"])


def trajectory_of(record: dict[str, Any]) -> Trajectory:
    """Return the trajectory of a record. Its choices have `token_texts` and `token_logprobs`, but no token ids."""
    rewards = record["turn_rewards"]
    fields = {
        "messages_and_choices": [_item(t, f"{i}") for i, t in enumerate(record["turns"])],
        "additional_histories": [
            {"messages_and_choices": [_item(t, f"{h}_{i}") for i, t in enumerate(turns)]}
            for h, turns in enumerate(record.get("additional_turns", []), start=1)
        ],
        "reward": float(record["reward"]),
        "turn_rewards": None if rewards is None else [float(r) for r in rewards],
        "metrics": {k: float(v) if isinstance(v, str) else v for k, v in record["metrics"].items()},
        "metadata": record["metadata"],
        "logs": record["logs"],
    }
    return Trajectory(**fields)


def _item(turn: dict[str, Any], name: str) -> Any:
    message = turn_message(turn, f"call_{name}_")
    if not turn["trainable"]:
        return message
    extra = {f"token_{name}": list(map(float, turn[name])) for name in ("logprobs", "advantages") if name in turn}
    if "tokens" in turn:
        extra["token_texts"] = list(turn["tokens"])
    reason = "tool_calls" if "tool_calls" in turn else "stop"
    return Choice(index=0, finish_reason=reason, message=message, **extra)
