"""What one call of `model.log` or `model.train` wrote, as it was then: what a monitor is handed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai.types.chat.chat_completion import Choice

from art_nb.trajectories import History, Trajectory, TrajectoryGroup


@dataclass(frozen=True)
class Entry:
    """A row of metrics and the trajectories behind it.

    project, model, entity, run: names; entity and run may be None. folder: where the model's files lie.
    row: what history.jsonl was given.
    trajectories: records (`trajectories.records`), with more than these hold: "started", seconds since 1970; of each turn
        of a model "model", who said it, and "usage", {"input": int, "output": int} tokens, where known.
    checkpoint: the folder of the step's checkpoint, where it lies on this machine.
    """

    project: str
    model: str
    entity: str | None
    run: str | None
    folder: Path
    split: str
    step: int
    row: dict[str, Any]
    trajectories: list[dict[str, Any]]
    checkpoint: Path | None = None


def snapshots(groups: Iterable[TrajectoryGroup], split: str, step: int) -> list[dict[str, Any]]:
    """Records of the groups' trajectories for `Entry`; what is changed in a trajectory later does not change them."""
    return [
        _snapshot(trajectory, step=step, split=split, group=g, index=i)
        for g, group in enumerate(groups)
        for i, trajectory in enumerate(group)
    ]


def _snapshot(trajectory: Trajectory, **place: Any) -> dict[str, Any]:
    record = trajectory.record(**place)
    histories: list[History] = [trajectory, *trajectory.additional_histories]
    for turns, history in zip([record["turns"], *record.get("additional_turns", [])], histories, strict=True):
        for turn, item in zip(turns, history.messages_and_choices, strict=True):
            if isinstance(item, Choice):
                turn |= {"model": getattr(item, "policy", None), "usage": _usage(item)}
    return record | {"started": trajectory.start_time.timestamp()}


def _usage(choice: Choice) -> dict[str, int]:
    content = choice.logprobs.content if choice.logprobs else None
    counted = {"input": getattr(choice, "prompt_token_ids", None), "output": getattr(choice, "token_ids", None) or content}
    return {name: len(tokens) for name, tokens in counted.items() if tokens}
