"""Models: one that is only prompted (`Model`), and one that is trained (`TrainableModel`).

A model has a name and a log; a backend, which implements the protocol `Backend`, samples and trains.
"""

import warnings
from collections.abc import Iterable
from contextvars import Token
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, overload

import pydantic
from openai import AsyncOpenAI, OpenAI
from typing_extensions import TypeVar

from art_nb.dev import InternalModelConfig
from art_nb.inference.client import InProcessClient
from art_nb.inference.http_client import blocking_http_client, http_client
from art_nb.metrics import MetricsBuilder
from art_nb.monitoring import SERVICES
from art_nb.monitoring.monitor import LogEntry, snapshots
from art_nb.rollouts.tracebacks import ShortTraceback
from art_nb.storage.names import folder_name
from art_nb.storage.run_log import RunLog, RunTotals, merged, plain_numbers, trajectory_table
from art_nb.storage.summary import as_groups, summary
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.types import PolicyName, TrainConfig, TrainResult, TrainSFTConfig

if TYPE_CHECKING:
    import pandas

ModelConfig = TypeVar("ModelConfig", bound=pydantic.BaseModel | None)
StateType = TypeVar("StateType", bound=dict[str, Any], default=dict[str, Any])
Logged = Iterable[Trajectory | BaseException] | Iterable[TrajectoryGroup]


class Backend(Protocol):
    """Interface of the objects that sample and train models, such as `LocalBackend`. Names and arguments are ART's."""

    async def register(self, model: "Model[Any, Any]") -> None:
        """Create the folder of the model's files."""

    async def close(self) -> None:
        """Release every model."""

    async def train(
        self, model: "TrainableModel[Any, Any]", trajectory_groups: Iterable[TrajectoryGroup], **options: Any
    ) -> TrainResult:
        """Train one step on the groups, and save a checkpoint."""

    async def train_sft(
        self, model: "TrainableModel[Any, Any]", trajectories: Iterable[Trajectory], *,
        config: TrainSFTConfig | None = None, _log: bool = False,
    ) -> TrainResult:  # fmt: skip
        """Train one step on demonstrations, and save a checkpoint."""

    def client(self, model: "TrainableModel[Any, Any]") -> AsyncOpenAI:
        """Return a client for the model."""

    def output_dir(self, model: "Model[Any, Any]") -> Path:
        """Return the folder of the model's files."""

    async def _prepare_backend_for_training(
        self, model: "TrainableModel[Any, Any]", config: dict[str, Any] | None
    ) -> tuple[str | None, str | None]: ...

    async def _get_step(self, model: "Model[Any, Any]") -> int: ...

    def _model_inference_name(self, model: "TrainableModel[Any, Any]", step: int | None = None) -> str: ...

    async def _delete_checkpoint_files(self, model: "TrainableModel[Any, Any]", steps_to_keep: list[int]) -> None: ...


