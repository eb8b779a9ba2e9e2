"""RayBackend: samplers and learners as Ray actors, on one or more machines, in place of `LocalBackend()`.

Rollouts run in this process, or in actors with `rollout`. The layout of a model's files is that of a `LocalBackend`, so
either backend can continue a run of the other.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from openai import AsyncOpenAI

from art_nb.backends.base import FileBackend, RegisteredModel, integer
from art_nb.backends.ray.actors import ActorSpec, LearnerActor, SamplerActor
from art_nb.backends.ray.calls import ask, connect, until_ready
from art_nb.backends.ray.pool import Adapters, PooledSampler, SamplerPool
from art_nb.backends.ray.rollout_worker import RolloutWorkers
from art_nb.backends.steps import StepRequest, StepState, numbers, set_advantages
from art_nb.inference.client import InProcessClient
from art_nb.model import Model
from art_nb.training.names import PolicyNames
from art_nb.types import LocalTrainResult, TrainConfig

if TYPE_CHECKING:
    from art_nb.model import TrainableModel

T = TypeVar("T")
START_WARNING = 60.0  # seconds between warnings that list the free resources, while an actor has not started
PATIENCE = 5.0  # seconds that a sampler waits for the next requests of a client that has just received answers
MAX_TRIES = 5  # attempts at a step whose learners die, before the step itself is considered the cause


class ModelActors(RegisteredModel):
    """The actors of one registered model. joined: whether all learners form one group and have loaded the latest checkpoint.

    interrupted: whether a call of `train` was cancelled, so that the learners may be a step ahead of `names.step`.
    """

    def __init__(
        self, names: PolicyNames, folder: Path, learners: list[Any], pool: SamplerPool, adapters: Adapters, spec: ActorSpec
    ):
        super().__init__(names, folder)
        self.learners, self.pool, self.adapters, self.spec = learners, pool, adapters, spec
        self.workers: RolloutWorkers | None = None
        self.joined = self.interrupted = False

    def sampled(self) -> tuple[int, float]:
        return self.pool.tokens_sampled, self.pool.seconds

    def all_actors(self) -> list[Any]:
        """Return the learners, samplers and rollout workers."""
        workers = self.workers.actors if self.workers else []
        return [*self.learners, *(sampler.actor for sampler in self.pool.samplers), *workers]


class RayBackend(FileBackend[ModelActors, LocalTrainResult]):
    """Trains and samples in Ray actors. A notebook that uses it in place of `LocalBackend()` runs unchanged.

    With one sampler and one learner, rollouts in this process sample the same tokens as with a `LocalBackend`. With more,
    the random draws are the same and only rounding differs, because batches are split differently. Ray restarts an actor
    that dies; its requests are sent again, and its training step starts again from the checkpoint. `stream=True` raises.

    Args:
        address: of a running Ray cluster, or "auto"; None takes RAY_ADDRESS from the environment, or starts Ray here.
        samplers: number of samplers per model.
        learners: number of learners per model. Each takes a share of the batch; without dropout, the summed gradient is
            that of a single learner up to rounding.
        workers: number of actors per model that run the rollouts given to `rollout`.
        path: folder that all files are written to, on a file system that all machines share.
        gpu_cost_per_hour_usd, engine, seed, slots, base_models, progress: as in `LocalBackend`; slots per sampler.
        sampler_options, learner_options, worker_options: Ray's options, e.g. `{"num_gpus": 1}`; num_cpus defaults to 1.

    Raises: ImportError when Ray is not installed; ValueError as `LocalBackend`, and for a number of actors below 1.
        `train` also raises RuntimeError when learners die repeatedly.
    """

    def __init__(
        self,
        address: str | None = None,
        samplers: int = 4,
        learners: int = 1,
        *,
        workers: int = 1,
        path: str | os.PathLike | None = None,
        gpu_cost_per_hour_usd: float | None = None,
        engine: str = "auto",
        seed: int = 0,
        slots: int = 128,
        base_models: Mapping[str, str] | None = None,
        sampler_options: Mapping[str, Any] | None = None,
        learner_options: Mapping[str, Any] | None = None,
        worker_options: Mapping[str, Any] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        if min(samplers, learners, workers) < 1:
            raise ValueError(f"samplers={samplers}, learners={learners}, workers={workers}: give 1 or more of each")
        super().__init__(Path(path or ".art").absolute(), progress, gpu_cost_per_hour_usd)
        self.address, self.samplers, self.learners, self.workers = address, samplers, learners, workers
        self.base_models = {name: _absolute(base) for name, base in (base_models or {}).items()}
        sampling = {"seed": integer("seed", seed, -(2**63)), "slots": integer("slots", slots, 1)}
        self._options = {"path": str(self.path), "engine": engine, **sampling}
        self._sampler_options = {"num_cpus": 1, **(sampler_options or {})}
        self._learner_options = {"num_cpus": 1, **(learner_options or {})}
        self._worker_options = {"num_cpus": 1, **(worker_options or {})}
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        self.progress("starting Ray" if address == "local" else f"connecting to Ray at {address}")
        try:
            # Declares enough CPUs to start all actors of one model, even on a machine with fewer cores.
            declared = (os.cpu_count() or 1) + self.samplers + self.learners + self.workers
            self._started_ray = connect(address, declared)
        except ImportError as error:
            raise ImportError("RayBackend needs Ray: pip install 'art-nb[ray]'") from error

    async def close(self) -> None:
        """End the actors. If this backend connected to Ray, disconnect; a cluster that it started ends, too."""
        import ray

        if ray.is_initialized():
            for actors in self.models.values():
                for actor in actors.all_actors():
                    ray.kill(actor)
            if self._started_ray:
                ray.shutdown()
        await super().close()

    async def load(self, model: TrainableModel) -> ModelActors:
        """Start the model's actors and wait until they have loaded it. Raises: as `LocalBackend.load`."""
        import ray

        spec = ActorSpec(
            model={"name": model.name, "project": model.project, "base_model": model.base_model},
            internal=model.internal_config,
            backend={**self._options, "base_models": {model.base_model: _absolute(model.base_model), **self.base_models}},
        )
        learner = ray.remote(LearnerActor).options(max_restarts=-1, **self._learner_options)
        sampler = ray.remote(SamplerActor).options(max_restarts=-1, **self._sampler_options)
        folder = self.output_dir(model)
        names = PolicyNames(model.name, model.base_model, folder / "checkpoints")
        adapters = Adapters(names)
        samplers = [PooledSampler(sampler.remote(spec, PATIENCE), adapters) for _ in range(self.samplers)]
        learners = [learner.remote(spec, rank) for rank in range(self.learners)]
        self.progress(f"starting {self.learners} learners and {self.samplers} samplers that load {model.base_model}")
        # The first learner of a new model writes the checkpoint that the others load.
        names.step, *_ = await self._ready([learners[0], *(sampler.actor for sampler in samplers)])
        await self._ready(learners[1:])
        await self._log_last_step(model, names.step)
        return ModelActors(names, folder, learners, SamplerPool(samplers, names), adapters, spec)

    async def _log_last_step(self, model: Model, step: int) -> None:
        """Log the row of the latest step, if a kill or an interrupt prevented that."""
        state = StepState.read(self.output_dir(model), step)
        if row := state.unlogged_row(self.output_dir(model)):
            row = await model.run_log.complete_row(state.split, row, [])
            model.run_log.append_row(state.split, step, row)

    async def _current(self, model: Model) -> ModelActors:
        """Return a registered model's actors. After an interrupted training step, read the step from the learner first."""
        actors = self.loaded(model)
        if actors.interrupted:
            actors.names.step = await ask(actors.learners[0], "ready")
            await self._log_last_step(model, actors.names.step)
            actors.interrupted = False
        return actors

    async def _get_step(self, model: Model[Any, Any]) -> int:
        return (await self._current(model)).names.step

    async def _ready(self, actors: list[Any]) -> list[Any]:
        """Wait until all actors have started, with a warning every START_WARNING seconds; return the results of `ready`."""
        import ray

        waiting = asyncio.gather(*map(until_ready, actors))
        while not (await asyncio.wait([waiting], timeout=START_WARNING))[0]:
            warnings.warn(
                f"not every Ray actor is ready after {START_WARNING:.0f} s: wait, or start fewer actors. Requests by kind: "
                f"{self._sampler_options, self._learner_options, self._worker_options}; free: {ray.available_resources()}",
                stacklevel=2,
            )
        try:
            return waiting.result()
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error

    def client(self, model: TrainableModel) -> AsyncOpenAI:
        """Return an OpenAI client that samples in the actors, from any policy that has a checkpoint or the base model."""
        actors = self.loaded(model)
        return InProcessClient(actors.pool.create, actors.names.names, actors.loop)

    async def rollout(self, rollout: Callable[..., Awaitable[T]], model: TrainableModel, *arguments: Any) -> T:
        """Run `await rollout(model, *arguments)` in an actor; for environments that need CPUs of their own.

        Gather it like any rollout: `art.TrajectoryGroup(backend.rollout(play, model, seed) for _ in range(8))`. The actor
        passes a model of its own, which can be sampled but not trained and has this `config`. Function, config, arguments
        and result must be picklable. If the actor dies, the rollout starts again. Re-raises the rollout's exception.
        """
        actors = self.loaded(model)
        if actors.workers is None:
            actors.workers = RolloutWorkers(actors.spec, actors.pool, actors.adapters, self.workers, self._worker_options)
            await self._ready(actors.workers.actors)
        return await actors.workers.run(model.config, rollout, arguments)

    async def take_step(self, model: TrainableModel, request: StepRequest) -> LocalTrainResult:
        """Train one step and save a checkpoint. Learners that die restart from the latest checkpoint. Raises: as `train`."""
        actors = await self._current(model)
        try:
            result, advantages = await self._learn(actors, request)
        except (asyncio.CancelledError, KeyboardInterrupt):
            actors.interrupted, actors.joined = True, False
            raise
        set_advantages(request.groups, advantages)
        row = result.metrics | actors.rollout_metrics()
        if request.log:
            row = await self.log_step(model, request, result, Path(result.checkpoint_path or ""))
        actors.reset_counts()
        return LocalTrainResult(result.step, numbers(row), result.checkpoint_path)

    async def _learn(self, actors: ModelActors, request: StepRequest) -> tuple[LocalTrainResult, list | None]:
        """Send the request to the learners, and again with the same key if one dies; return the first learner's reply."""
        import ray

        step, latest = actors.names.step, actors.names.at()
        stored = ray.put(request)
        # One learner is enough for demonstrations, which are few.
        learners = actors.learners if isinstance(request.config, TrainConfig) else actors.learners[:1]
        for _ in range(MAX_TRIES):
            self.progress(f"step {step + 1}: training on a batch of {len(request.data)}")
            replies: list[Any] = await self._join(actors) if len(learners) > 1 else []
            if not replies:
                calls = (ask(learner, "take_step", stored, step) for learner in learners)
                replies = await asyncio.gather(*calls, return_exceptions=True)
            errors = [reply for reply in replies if isinstance(reply, BaseException)]
            actors.joined = learners is actors.learners and not errors
            if not isinstance(replies[0], BaseException):
                result, advantages = replies[0]
                actors.names.step = result.step
                actors.pool.forget(latest)
                return result, advantages
            # When one learner dies, the others raise PeerLost, a ConnectionError.
            own = [error for error in errors if not isinstance(error, ray.exceptions.RayActorError | ConnectionError)]
            if own:
                raise own[0]
            self.progress(f"lost a learner ({errors[0]!r:.80}): repeating the step from the checkpoint")
        raise RuntimeError(f"learners failed {MAX_TRIES} times in step {step + 1} (memory?); see Ray's logs") from errors[0]

    @staticmethod
    async def _join(actors: ModelActors) -> list[BaseException]:
        """Join all learners in one group at the latest checkpoint, unless they have joined. Returns the errors, if any."""
        if actors.joined:
            return []
        try:
            address = await ask(actors.learners[0], "address")
        except Exception as error:
            return [error]
        calls = (ask(learner, "join", len(actors.learners), *address) for learner in actors.learners)
        replies = await asyncio.gather(*calls, return_exceptions=True)
        return [each for each in replies if isinstance(each, BaseException)]

    async def fork(self, model: Model, from_model: str, from_project: str, **options: Any) -> int:
        """Copy a checkpoint of another model under this backend's `path` to a registered model; return that model's step."""
        actors = self.loaded(model)
        actors.names.step = await ask(actors.learners[0], "fork", from_model, from_project, **options)
        actors.adapters.clear()
        actors.joined = False
        return actors.names.step


def _absolute(base: str) -> str:
    """Return a base model's folder as an absolute path, because actors have other working directories; else the hub name."""
    return str(Path(base).absolute()) if Path(base).exists() else base
