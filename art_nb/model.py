"""Models: one that is only prompted (`Model`), and one that learns (`TrainableModel`).

The model is what a rollout is given. It knows its name and its folder; a backend does the work. What it asks of one
is the protocol `Backend`: every backend has these methods, so a notebook changes one line to move to another machine.
"""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol

import pydantic
from openai import AsyncOpenAI
from typing_extensions import TypeVar

from art_nb.inference.http_client import http_client
from art_nb.rollouts.tracebacks import ShortTraceback
from art_nb.storage import logbook
from art_nb.storage.names import folder_name
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.types import TrainConfig, TrainResult

if TYPE_CHECKING:
    import pandas

    from art_nb.dev import InternalModelConfig

ModelConfig = TypeVar("ModelConfig", bound=pydantic.BaseModel | None)
StateType = TypeVar("StateType", bound=dict[str, Any], default=dict[str, Any])
Logged = Iterable[Trajectory | BaseException] | Iterable[TrajectoryGroup]


class Backend(Protocol):
    """What a model asks of where it samples and trains. `LocalBackend` has it; names and arguments are ART's."""

    async def register(self, model: "Model[Any, Any]") -> None:
        """Make ready to keep the model's files."""

    async def close(self) -> None:
        """Let go of every model."""

    async def train(
        self, model: "TrainableModel[Any, Any]", trajectory_groups: Iterable[TrajectoryGroup], **options: Any
    ) -> TrainResult:
        """One training step, and a checkpoint."""

    def client(self, model: "TrainableModel[Any, Any]") -> AsyncOpenAI:
        """A client that asks the model."""

    def output_dir(self, model: "Model[Any, Any]") -> Path:
        """The folder of the model's files."""

    async def _prepare_backend_for_training(
        self, model: "TrainableModel[Any, Any]", config: dict[str, Any] | None
    ) -> tuple[str | None, str | None]: ...

    async def _get_step(self, model: "Model[Any, Any]") -> int: ...

    def _model_inference_name(self, model: "TrainableModel[Any, Any]", step: int | None = None) -> str: ...

    async def _delete_checkpoint_files(self, model: "TrainableModel[Any, Any]", steps_to_keep: list[int]) -> None: ...


class Model(pydantic.BaseModel, Generic[ModelConfig, StateType]):
    """A model behind an OpenAI-compatible server, to compare with and to log.

    name, project: its files lie in {base_path}/{project}/models/{name}/; `storage.names` says what they may be.
    config: anything of yours that a rollout wants to read from the model; a pydantic model.
    inference_base_url, inference_api_key: the server.
    inference_model_name: what the server calls the model; None: `name`.
    entity, id, run_id, report_metrics: kept for ART, not used: metrics go to history.jsonl.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    name: str
    project: str
    entity: str | None = None
    id: str | None = None
    run_id: str | None = None
    config: ModelConfig | None = None
    trainable: bool = False
    inference_api_key: str | None = None
    inference_base_url: str | None = None
    inference_model_name: str | None = None
    base_path: str = ".art"
    report_metrics: list[str] | None = None

    _backend: Any = None
    _client: AsyncOpenAI | None = None

    @pydantic.field_validator("name", "project")
    @classmethod
    def _names_a_folder(cls, given: str, field: pydantic.ValidationInfo) -> str:
        return folder_name(str(field.field_name), given)

    def backend(self) -> "Backend":
        """The backend it is registered with. Raises: ValueError when there is none."""
        if self._backend is None:
            raise ValueError(
                f"model {self.name!r} has no backend yet: call `await model.register(LocalBackend())`."
            )
        return self._backend

    async def register(self, backend: "Backend") -> None:
        """Let `backend` do the model's work and keep its files."""
        await backend.register(self)
        self._backend = backend

    def openai_client(self) -> AsyncOpenAI:
        """A client whose `chat.completions.create(model=model.get_inference_name(), ...)` asks this model."""
        if self._client is None:
            if self.inference_api_key is None or self.inference_base_url is None:
                raise ValueError(f"model {self.name!r} needs an inference_base_url and an inference_api_key.")
            self._client = http_client(self.inference_base_url, self.inference_api_key)
        return self._client

    def get_inference_name(self, step: int | None = None) -> str:
        """The name to send as `model`: of the latest checkpoint, or of that of `step`, as "name@step"."""
        name = self.inference_model_name or self.name
        return name if step is None else f"{name}@{step}"

    def litellm_completion_params(self, step: int | None = None) -> dict[str, Any]:
        """Arguments for `litellm.completion(**params, messages=...)`, at the temperature of training."""
        name = self.get_inference_name(step)
        return {
            "model": f"hosted_vllm/{name}" if self.trainable else name,
            "base_url": self.inference_base_url,
            "api_key": self.inference_api_key,
            "temperature": 1,
        }

    async def get_step(self) -> int:
        """The number of training steps behind it; 0 for a model that is not trained."""
        return await self.backend()._get_step(self) if self.trainable else 0

    async def log(
        self,
        trajectories: Logged | None = None,
        split: str = "val",
        *,
        metrics: dict[str, Any] | None = None,
        step: int | None = None,
    ) -> None:
        """Write trajectories to trajectories/{split}/{step:04d}.jsonl and a row of metrics to history.jsonl.

        Args:
            trajectories: groups, or trajectories of one group; None logs only `metrics`.
            metrics: further numbers, or lists of them, for the row; they win over those of the trajectories.
            step: None takes the model's present step.
        """
        step = await self.get_step() if step is None else step
        row: dict[str, Any] = {}
        if trajectories is not None:
            groups = logbook.as_groups(trajectories)
            logbook.write_trajectories(self._folder(), groups, split, step)
            row = logbook.summary(groups)
        row |= metrics or {}
        if row:
            logbook.append_row(self._folder(), split, step, row)

    def history(self) -> "pandas.DataFrame":
        """Every logged row: columns step, split, time, and one per metric."""
        return logbook.history(self._folder())

    def records(self, split: str | None = None, step: int | None = None) -> list[dict[str, Any]]:
        """Logged trajectories as records (see `art_nb.trajectories.records`); None takes every split, every step."""
        return logbook.records(self._folder(), split, step)

    def trajectories(self, split: str | None = None, step: int | None = None) -> "pandas.DataFrame":
        """Logged trajectories as a table: one row each, metrics and metadata as columns."""
        return logbook.trajectory_table(self.records(split, step))

    def read_state(self) -> StateType | None:
        """What the training loop stored last; None when nothing."""
        return logbook.read_state(self._folder())

    def overwrite_state(self, state: StateType) -> None:
        """Store `state`, which JSON must be able to hold, in place of what was stored."""
        logbook.write_state(self._folder(), state)

    def merge_state(self, state: dict[str, Any]) -> StateType:
        """Store `state` on top of what was stored, dicts within dicts merged; returns the whole."""
        whole: Any = logbook.merged(self.read_state() or {}, state)
        self.overwrite_state(whole)
        return whole

    def _folder(self) -> Path:
        if self._backend is not None:
            return Path(self._backend.output_dir(self))
        return Path(self.base_path) / self.project / "models" / self.name


