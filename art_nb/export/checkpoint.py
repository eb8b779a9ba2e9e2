"""Find a trained checkpoint by name, and read the metrics and trajectories that its model's folder holds."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_nb.storage import checkpoints
from art_nb.storage.run_log import RunLog
from art_nb.trajectories.records import turn_message
from art_nb.types import PolicyName

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")  # PEFT's; a checkpoint holds more

# Prefixes and names of the columns of history.jsonl that do not measure quality: costs, timing, statistics of training.
_HIDDEN_PREFIXES = ("data/", "time/", "costs/", "throughput/", "group_rewards")
_HIDDEN_NAMES = {"step", "split", "time", "groups", "exceptions", "reward_min", "reward_max", "reward_std"}


def is_hub_name(model: str) -> bool:
    """Return whether `model` has the form OWNER/NAME of a hub model and is no existing path. Does not read the hub."""
    return bool(re.fullmatch(r"\w[\w.-]*/[\w.-]+", model)) and not Path(model).exists()


def adapter_files(folder: str | os.PathLike) -> list[Path]:
    """Return the two files of a LoRA adapter. Raises: FileNotFoundError when one is missing."""
    files = [Path(folder) / name for name in ADAPTER_FILES]
    if missing := [path.name for path in files if not path.is_file()]:
        raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}: expected the folder of an adapter as PEFT saves it")
    return files


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint of one step of a model, as a backend stores it.

    folder: of the checkpoint, with its adapter; model_folder: of the model, with its history.
    """

    folder: Path
    model_folder: Path
    project: str
    name: str
    step: int

    def __str__(self) -> str:
        return str(PolicyName(f"{self.project}/{self.name}", self.step))

    def settings(self) -> dict[str, Any]:
        """Return the contents of the adapter's adapter_config.json."""
        return json.loads((self.folder / "adapter_config.json").read_text(encoding="utf-8"))

    def base_model(self) -> str:
        """Return the folder or hub name of the adapter's base model."""
        return self.settings()["base_model_name_or_path"]

    def trained_on(self) -> dict[str, int]:
        """Return the steps taken, and the logged numbers of trajectories, groups and demonstrations up to this step.

        A step that was taken again, because its checkpoint was damaged, counts once.
        """

        def count(split: str, name: str) -> int:
            rows = [row for row in RunLog(self.model_folder).rows() if row["split"] == split and name in row]
            return sum({row["step"]: int(row[name]) for row in rows if row["step"] <= self.step}.values())

        sampled = {name: count("train", name) for name in ("trajectories", "groups")}
        return {"steps": self.step, **sampled, "demonstrations": count("sft", "trajectories")}

    def results(self) -> dict[str, dict[str, float]]:
        """Return the finite scores logged at this step outside training, and trajectories: split -> name -> latest value."""
        found: dict[str, dict[str, float]] = {}
        rows = [row for row in RunLog(self.model_folder).rows() if row["step"] == self.step]
        taken = [i for i, row in enumerate(rows) if "train_s" in row]  # several if the step was repeated, with new weights
        for row in rows[max(taken[1:], default=0) :]:
            if row["split"] not in ("train", "sft"):
                scores = {
                    name: value
                    for name, value in row.items()
                    if isinstance(value, int | float) and name not in _HIDDEN_NAMES and not name.startswith(_HIDDEN_PREFIXES)
                }
                found[row["split"]] = found.get(row["split"], {"trajectories": 0}) | scores
        return found

    def conversations(self, most: int) -> list[list[dict[str, Any]]]:
        """Return up to `most` different prompts from the model's logged trajectories, split by split, latest steps first.

        A prompt is a list of messages that ends where the model's turn begins.
        """
        found: dict[str, list[dict[str, Any]]] = {}
        for record in reversed(RunLog(self.model_folder).records()):
            messages: list[dict[str, Any]] = []
            for turn in record["turns"]:
                if turn["trainable"] and messages:
                    found.setdefault(json.dumps(messages), list(messages))
                result_of = {"tool_call_id": "call_0"} if turn["role"] == "tool" else {}
                messages.append({**turn_message(turn), **result_of})
            if len(found) >= most:
                break
        return list(found.values())[:most]


def find_checkpoint(name: str, path: str | Path = ".art") -> Checkpoint:
    """Return the checkpoint "NAME", "PROJECT/NAME" or either with "@STEP" (default: the latest) under a backend's `path`.

    Raises: FileNotFoundError when none or several match; the message lists what exists.
    """
    model, _, step = name.partition("@")
    known = {f"{folder.parents[1].name}/{folder.name}": folder for folder in sorted(Path(path).glob("*/models/*"))}
    folders = [folder for full_name, folder in known.items() if model in (full_name, folder.name)]
    if len(folders) != 1:
        which = "no model" if not folders else f"{len(folders)} models"
        expected = f"expected one of {', '.join(known)}" if known else f"there is no model ({Path(path).absolute()})"
        raise FileNotFoundError(f"{which} {model!r} in {path}: {expected}. Give PROJECT/NAME, or another --path.")
    steps = checkpoints.list_checkpoints(folders[0] / "checkpoints")
    wanted = int(step) if step.isdecimal() else max(steps, default=None) if not step else None
    if wanted is None or wanted not in steps:
        raise FileNotFoundError(f"{model} has no checkpoint of step {step or 'latest'!r}: expected one of the steps {steps}")
    folder = checkpoints.step_folder(folders[0] / "checkpoints", wanted)
    return Checkpoint(folder, folders[0], folders[0].parents[1].name, folders[0].name, wanted)
