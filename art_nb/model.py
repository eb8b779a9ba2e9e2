"""Models: one that is only prompted (`Model`), and one that learns (`TrainableModel`).

The model is what a rollout is given. It knows its name and its folder; a backend does the work. What it asks of one
is the protocol `Backend`: every backend has these methods, so a notebook changes one line to move to another machine.
"""

import time
import warnings
from collections.abc import Iterable
from contextvars import Token
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, overload

import pydantic
from openai import AsyncOpenAI, OpenAI
from typing_extensions import TypeVar

from art_nb.inference.client import InProcessClient
from art_nb.inference.http_client import blocking_http_client, http_client
from art_nb.metrics import ADDED_UP, JUDGE, SCENARIOS, MetricsBuilder
from art_nb.monitoring import SERVICES
from art_nb.monitoring.entry import Entry, snapshots
from art_nb.rollouts.tracebacks import ShortTraceback
from art_nb.storage import logbook
from art_nb.storage.names import folder_name
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.trajectories.accounts import seconds_between
from art_nb.types import TrainConfig, TrainResult, TrainSFTConfig

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

    async def train_sft(
        self,
        model: "TrainableModel[Any, Any]",
        trajectories: Iterable[Trajectory],
        *,
        config: TrainSFTConfig | None = None,
        _log: bool = False,
    ) -> TrainResult:
        """One training step on demonstrations, and a checkpoint."""

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
    report_metrics: services that are shown what is logged as well, by name: "wandb", "langfuse". None: none is, whatever
        keys the environment holds (ART takes a WANDB_API_KEY there as a wish).
    monitors: the same with options, e.g. `[art.monitoring.WandbMonitor(checkpoints=True)]`; see `art_nb.monitoring`.
    entity, run_id: of its run in Weights & Biases; None: the key's default entity, and `name`.
    id: kept for ART, not used.
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
    _builder: MetricsBuilder | None = None
    _logged: float = pydantic.PrivateAttr(default_factory=time.monotonic)  # when the last row of training was
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
                raise ValueError(f"report_metrics: no service {name!r} is known here; there are {', '.join(SERVICES)}")
            if not any(isinstance(monitor, SERVICES[name]) for monitor in self.monitors):
                self.monitors.append(SERVICES[name]())
        return self

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

    @overload
    def openai_client(self, *, sync: Literal[False] = False) -> AsyncOpenAI: ...
    @overload
    def openai_client(self, *, sync: Literal[True]) -> OpenAI: ...
    def openai_client(self, *, sync: bool = False) -> AsyncOpenAI | OpenAI:
        """A client whose `chat.completions.create(model=model.get_inference_name(), ...)` asks this model.

        sync: one for code that does not await; run such agents by `asyncio.to_thread`, for each blocks its thread.
        """
        if self._client is None:  # making one costs 20 ms, and a rollout asks for it at every start
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

    def _new_client(self) -> AsyncOpenAI:
        if self.inference_api_key is None or self.inference_base_url is None:
            raise ValueError(f"model {self.name!r} needs an inference_base_url and an inference_api_key.")
        return http_client(self.inference_base_url, self.inference_api_key)

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
            groups = [] if trajectories is None else groups
            self._append_row(split, step, await self._with_totals(split, row, groups), groups)

    def metrics_builder(self, cost_context: str | None = None) -> MetricsBuilder:
        """Where to add costs, seconds and counts that only you know; the next row that is logged has them.

        cost_context: "eval" for what goes with rows of "val" and "test", another split's name for those; None: "train".
        """
        if self._builder is None:
            self._builder = MetricsBuilder("train")
            self._builder.load_state_dict(logbook.sums_so_far(self._folder()))
        return self._builder if cost_context is None else self._builder.for_cost_context(cost_context)

    def activate_metrics_context(self, cost_context: str) -> Token[MetricsBuilder]:
        """Let `art_nb.metrics.track_api_cost` and judges report to `metrics_builder(cost_context)` from here on."""
        return self.metrics_builder(cost_context).activate()

    async def _with_totals(self, split: str, row: dict[str, Any], groups: list[TrajectoryGroup]) -> dict[str, Any]:
        """The row with what is added up, not averaged (see `art_nb.metrics`)."""
        builder = self.metrics_builder("eval" if split in ("val", "test") else split)
        of_rollouts = [each.metrics for group in groups for each in (group, *group)]
        for metrics in (row, *of_rollouts):
            for name, value in metrics.items():
                if name.startswith(ADDED_UP) and "/cum/" not in name:
                    builder.add_metric(name, value)
        for group in groups:
            if "judge_cost_usd" in group.metrics:
                builder.add_cost(f"{builder.cost_context}/{JUDGE}", group.metrics["judge_cost_usd"])
        usage = self._usage() if split == "train" and (groups or "time/step_trainer_s" in row) else {}
        for name, value in {**usage, **logbook.counts(groups, split)}.items():
            if name not in row:
                builder.add_metric(name, value)
        if split in ("val", "test") and "time/step_eval_s" not in row:
            builder.add_user_timing(step_eval_s=seconds_between(each for group in groups for each in group))
        scenarios = logbook.scenario_ids(groups)
        builder.add_data(scenario_ids=scenarios)
        own = {name: value for name, value in row.items() if not name.startswith(ADDED_UP)}
        return own | ({SCENARIOS: scenarios} if scenarios else {}) | await builder.flush()

    def _usage(self) -> dict[str, float]:
        """What a step of training took: seconds since the last one, and what the machine costs in that time."""
        seconds, self._logged = time.monotonic() - self._logged, time.monotonic()
        price = getattr(self._backend, "automatic_gpu_cost_per_hour_usd", lambda model: None)(self)
        cost = {} if price is None else {"costs/gpu": seconds * price / 3600}
        return {"time/step_wall_s": seconds, **cost}

    def _append_row(
        self, split: str, step: int, row: dict[str, Any], groups: list[TrajectoryGroup], checkpoint: Path | None = None
    ) -> None:
        """Write the row to history.jsonl; then monitors may know. checkpoint: the step's, where it lies here."""
        logbook.append_row(self._folder(), split, step, row)
        if self.monitors:
            trajectories = snapshots(groups, split, step)
            names = self.project, self.name, self.entity, self.run_id
            entry = Entry(*names, self._folder().absolute(), split, step, row, trajectories, checkpoint)
            for monitor in self.monitors:
                monitor.note(entry)

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

    What its `openai_client()` is asked is answered in process, no socket. `model=` names which policy answers: `name`
    (the latest), "name@step" while that checkpoint is kept, or `base_model`; `client.models.list()` gives them all.
    Each choice says in `policy` which one sampled it.
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
        self._client = self._blocking = None
        url, key = await backend._prepare_backend_for_training(self, _openai_client_config)
        self.inference_base_url, self.inference_api_key = url, key

    def _new_client(self) -> AsyncOpenAI:
        return self.backend().client(self)

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

    async def train_sft(
        self,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        _config: dict[str, Any] | None = None,
        verbose: bool = False,
    ) -> TrainResult:
        """Train one step on demonstrations, save a checkpoint, log metrics with split "sft".

        The loss is TRL's: of the assistant's tokens only. What was demonstrated and how well does not matter here: rewards
        are not read. `train` goes on from where this leaves the model, and the other way round.

        _config, verbose: kept for ART, not used.
        """
        with ShortTraceback():
            return await self.backend().train_sft(self, trajectories, config=config, _log=True)

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
