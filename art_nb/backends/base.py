"""FileBackend: the base class of all backends.

    {path}/{project}/models/{name}/history.jsonl, trajectories/, state.json    see `storage.run_log`
    {path}/{project}/models/{name}/checkpoints/{step:04d}/                     see `loaded_model`

Does not depend on where a model is sampled and trained.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel

from art_nb.backends.steps import StepRequest
from art_nb.model import Model, TrainableModel
from art_nb.storage import checkpoints
from art_nb.storage.summary import summary
from art_nb.training.names import PolicyNames
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.types import TrainConfig, TrainResult, TrainSFTConfig


class RegisteredModel:
    """A model that a backend has loaded.

    loop: the event loop that answers blocking clients' requests. base_and_config: `base_model` and `_internal_config`.
    """

    def __init__(self, names: PolicyNames, folder: Path):
        self.names, self.folder = names, folder
        self.loop: asyncio.AbstractEventLoop | None = None
        self.base_and_config: tuple[Any, ...] = ()
        self._counted = 0, 0.0

    def sampled(self) -> tuple[int, float]:
        """Return the tokens sampled since the model was loaded, and the seconds spent; (0, 0.0) if not measured."""
        return 0, 0.0

    def reset_counts(self) -> None:
        """Restart the counts of `rollout_metrics` at 0. In process, the first gather call of a step also does this."""
        self._counted = self.sampled()

    def rollout_metrics(self) -> dict[str, float]:
        """Return seconds and tokens per second of sampling since the last `reset_counts`; {} if nothing was sampled."""
        tokens, seconds = (now - then for now, then in zip(self.sampled(), self._counted, strict=True))
        if not seconds:
            return {}
        return {"rollout_s": seconds, "rollout_tokens_per_s": tokens / seconds, "time/step_actor_s": seconds}


def integer(name: str, value: Any, least: int) -> int:
    """Return an option as an int. Raises: ValueError when it is not an integer from `least` to 2**63 - 1."""
    if not hasattr(value, "__index__") or not least <= value < 2**63:
        raise ValueError(f"{name} is {value!r}: expected an integer from {least} to {2**63 - 1}")
    return int(value)


def _list_of(kind: type, given: Any) -> list[Any]:
    """Return the items as a list. Raises: TypeError when one is not a `kind`, or `given` is a single object."""
    alone = isinstance(given, str | Mapping | BaseModel) or not isinstance(given, Iterable)  # BaseModel iterates over fields
    items = [] if alone else list(given)
    wrong = {type(given)} if alone else {type(each) for each in items if not isinstance(each, kind)}
    if wrong:
        names = ", ".join(sorted(each.__name__ for each in wrong))
        gather = ": gather them first (`await art.gather_trajectory_groups(...)`)" if "PendingGroup" in names else ""
        raise TypeError(f"expected a list of {kind.__name__}, got {names}{gather}")
    return items


M = TypeVar("M", bound=RegisteredModel)
R = TypeVar("R", bound=TrainResult)


class FileBackend(ABC, Generic[M, R]):
    """Registers models, stores their files, and passes training steps to `take_step`.

    path: None: ".art". gpu_cost_per_hour_usd: for the metric costs/gpu. progress: called with a text before long operations.

    Raises: ValueError when `path` is a file or below one, or the cost is negative or not a number.
    """

    def __init__(
        self,
        path: str | os.PathLike | None,
        progress: Callable[[str], None] | None,
        gpu_cost_per_hour_usd: float | None = None,
    ) -> None:
        self.path = Path(path or ".art")
        if files := [each for each in (self.path, *self.path.parents) if each.is_file()]:
            raise ValueError(f"path is {str(self.path)!r}, but {str(files[0])!r} is a file: give a folder, new or existing")
        self.gpu_cost_per_hour_usd = price = gpu_cost_per_hour_usd
        if price is not None and not (isinstance(price, Real) and price >= 0):
            raise ValueError(f"gpu_cost_per_hour_usd is {price!r}: expected US dollars, 0 or more")
        self.progress = progress or (lambda text: None)
        self.models: dict[tuple[str, str], M] = {}  # by project and name

    @abstractmethod
    async def load(self, model: TrainableModel) -> M:
        """Load a model at its latest checkpoint."""

    @abstractmethod
    async def take_step(self, model: TrainableModel, request: StepRequest) -> R:
        """Train one step and save a checkpoint."""

    @abstractmethod
    async def fork(self, model: Model, from_model: str, from_project: str, **options: Any) -> int:
        """Copy a checkpoint of another model to this one; return this model's step. options: as in `fork_checkpoint`."""

    async def register(self, model: Model[Any, Any]) -> None:
        """Create the folder of the model's files."""
        self.output_dir(model).mkdir(parents=True, exist_ok=True)

    def output_dir(self, model: Model[Any, Any]) -> Path:
        """Return the folder of the model's files."""
        return self.path / model.project / "models" / model.name

    def automatic_gpu_cost_per_hour_usd(self, model: Model[Any, Any]) -> float | None:
        """Return `gpu_cost_per_hour_usd`."""
        return self.gpu_cost_per_hour_usd

    async def close(self) -> None:
        """Release every model."""
        self.models.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _prepare_backend_for_training(
        self, model: TrainableModel, config: dict[str, Any] | None = None
    ) -> tuple[str | None, str | None]:
        """Load the model unless it is loaded. Returns base url and api key; (None, None) in process.

        Raises: ValueError when it is loaded with another base model or config; as `load`.
        """
        key, base_and_config = (model.project, model.name), (model.base_model, model.internal_config)
        if key not in self.models:
            self.models[key] = await self.load(model)
            self.models[key].base_and_config = base_and_config
        if self.models[key].base_and_config != base_and_config:
            raise ValueError(
                f"model {model.name!r} is loaded with another base_model or _internal_config: give this one another name, "
                "or close the backend first"
            )
        self.models[key].loop = asyncio.get_running_loop()
        return None, None

    def loaded(self, model: Model[Any, Any]) -> M:
        """Return the backend's state of a registered model. Raises: ValueError when it is not registered."""
        found = self.models.get((model.project, model.name))
        if found is None:
            raise ValueError(f"model {model.name!r} is not registered here: call `await model.register(backend)` first")
        return found

    async def _get_step(self, model: Model[Any, Any]) -> int:
        return self.loaded(model).names.step

    def _model_inference_name(self, model: TrainableModel, step: int | None = None) -> str:
        return self.loaded(model).names.at(step)

    async def train(
        self,
        model: TrainableModel,
        trajectory_groups: Iterable[TrajectoryGroup],
        *,
        config: TrainConfig | None = None,
        _log: bool = False,
        **art_options: Any,
    ) -> R:
        """Train one step on the groups and save a checkpoint.

        art_options: learning_rate=..., kl_penalty_coef=... and other options of ART's `backend.train`.

        Raises, with model and files unchanged:
            ValueError: the groups cannot be trained on; the message names the trajectory, if one is the cause.
            TypeError: they are not groups. FloatingPointError: loss or gradient is not finite, or weights become too large.
        """
        config = TrainConfig.of(config).with_art_options(art_options)
        return await self.take_step(model, StepRequest(_list_of(TrajectoryGroup, trajectory_groups), config, _log))

    async def train_sft(
        self,
        model: TrainableModel,
        trajectories: Iterable[Trajectory],
        *,
        config: TrainSFTConfig | None = None,
        _log: bool = False,
    ) -> R:
        """Train one step on demonstrations, with one optimizer step per batch; save a checkpoint. Raises: as `train`."""
        config = TrainSFTConfig.of(config)
        return await self.take_step(model, StepRequest(_list_of(Trajectory, trajectories), config, _log))

    async def log_step(
        self, model: TrainableModel, request: StepRequest, result: TrainResult, checkpoint: Path | None = None
    ) -> dict[str, Any]:
        """Append to history.jsonl the row of a step that another process has taken; return the row."""
        loaded, split = self.loaded(model), "train" if isinstance(request.config, TrainConfig) else "sft"
        row = (summary(request.groups) if request.groups else {}) | result.metrics | loaded.rollout_metrics()
        with model.run_log.rollback_on_error():
            row = await model.run_log.complete_row(split, row, request.groups)
            model.run_log.append_row(split, result.step, row, request.groups, checkpoint)
        loaded.reset_counts()
        return row

    async def _experimental_fork_checkpoint(
        self,
        model: Model,
        from_model: str,
        from_project: str | None = None,
        from_s3_bucket: str | None = None,
        not_after_step: int | None = None,
        verbose: bool = False,
        prefix: str | None = None,
        *,
        optimizer: bool = True,
    ) -> None:
        """Start `model` from a checkpoint of another model of this backend, at the same step.

        Args:
            from_project: None: the model's own. not_after_step: ignore later checkpoints. optimizer: also copy its state.
            from_s3_bucket, prefix: ART's storage, not available here: any value but None raises ValueError.

        Raises: as `training.fork_checkpoint`, but ValueError from a server; ValueError if a loaded model's adapter differs;
            RuntimeError if another process has `model` loaded.
        """
        if from_s3_bucket is not None or prefix is not None:
            raise ValueError("from_s3_bucket, prefix: S3 is not supported; copy the model's folder to the backend's path")
        project = from_project or model.project
        step = await self.fork(model, from_model, project, not_after_step=not_after_step, optimizer=optimizer)
        if verbose:
            print(f"{model.name!r}, forked from {project}/{from_model}, is at step {step}")

    async def kept_steps(self, model: TrainableModel) -> list[int]:
        """Return the steps that have a checkpoint, ascending."""
        return checkpoints.list_checkpoints(self.loaded(model).folder / "checkpoints")

    async def _delete_checkpoint_files(self, model: TrainableModel, steps_to_keep: list[int]) -> None:
        step, folder = self.loaded(model).names.step, self.loaded(model).folder / "checkpoints"
        # After a step whose row could not be logged, the latest checkpoint is later than `step`.
        checkpoints.prune(folder, {*steps_to_keep, step, *(await self.kept_steps(model))[-1:]})