class Model(pydantic.BaseModel, Generic[ModelConfig, StateType]):
    """A model behind an OpenAI-compatible server. It is prompted and logged, for comparison, but not trained.

    name, project: see `storage.names` for the allowed names. base_path: the model's files are in
        {base_path}/{project}/models/{name}/; once a backend is registered, its `path` is used instead of `base_path`.
    config: a pydantic model of your own, for rollouts to read. inference_base_url, inference_api_key: of the server.
    inference_model_name: the server's name for the model; None: `name`.
    report_metrics: services that also receive the log: "wandb", "langfuse". None: no service, even if API keys are set.
    monitors: services with options, e.g. `[art.monitoring.WandbMonitor(checkpoints=True)]`; see `art_nb.monitoring`.
    entity, run_id: of the run in Weights & Biases; None: the API key's default entity, and `name`.
    id: accepted for compatibility with ART, not used.
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
    monitors: list[Any] = pydantic.Field(default=[], exclude=True, repr=False)

    _backend: Any = None
    _totals: RunTotals = pydantic.PrivateAttr(default_factory=RunTotals)
    _client: AsyncOpenAI | None = None
    _blocking: OpenAI | None = None

    @pydantic.field_validator("name", "project")
    @classmethod
    def _names_a_folder(cls, given: str, field: pydantic.ValidationInfo) -> str:
        return folder_name(str(field.field_name), given)

    @pydantic.model_validator(mode="after")
    def _monitors_by_name(self) -> Self:
        for name in self.report_metrics or ():
            if name not in SERVICES:
                raise ValueError(f"report_metrics: {name!r} is not a known service; expected one of {', '.join(SERVICES)}")
            if not any(isinstance(monitor, SERVICES[name]) for monitor in self.monitors):
                self.monitors.append(SERVICES[name]())
        if wrong := [monitor for monitor in self.monitors if isinstance(monitor, type) or not hasattr(monitor, "submit")]:
            raise ValueError(f"monitors contain {wrong}: expected e.g. WandbMonitor(); service names go into report_metrics")
        return self

    def backend(self) -> "Backend":
        """Return the backend that the model is registered with. Raises: ValueError when there is none."""
        if self._backend is None:
            raise ValueError(f"model {self.name!r} has no backend yet: call `await model.register(LocalBackend())`.")
        return self._backend

    async def register(self, backend: "Backend") -> None:
        """Register with `backend`, which samples and trains the model. Raises: TypeError when it is not a backend."""
        if isinstance(backend, type) or not hasattr(backend, "register"):
            raise TypeError(f"backend is {backend!r}: expected an instance, e.g. `await model.register(LocalBackend())`")
        await backend.register(self)
        if self._backend is not backend:
            self._backend, self._totals.loaded = backend, False  # the folder may contain other totals

    @overload
    def openai_client(self, *, sync: Literal[False] = False) -> AsyncOpenAI: ...
    @overload
    def openai_client(self, *, sync: Literal[True]) -> OpenAI: ...
    def openai_client(self, *, sync: bool = False) -> AsyncOpenAI | OpenAI:
        """Return a client for `chat.completions.create(model=model.get_inference_name(), ...)`.

        sync: return a blocking client; run agents that use it with `asyncio.to_thread`. Raises: ValueError without a server.
        """
        if self._client is None:  # creating one takes 20 ms, and every rollout needs it
            self._client = self._new_client()
        if not sync:
            return self._client
        if self._blocking is None:
            client = self._client
            if isinstance(client, InProcessClient):
                self._blocking = client.blocking()
            else:
                self._blocking = blocking_http_client(str(client.base_url), client.api_key)
        return self._blocking

    def use_client(self, client: AsyncOpenAI) -> None:
        """Make `openai_client()` return this client, and `openai_client(sync=True)` a blocking one for the same server."""
        self._client, self._blocking = client, None

    def _new_client(self) -> AsyncOpenAI:
        if self.inference_api_key is None or self.inference_base_url is None:
            raise ValueError(f"model {self.name!r} needs an inference_base_url and an inference_api_key: pass both.")
        return http_client(self.inference_base_url, self.inference_api_key)

    def get_inference_name(self, step: int | None = None) -> str:
        """Return the `model` argument of a request: the name of the latest policy, or "name@step" for that of `step`."""
        name = self.inference_model_name or self.name
        return name if step is None else str(PolicyName(name, step))

    def litellm_completion_params(self, step: int | None = None) -> dict[str, Any]:
        """Return arguments for `litellm.completion(**params, messages=...)`, with temperature 1 as in training."""
        name = self.get_inference_name(step)
        return {
            "model": f"hosted_vllm/{name}" if self.trainable else name,
            "base_url": self.inference_base_url,
            "api_key": self.inference_api_key,
            "temperature": 1,
        }

    async def get_step(self) -> int:
        """Return the number of training steps taken; 0 for a model that is not trained."""
        return await self.backend()._get_step(self) if self.trainable else 0

    @property
    def run_log(self) -> RunLog:
        """The metrics, trajectories and state of this run, in the folder of the model's files."""
        if self._backend is None:
            folder, price = Path(self.base_path) / self.project / "models" / self.name, None
        else:
            folder = Path(self._backend.output_dir(self))
            price = getattr(self._backend, "automatic_gpu_cost_per_hour_usd", lambda model: None)(self)
        return RunLog(folder, self._totals, price, self._notify_monitors)

    def _notify_monitors(
        self, split: str, step: int, row: dict[str, Any], groups: list[TrajectoryGroup], checkpoint: Path | None
    ) -> None:
        if self.monitors:
            names = self.project, self.name, self.entity, self.run_id
            trajectories, folder = snapshots(groups, split, step), self.run_log.folder.absolute()
            entry = LogEntry(*names, folder, split, step, row, trajectories, checkpoint)
            for monitor in self.monitors:
                monitor.submit(entry)

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
            trajectories: groups, or the trajectories of one group; None logs only `metrics`.
            metrics: further numbers, or lists of them, for the row; they override those of the trajectories.
            step: None means the model's current step.

        Raises, before anything is written: ValueError for a bad step or split, or a reserved metric; TypeError for a metric
            that JSON cannot hold, or groups mixed with trajectories.
        """
        step, log = await self.get_step() if step is None else step, self.run_log
        if not hasattr(step, "__index__") or step < 0:
            raise ValueError(f"step is {step!r}: expected a non-negative integer")
        if taken := {"step", "split", "time"} & set(metrics or {}):
            raise ValueError(f"metrics contain {', '.join(sorted(taken))}: `log` sets these itself")
        groups, step = as_groups(trajectories or ()), int(step)
        row = (summary(groups) if trajectories is not None else {}) | (metrics or {})
        with log.rollback_on_error():
            row = await log.complete_row(split, row, groups) if row else row
            plain_numbers(row)  # raises before anything is written
            if trajectories is not None:
                log.write_trajectories(groups, split, step)
            if row:
                log.append_row(split, step, row, groups)

    def metrics_builder(self, cost_context: str | None = None) -> MetricsBuilder:
        """Return the builder for your own costs, seconds and counts; the next logged row of its context contains them.

        cost_context: "eval" for rows of "val" and "test", "train" for "train" and "sft", else the split; None: "train".
        """
        return self.run_log.metrics_builder(cost_context)

    def activate_metrics_context(self, cost_context: str) -> Token[MetricsBuilder]:
        """Activate `metrics_builder(cost_context)` for `track_api_cost` and judges, in this task and the tasks it starts."""
        return self.metrics_builder(cost_context).activate()

    def history(self) -> "pandas.DataFrame":
        """Return every logged row: columns step, split, time, and one per metric."""
        return self.run_log.history()

    def records(self, split: str | None = None, step: int | None = None) -> list[dict[str, Any]]:
        """Return logged trajectories as records (see `art_nb.trajectories.records`); None: every split, every step."""
        return self.run_log.records(split, step)

    def trajectories(self, split: str | None = None, step: int | None = None) -> "pandas.DataFrame":
        """Return logged trajectories as a table: one row each, metrics and metadata as columns."""
        return trajectory_table(self.records(split, step))

    def read_state(self) -> StateType | None:
        """Return the state that the training loop stored last; None when there is none."""
        return self.run_log.read_state()

    def overwrite_state(self, state: StateType) -> None:
        """Replace the stored state. Raises: TypeError when `state` cannot be serialised as JSON."""
        self.run_log.write_state(state)

    def merge_state(self, state: dict[str, Any]) -> StateType:
        """Merge `state` into the stored one, nested dicts too; return the result."""
        whole: Any = merged(self.read_state() or {}, state)
        self.overwrite_state(whole)
        return whole


class TrainableModel(Model[ModelConfig, StateType], Generic[ModelConfig, StateType]):
    """A base model with a LoRA adapter that a backend trains.

    base_model: a checkpoint folder or a name on the Hugging Face hub. Raises: ValueError if it equals `name`.
    _internal_config: {"init_args": ..., "peft_args": ..., "trainer_args": ...}; see `art_nb.dev`.
    inference_base_url, inference_api_key: set by `register`; None if the backend does not serve the model over HTTP.

    In requests, `model=` selects the policy: `name` (the latest), "name@step" while that checkpoint is kept, or
    `base_model`; `client.models.list()` lists them. The attribute `policy` of a choice names the policy that sampled it.
    """

    base_model: str
    trainable: bool = True

    _internal_config: Any = None

    def __init__(self, *, _internal_config: InternalModelConfig | None = None, **fields: Any) -> None:
        super().__init__(**fields)
        if self.name == self.base_model:
            raise ValueError(f"name and base_model are both {self.name!r}, but requests select by name: choose another one")
        if unknown := sorted({*(_internal_config or {})} - {*InternalModelConfig.__annotations__}):
            known = ", ".join(InternalModelConfig.__annotations__)
            warnings.warn(f"in _internal_config only {known} are known; no effect: {', '.join(unknown)}", stacklevel=2)
        self._internal_config = _internal_config

    @property
    def internal_config(self) -> dict[str, Any]:
        """The `_internal_config` given; {} when there is none."""
        return dict(self._internal_config or {})

    async def register(self, backend: "Backend", _openai_client_config: dict[str, Any] | None = None) -> None:
        """Register with `backend`, which loads the latest checkpoint and makes the model ready for rollouts."""
        await super().register(backend)
        self._client = self._blocking = None
        url, key = await backend._prepare_backend_for_training(self, _openai_client_config)
        self.inference_base_url, self.inference_api_key = url, key

    def _new_client(self) -> AsyncOpenAI:
        return self.backend().client(self)

    def get_inference_name(self, step: int | None = None) -> str:
        """Return "name@step", by default of the latest step. Before `register`, the default is the name alone."""
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
        """Train one step on the groups, save a checkpoint, and log groups and metrics with split "train".

        _config: see `TrainConfig.with_art_options`. verbose: has no effect. Raises: as `FileBackend.train`.
        """
        config = TrainConfig.of(config).with_art_options(_config or {})
        with ShortTraceback():
            return await self.backend().train(self, trajectory_groups, config=config, _log=True)

    async def train_sft(
        self,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        _config: dict[str, Any] | None = None,
        verbose: bool = False,
    ) -> TrainResult:
        """Train one step on demonstrations, save a checkpoint, and log metrics with split "sft".

        The loss is over the assistant's tokens only; rewards are not read. Starts at the latest checkpoint, as `train` does.
        _config, verbose: have no effect. Raises: as `FileBackend.train`.
        """
        with ShortTraceback():
            return await self.backend().train_sft(self, trajectories, config=config, _log=True)

    async def delete_checkpoints(self, best_checkpoint_metric: str = "val/reward") -> None:
        """Delete all checkpoints but the latest and the best.

        best_checkpoint_metric: "split/name" of a logged metric; the higher, the better. The row of step N of split "train"
            measures policy N-1, which sampled the rollouts of that step. If no kept step has it, only the latest is kept.
        """
        keep, backend = {await self.get_step()}, self.backend()
        kept = await backend.kept_steps(self) if hasattr(backend, "kept_steps") else None
        best = self.run_log.best_step(best_checkpoint_metric, kept)
        if best is None:
            unlogged = f"{best_checkpoint_metric!r} was not logged for any kept step"
            warnings.warn(f"{unlogged}: all checkpoints but the latest are deleted.", stacklevel=2)
        else:
            keep.add(best)
        await backend._delete_checkpoint_files(self, sorted(keep))
