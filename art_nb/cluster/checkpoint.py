"""A checkpoint that is to leave the course: which one is meant, and what its model's folder says about it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_nb.storage import checkpoints, logbook

# What of a logged row says how good a model is: not what it cost, nor how it learnt.
_NOT_A_RESULT = ("data/", "time/", "costs/", "throughput/", "group_rewards")
_NOT_A_SCORE = {"step", "split", "time", "groups", "trajectories", "exceptions", "reward_min", "reward_max", "reward_std"}


@dataclass(frozen=True)
class Checkpoint:
    """A step of a model, as a backend keeps it.

    folder: of the adapter; model_folder: of the model, with its history; project, name, step: as they were trained.
    """

    folder: Path
    model_folder: Path
    project: str
    name: str
    step: int

    def __str__(self) -> str:
        return f"{self.project}/{self.name}@{self.step}"

    def settings(self) -> dict[str, Any]:
        """Of the adapter: PEFT's adapter_config.json."""
        return json.loads((self.folder / "adapter_config.json").read_text(encoding="utf-8"))

    def base_model(self) -> str:
        """Folder or hub name of the model that the adapter belongs to."""
        return self.settings()["base_model_name_or_path"]

    def trained_on(self) -> dict[str, int]:
        """How many steps, trajectories and groups of them the adapter was trained on, by what was logged."""
        rows = logbook.rows(self.model_folder)
        rows = [row for row in rows if row["split"] in ("train", "sft") and row["step"] <= self.step]
        return {
            "steps": self.step,
            "trajectories": sum(int(row.get("trajectories", 0)) for row in rows),
            "groups": sum(int(row.get("groups", 0)) for row in rows),
        }

    def results(self) -> dict[str, dict[str, float]]:
        """What was measured and logged at this step, other than in training: split -> metric -> its latest value."""
        found: dict[str, dict[str, float]] = {}
        for row in logbook.rows(self.model_folder):
            if row["step"] == self.step and row["split"] not in ("train", "sft"):
                found[row["split"]] = {
                    name: value
                    for name, value in row.items()
                    if isinstance(value, int | float) and name not in _NOT_A_SCORE and not name.startswith(_NOT_A_RESULT)
                } | {"trajectories": row.get("trajectories", 0)}
        return found

    def conversations(self, most: int) -> list[list[dict[str, Any]]]:
        """What the model was asked while it was trained and measured: up to `most` different conversations, latest first.

        Each ends where the model was to answer.
        """
        found: dict[str, list[dict[str, Any]]] = {}
        for record in reversed(logbook.records(self.model_folder)):
            messages: list[dict[str, Any]] = []
            for turn in record["turns"]:
                if turn["trainable"] and messages:
                    found.setdefault(json.dumps(messages), list(messages))
                messages.append(_message(turn))
            if len(found) >= most:
                break
        return list(found.values())[:most]


def find_checkpoint(asked: str, path: str | Path = ".art") -> Checkpoint:
    """The checkpoint that "NAME", "PROJECT/NAME" or one of these with "@STEP" means, under a backend's `path`.

    Without a step it is the latest.

    Raises: FileNotFoundError when there is none, or several; it says which there are.
    """
    named, _, step = asked.partition("@")
    project, _, name = named.rpartition("/")
    folders = sorted(Path(path).glob(f"{project or '*'}/models/{name}")) if _is_plain(project) and _is_plain(name) else []
    if len(folders) != 1:
        there = sorted(f"{each.parents[1].name}/{each.name}" for each in Path(path).glob("*/models/*"))
        which = "no model" if not folders else f"{len(folders)} models"
        raise FileNotFoundError(
            f"{which} {named!r} in {path}: there are {', '.join(there) or 'none'}. Write PROJECT/NAME, or another --path."
        )
    kept = checkpoints.list_checkpoints(folders[0] / "checkpoints")
    wanted = int(step) if step.isdecimal() else max(kept, default=None) if not step else None
    if wanted is None or wanted not in kept:
        raise FileNotFoundError(f"{named} has checkpoints of steps {kept}, and {step or 'a latest one'!r} is not among them")
    where = checkpoints.step_folder(folders[0] / "checkpoints", wanted)
    return Checkpoint(where, folders[0], folders[0].parents[1].name, folders[0].name, wanted)


def _is_plain(name: str) -> bool:
    return not set(name) & set("*?[]\\/") and name not in (".", "..")


def _message(turn: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": turn["role"], "content": turn["content"]}
    if calls := turn.get("tool_calls"):
        message["tool_calls"] = [{"id": f"call_{i}", "type": "function", "function": call} for i, call in enumerate(calls)]
    if turn["role"] == "tool":
        message["tool_call_id"] = "call_0"
    return message