class TrainableModel(Model[ModelConfig, StateType], Generic[ModelConfig, StateType]):
    """A base model with a LoRA adapter that a backend trains.

    base_model: a checkpoint folder or a name on the Hugging Face hub.
    _internal_config: {"init_args": ..., "peft_args": ..., "trainer_args": ...}; see `art_nb.dev`.
    inference_base_url, inference_api_key: set by `register`; None while nothing is served over HTTP.
    """

    base_model: str
    trainable: bool = True

    _internal_config: Any = None

    def __init__(self, *, _internal_config: "InternalModelConfig | None" = None, **fields: Any) -> None:
        super().__init__(**fields)
        self._internal_config = _internal_config

    async def register(
        self, backend: "Backend", _openai_client_config: dict[str, Any] | None = None
    ) -> None:
        """Let `backend` load the model at its latest checkpoint and make it ready for rollouts."""
        await super().register(backend)
        self._client = None
        url, key = await backend._prepare_backend_for_training(self, _openai_client_config)
        self.inference_base_url, self.inference_api_key = url, key

    def openai_client(self) -> AsyncOpenAI:
        """A client that asks this model in process, no socket; or what it was at a step, or its base model.

        `model=` names which: `name` (the latest), "name@step" while that checkpoint is kept, or `base_model`;
        `client.models.list()` gives them all. Each choice says in `policy` which one sampled it. Raises: ValueError
        before `register`.
        """
        if self._client is None:  # making one costs 20 ms, and a rollout asks for it at every start
            self._client = self.backend().client(self)
        return self._client

    def get_inference_name(self, step: int | None = None) -> str:
        """The name to send as `model`: "name@step" of that step, or of the latest once it is registered."""
        if self._backend is not None:
            return self._backend._model_inference_name(self, step)
        return super().get_inference_name(step)

    async def train(
        self,
        trajectory_groups: Iterable[TrajectoryGroup],
        config: TrainConfig | None = None,
        _config: dict[str, Any] | None = None,
        verbose: bool = False,
    ) -> TrainResult:
        """Train one step on the groups, save a checkpoint, log groups and metrics with split "train".

        _config, verbose: for ART's examples; see `TrainConfig.with_art_options`.
        """
        groups = list(trajectory_groups)
        config = (config or TrainConfig()).with_art_options(_config or {})
        with ShortTraceback():
            return await self.backend().train(self, groups, config=config, _log=True)

    async def delete_checkpoints(self, best_checkpoint_metric: str = "val/reward") -> None:
        """Delete all checkpoints but the latest and the best.

        best_checkpoint_metric: "split/name" of a logged metric; the higher, the better.
        """
        keep = {await self.get_step()}
        best = logbook.best_step(self._folder(), best_checkpoint_metric)
        if best is None:
            warnings.warn(
                f"{best_checkpoint_metric!r} was never logged: keeping only the latest.", stacklevel=2
            )
        else:
            keep.add(best)
        await self.backend()._delete_checkpoint_files(self, sorted(keep))
