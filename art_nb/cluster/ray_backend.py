"""RayBackend: samplers and learner as Ray actors, on this machine or many, in the place of `LocalBackend()`.

Rollouts run here, or by `rollout` in actors too. Every file of a model lies where a `LocalBackend` has it, so either goes on
where the other stopped.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from openai import AsyncOpenAI

from art_nb.backend import unlogged
from art_nb.cluster.actors import LearnerActor, Request, SamplerActor, Spec
from art_nb.cluster.adapters import Adapters
from art_nb.cluster.calls import ask, connect, every
from art_nb.cluster.pool import Member, Pool
from art_nb.cluster.rollout_worker import RolloutWorkers
from art_nb.inference.client import InProcessClient
from art_nb.model import Model
from art_nb.remote.backend import note_advantages
from art_nb.storage import checkpoints, logbook
from art_nb.training.names import Names
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.types import LocalTrainResult, TrainConfig, TrainSFTConfig

if TYPE_CHECKING:
    from art_nb.model import TrainableModel

T = TypeVar("T")
SILENT = 60.0  # seconds after which it is said what is waited for
PATIENCE = 5.0  # seconds that a sampler waits for rollouts that it has just answered
TRIES = 5  # times that a step is begun anew, before it is taken for what kills its learner


@dataclass
class Spread:
    """One registered model: the actors that work for it.

    workers: where rollouts run that `RayBackend.rollout` sends away; None before the first.
    met: all learners are together, and hold what the latest checkpoint holds.
    sampled: the pool's tokens and seconds when the last step ended.
    """

    names: Names
    folder: Path
    learners: list[Any]
    pool: Pool
    adapters: Adapters
    spec: Spec
    workers: RolloutWorkers | None = None
    met: bool = False
    loop: asyncio.AbstractEventLoop | None = None
    sampled: tuple[int, float] = (0, 0.0)


class RayBackend:
    """Trains and samples in Ray's actors; a notebook that has it in the place of `LocalBackend()` runs the same.

    With one sampler the same is sampled, token for token, as in process. With several the draws are the same as well: only
    rounding differs, by who is decoded together. An actor that dies is started anew by Ray. Its conversations are asked
    again, its step goes on from the checkpoint, and whatever was counted is not counted again.

    Args:
        address: of a running Ray cluster, or "auto"; None takes RAY_ADDRESS of the environment, or starts Ray here.
        samplers: how many sample each model.
        learners: how many train it. Each takes its share of a batch; without dropout their gradient is that of one.
        path: folder of everything that is written. On several machines it must be one that all of them see.
        gpu_cost_per_hour_usd, engine, seed, slots, base_models, progress: as of `LocalBackend`, the slots of each sampler.
        workers: how many run the rollouts of each model that are given to `rollout`.
        sampler_options, learner_options, worker_options: Ray's, for each actor: `{"num_gpus": 1}`, say. Each takes one CPU
            unless told.

    Raises: ImportError when Ray is not installed.
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
        self.address, self.samplers, self.learners, self.workers = address, samplers, learners, workers
        self.path = Path(path or ".art").absolute()
        self.gpu_cost_per_hour_usd = gpu_cost_per_hour_usd
        self.base_models = {name: _placed(base) for name, base in (base_models or {}).items()}
        self._options = {"path": str(self.path), "engine": engine, "seed": seed, "slots": slots}
        self._sampler_options = {"num_cpus": 1, **(sampler_options or {})}
        self._learner_options = {"num_cpus": 1, **(learner_options or {})}
        self._worker_options = {"num_cpus": 1, **(worker_options or {})}
        self.progress = progress or (lambda text: None)
        self._spread: dict[Path, Spread] = {}
        self._started_ray = False
        self._connect()

    def _connect(self) -> None:
        try:
            import ray
        except ImportError as error:
            raise ImportError("RayBackend needs Ray: pip install 'art-nb[ray]'") from error
        if ray.is_initialized():
            return
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        self.progress("starting Ray" if address == "local" else f"connecting to Ray at {address}")
        # Actors are let in however few cores there are, and share them.
        connect(address, (os.cpu_count() or 1) + self.samplers + self.learners)
        self._started_ray = True

    async def register(self, model: Model[Any, Any]) -> None:
        """Make the model's folder."""
        (self.output_dir(model) / "checkpoints").mkdir(parents=True, exist_ok=True)

    def automatic_gpu_cost_per_hour_usd(self, model: Model[Any, Any]) -> float | None:
        """What was given for it."""
        return self.gpu_cost_per_hour_usd

    def output_dir(self, model: Model[Any, Any]) -> Path:
        """Where the model's files lie."""
        return self.path / model.project / "models" / model.name

    async def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        import ray

        if ray.is_initialized():
            for spread in self._spread.values():
                workers = spread.workers.actors if spread.workers else []
                for actor in (*spread.learners, *(member.actor for member in spread.pool.members), *workers):
                    ray.kill(actor)
            if self._started_ray:
                ray.shutdown()
        self._spread.clear()

    async def __aenter__(self) -> RayBackend:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _prepare_backend_for_training(
        self, model: TrainableModel, config: dict[str, Any] | None = None
    ) -> tuple[str | None, str | None]:
        """Start the model's actors. Returns base url and api key: None, no socket is open."""
        folder = self.output_dir(model)
        if folder not in self._spread:
            self._spread[folder] = await self._start(model, folder)
        self._spread[folder].loop = asyncio.get_running_loop()
        return None, None

    async def _start(self, model: TrainableModel, folder: Path) -> Spread:
        import ray

        spec = Spec(
            model={"name": model.name, "project": model.project, "base_model": model.base_model},
            internal=dict(model._internal_config or {}),
            backend={**self._options, "base_models": {model.base_model: _placed(model.base_model), **self.base_models}},
        )
        learner = ray.remote(LearnerActor).options(max_restarts=-1, **self._learner_options)
        sampler = ray.remote(SamplerActor).options(max_restarts=-1, **self._sampler_options)
        names = Names(model.name, model.base_model, folder / "checkpoints")
        adapters = Adapters(names)
        members = [Member(sampler.remote(spec, PATIENCE), adapters) for _ in range(self.samplers)]
        learners = [learner.remote(spec, rank) for rank in range(self.learners)]
        self.progress(f"Ray starts {self.learners} learners and {self.samplers} samplers, each loads {model.base_model}")
        # The first learner of a new model writes the checkpoint that the others begin with.
        first, *_ = await self._heard_of([actor.ready.remote() for actor in (learners[0], *(m.actor for m in members))])
        names.step = first
        await self._heard_of([learner.ready.remote() for learner in learners[1:]])
        split, row = unlogged(folder, names.step)
        if row is not None:
            model._append_row(split, names.step, await model._with_totals("train", row, []), [])
        return Spread(names, folder, learners, Pool(members, names), adapters, spec)

    async def _heard_of(self, refs: list[Any]) -> list[Any]:
        """What actors say first. While Ray finds no place for them it is said what is missing."""
        import ray

        waiting = asyncio.gather(*refs)
        while not (await asyncio.wait([waiting], timeout=SILENT))[0]:
            warnings.warn(
                f"for {SILENT:.0f} s Ray has not started every actor; each needs {self._sampler_options} or "
                f"{self._learner_options}, and free are {ray.available_resources()}",
                stacklevel=2,
            )
        try:
            return waiting.result()
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error

    def client(self, model: TrainableModel) -> AsyncOpenAI:
        """An OpenAI client that asks the model's samplers, as it is now or was at any kept step, or its base model."""
        spread = self._of(model)
        return InProcessClient(spread.pool.create, spread.names.names, spread.loop)

    async def rollout(self, rollout: Callable[..., Awaitable[T]], model: TrainableModel, *arguments: Any) -> T:
        """What `await rollout(model, *arguments)` returns, run in an actor: for environments that need processors.

        Gather it as any rollout: `art.TrajectoryGroup(backend.rollout(play, model, seed) for _ in range(8))`. There the
        model can be asked, not trained. Function, arguments and result must pickle. When the actor dies it begins anew.

        Raises: what the rollout raises.
        """
        spread = self._of(model)
        if spread.workers is None:
            spread.workers = RolloutWorkers(spread.spec, spread.pool, spread.adapters, self.workers, self._worker_options)
        return await spread.workers.run(rollout, arguments)

    async def _get_step(self, model: Model[Any, Any]) -> int:
        return self._of(model).names.step

    def _model_inference_name(self, model: TrainableModel, step: int | None = None) -> str:
        names = self._of(model).names
        return names.at(names.step if step is None else step)

    async def train(
        self,
        model: TrainableModel,
        trajectory_groups: Iterable[TrajectoryGroup],
        *,
        config: TrainConfig | None = None,
        _log: bool = False,
        **art_options: Any,
    ) -> LocalTrainResult:
        """One training step on the groups, and a checkpoint. A learner that dies goes on from the last one.

        art_options: learning_rate=..., kl_penalty_coef=... and other options of ART's `backend.train`.

        Raises:
            ValueError: the groups can't be trained on; it names the trajectory.
            FloatingPointError: the loss is not finite.
            RuntimeError: a learner died again and again.
            Model and files are unchanged in all cases.
        """
        config, groups = (config or TrainConfig()).with_art_options(art_options), list(trajectory_groups)
        result, advantages = await self._learn(model, "train", groups, config, _log)
        note_advantages(groups, advantages)
        return await self._logged(model, result, groups) if _log else result

    async def train_sft(
        self,
        model: TrainableModel,
        trajectories: Iterable[Trajectory],
        *,
        config: TrainSFTConfig | None = None,
        _log: bool = False,
    ) -> LocalTrainResult:
        """One training step on demonstrations, of an optimizer step for each batch of them, and a checkpoint.

        Raises: as `train`.
        """
        result, _ = await self._learn(model, "train_sft", list(trajectories), config, _log)
        return await self._logged(model, result, []) if _log else result

    async def _learn(self, model: TrainableModel, method: str, data: list, config: Any, log: bool) -> Any:
        """What the first learner answers; all are asked again, under the same key, when one died."""
        import ray

        spread = self._of(model)
        step, latest = spread.names.step, spread.names.at(spread.names.step)
        request = ray.put(Request(secrets.token_hex(16), step, data, config, log))
        together = spread.learners if method == "train" else spread.learners[:1]  # demonstrations are few
        for _ in range(TRIES):
            self.progress(f"step {step + 1}: training on {len(data)} groups or trajectories")
            absent = await self._meet(spread) if len(together) > 1 else []
            replies = absent or await every(ask(learner, method, request) for learner in together)
            errors = [reply for reply in replies if isinstance(reply, BaseException)]
            spread.met = together is spread.learners and not errors
            if not isinstance(replies[0], BaseException):
                result, advantages = replies[0]
                spread.names.step = result.step
                spread.pool.forget(latest)
                return result, advantages
            # Where one died, the others say that they are parted from it.
            own = [error for error in errors if not isinstance(error, ray.exceptions.RayActorError | ConnectionError)]
            if own:
                raise own[0]
            self.progress("a learner died: the step begins anew, from the checkpoint")
        raise RuntimeError(f"a learner died {TRIES} times in step {step + 1}: does it need more memory? See Ray's logs")

    @staticmethod
    async def _meet(spread: Spread) -> list[BaseException]:
        """Bring all learners together at the latest checkpoint, unless they are. Returns what kept them from it."""
        if spread.met:
            return []
        (place,) = await every([ask(spread.learners[0], "place")])
        if isinstance(place, BaseException):
            return [place]
        came = await every(ask(learner, "meet", len(spread.learners), *place) for learner in spread.learners)
        return [each for each in came if isinstance(each, BaseException)]

    async def _logged(
        self, model: TrainableModel, result: LocalTrainResult, groups: list[TrajectoryGroup]
    ) -> LocalTrainResult:
        """A row of history.jsonl: of the rollouts, the step, and what this process has added up."""
        spread = self._of(model)
        row = logbook.summary(groups) | result.metrics | self._rollout_metrics(spread)
        split, _ = unlogged(spread.folder, result.step)
        row = await model._with_totals("train", row, groups)
        model._append_row(split, result.step, row, groups, Path(result.checkpoint_path or ""))
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        return LocalTrainResult(result.step, numbers, result.checkpoint_path)

    @staticmethod
    def _rollout_metrics(spread: Spread) -> dict[str, float]:
        tokens, seconds = spread.pool.tokens_sampled - spread.sampled[0], spread.pool.seconds - spread.sampled[1]
        spread.sampled = spread.pool.tokens_sampled, spread.pool.seconds
        if not seconds:
            return {}
        return {"rollout_s": seconds, "rollout_tokens_per_s": tokens / seconds, "time/step_actor_s": seconds}

    async def _experimental_fork_checkpoint(self, model: Model, from_model: str, *arguments: Any, **options: Any) -> None:
        """As `LocalBackend` does it, between two models of this path; after `register`."""
        spread = self._of(model)
        spread.names.step = await ask(spread.learners[0], "fork", from_model, *arguments, **options)
        spread.adapters.clear()
        spread.met = False

    async def _delete_checkpoint_files(self, model: TrainableModel, steps_to_keep: list[int]) -> None:
        spread = self._of(model)
        checkpoints.prune(spread.folder / "checkpoints", {*steps_to_keep, spread.names.step})

    def _of(self, model: Model[Any, Any]) -> Spread:
        spread = self._spread.get(self.output_dir(model))
        if spread is None:
            raise ValueError(f"model {model.name!r} is not registered here: call `await model.register(backend)` first")
        return spread


def _placed(base: str) -> str:
    """A base model's folder in full, for actors that work elsewhere; a name on the hub as it is."""
    return str(Path(base).absolute()) if Path(base).exists() else base
