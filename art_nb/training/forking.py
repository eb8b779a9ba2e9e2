"""A checkpoint of one model becomes the start of another: which one, and the copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save_file

from art_nb.storage import checkpoints, logbook
from art_nb.training.state import OPTIMIZER


def fork(
    source: Path,
    target: Path,
    *,
    not_after_step: int | None = None,
    best_metric: str | None = None,
    optimizer: bool = True,
    check: Callable[[Path], object] = lambda checkpoint: None,
) -> str:
    """Copy a checkpoint from the folder of one model to that of another, under the same step; returns where it is from.

    not_after_step, best_metric: see `chosen_step`. optimizer: copy what the optimizer remembers as well. check: called
    with the checkpoint; raises where it can not be used. Doing it again changes nothing.

    Raises, before anything is written: FileNotFoundError, ValueError as `chosen_step`; ValueError when the other model
    has been trained.
    """
    step = chosen_step(source, not_after_step, best_metric)
    origin = f"{source.parent.parent.name}/{source.name}@{step}"
    theirs, mine = (checkpoints.step_folder(folder / "checkpoints", step) for folder in (source, target))
    if _origin(mine) != origin:
        if trained := checkpoints.latest(target / "checkpoints"):
            raise ValueError(f"model {target.name!r} is at step {trained} already: fork into a model of another name")
        check(theirs)
        checkpoints.write_folder(mine, lambda folder: _copy(theirs, folder, optimizer, origin))
    return origin


def chosen_step(folder: Path, not_after_step: int | None, best_metric: str | None) -> int:
    """The step to fork from: the latest that a model has a checkpoint of, or the best.

    not_after_step: leaves out later ones. best_metric: "split/name" of a logged metric; the higher, the better.

    Raises: FileNotFoundError: there is no checkpoint. ValueError: none is left, or the metric was not logged for them.
    """
    kept = checkpoints.list_checkpoints(folder / "checkpoints")
    if not kept:
        raise FileNotFoundError(f"there is no checkpoint in {folder / 'checkpoints'}: has that model been trained here?")
    steps = [step for step in kept if not_after_step is None or step <= not_after_step]
    if not steps:
        raise ValueError(f"not_after_step is {not_after_step}: the model has checkpoints of steps {kept} only")
    step = steps[-1] if best_metric is None else logbook.best_step(folder, best_metric, among=steps)
    if step is None:
        raise ValueError(f"best_metric is {best_metric!r}: it was not logged for any of the checkpoints of steps {steps}")
    return step


def _copy(source: Path, folder: Path, optimizer: bool, origin: str) -> None:
    shutil.copytree(source, folder, dirs_exist_ok=True)
    if not optimizer:
        save_file({}, folder / OPTIMIZER)
    state = json.loads((source / "state.json").read_text(encoding="utf-8"))
    # The row of metrics is the other model's, and so is the request that asked for the step.
    state.pop("request", None)
    (folder / "state.json").write_text(json.dumps({**state, "row": None, "forked_from": origin}), encoding="utf-8")


def _origin(checkpoint: Path) -> str | None:
    state = checkpoint / "state.json"
    return json.loads(state.read_text(encoding="utf-8")).get("forked_from") if state.exists() else None
