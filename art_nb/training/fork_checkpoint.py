"""Fork a checkpoint: start a model from a checkpoint of another model."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save_file

from art_nb.storage import checkpoints
from art_nb.training.state import OPTIMIZER
from art_nb.types import PolicyName


def fork_checkpoint(
    source: Path,
    target: Path,
    *,
    not_after_step: int | None = None,
    optimizer: bool = True,
    check: Callable[[Path], object] = lambda checkpoint: None,
) -> None:
    """Copy a checkpoint from one model's folder to another's, at the same step.

    Takes the latest checkpoint up to `not_after_step`. optimizer: copy the optimizer state, too. check: called with the
    checkpoint's folder; raises if it cannot be used. Forking again from the same origin changes nothing.

    Raises, before anything is written: FileNotFoundError: there is no checkpoint. ValueError: all are later, or the target
    model has been trained. Any exception of `check`.
    """
    checkpoints.finish_replacements(source / "checkpoints")
    if not (found := checkpoints.list_checkpoints(source / "checkpoints")):
        folder = source.relative_to(source.parents[2]).as_posix()  # clients of a server must not see the path above it
        raise FileNotFoundError(f"there is no checkpoint in {folder}/checkpoints: has that model been trained here?")
    steps = [step for step in found if not_after_step is None or step <= not_after_step]
    if not steps:
        raise ValueError(f"not_after_step is {not_after_step}: the model only has checkpoints of steps {found}")
    step = steps[-1]
    origin = str(PolicyName(f"{source.parent.parent.name}/{source.name}", step))
    old, new = (checkpoints.step_folder(folder / "checkpoints", step) for folder in (source, target))
    if (new / "state.json").exists() and _read_state(new).get("forked_from") == origin:
        return
    if trained := checkpoints.latest(target / "checkpoints"):
        raise ValueError(f"model {target.name!r} is already at step {trained}: fork into a model with another name")
    check(old)

    def fill(folder: Path) -> None:
        shutil.copytree(old, folder, dirs_exist_ok=True)
        if not optimizer:
            save_file({}, folder / OPTIMIZER)
        # Neither the row of metrics nor the key of the training request belongs to the new model.
        state = {**_read_state(old), "row": None, "forked_from": origin}
        state.pop("request", None)
        (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")

    checkpoints.write_folder(new, fill)


def _read_state(checkpoint: Path) -> dict:
    return json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
