"""A training step: its request, its state in the checkpoint (state.json), and its advantages."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from art_nb.storage import checkpoints
from art_nb.storage.run_log import RunLog, plain_numbers
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.types import TrainConfig, TrainSFTConfig


@dataclass(frozen=True)
class StepRequest:
    """A request for one training step. data: groups; with a `TrainSFTConfig`, demonstrations.

    log: write a row, and the groups' trajectories. key: unique to the step, so that a repeated request does not train twice.
    """

    data: list[Any]
    config: TrainConfig | TrainSFTConfig
    log: bool
    key: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def groups(self) -> list[TrajectoryGroup]:
        """The groups; [] for demonstrations."""
        return self.data if isinstance(self.config, TrainConfig) else []


@dataclass(frozen=True)
class StepState:
    """The state of a training step, stored in its checkpoint.

    split: "train" or "sft", the kind of the step. row: its metrics; None if `StepRequest.log` was False.
    request: key of the `StepRequest` that the step carried out; None for step 0 and after a fork.
    """

    step: int
    split: str
    row: dict[str, Any] | None = None
    request: str | None = None

    def write(self, checkpoint: Path) -> None:
        """Write state.json into the folder of a checkpoint."""
        state = {name: value for name, value in asdict(self).items() if name != "request" or value}
        (checkpoint / "state.json").write_text(json.dumps(plain_numbers(state), allow_nan=False), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path, step: int) -> Self:
        """Read state.json of a step's checkpoint in a model's folder. Raises: DamagedCheckpoint if missing or damaged."""
        path = checkpoints.step_folder(folder / "checkpoints", step) / "state.json"
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            return cls(step, state.get("split", "train"), state["row"], state.get("request"))
        except (ValueError, KeyError, TypeError, AttributeError, FileNotFoundError) as error:
            raise checkpoints.DamagedCheckpoint(f"{path} is missing or damaged ({error})") from error

    def unlogged_row(self, folder: Path) -> dict[str, Any] | None:
        """Return the row if history.jsonl lacks it, as after a kill between the two writes; else None."""
        key = self.step, self.split, (self.row or {}).get("train_s")  # differs if a damaged step was taken again
        logged = any((row["step"], row["split"], row.get("train_s")) == key for row in RunLog(folder).rows())
        return None if logged else self.row


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """Return the entries of a row that are numbers."""
    return {name: value for name, value in row.items() if isinstance(value, int | float)}


def choice_advantages(trajectory: Trajectory) -> list[float | None]:
    """Return the advantage of each choice, which all of its tokens share; None for a choice that was not trained on."""
    return [next(iter(getattr(choice, "token_advantages", None) or [None])) for choice in trajectory.all_choices()]


def set_advantages(groups: list[TrajectoryGroup], advantages: list[list[list[float | None]]] | None) -> None:
    """Set `token_advantages` of each trained choice ([] without `token_ids`). advantages: by group, trajectory, choice."""
    for group, of_group in zip(groups, advantages or [], strict=advantages is not None):
        for trajectory, of_trajectory in zip(group, of_group, strict=True):
            for choice, advantage in zip(trajectory.all_choices(), of_trajectory, strict=True):
                if advantage is not None:
                    tokens = len(getattr(choice, "token_ids", None) or [])
                    choice.token_advantages = [advantage] * tokens  # type: ignore[attr-defined]  # extra fields are allowed
