"""Rollouts in Ray actors, for environments that need CPUs of their own, for a browser or a compiler for example."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from art_nb.backends.ray.calls import ask
from art_nb.backends.ray.pool import Adapters, PooledSampler, SamplerPool
from art_nb.inference.client import InProcessClient

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from art_nb.backends.ray.actors import ActorSpec
    from art_nb.model import Model
    from art_nb.training.names import PolicyNames

MAX_ROLLOUTS = 1000  # concurrent rollouts per worker
FIRST_COUNT_STEP = 2**32  # between the initial prompt counts of two workers; no worker samples one prompt that often


class SamplingBackend:
    """The backend of a model in a worker. It only samples."""

    def __init__(self, pool: SamplerPool):
        self.pool = pool

    async def register(self, model: Model[Any, Any]) -> None:
        pass

    async def _prepare_backend_for_training(self, model: Model[Any, Any], config: Any = None) -> tuple[None, None]:
        return None, None

    def client(self, model: Model[Any, Any]) -> AsyncOpenAI:
        return InProcessClient(self.pool.create, self.pool.names.names)

    async def _get_step(self, model: Model[Any, Any]) -> int:
        return self.pool.names.step

    def _model_inference_name(self, model: Model[Any, Any], step: int | None = None) -> str:
        return self.pool.names.at(step)


class RolloutActor:
    """Runs rollouts of one model, many at once. number: the worker's index, from 0."""

    def __init__(self, spec: ActorSpec, names: PolicyNames, samplers: list[Any], number: int):
        self.adapters = Adapters(names)
        # Each worker prefers a different sampler, because it does not know the load that other workers cause.
        first = number % len(samplers)
        pooled = [PooledSampler(actor, self.adapters) for actor in samplers[first:] + samplers[:first]]
        self.pool = SamplerPool(pooled, names, first=(number + 1) * FIRST_COUNT_STEP)
        self.model, self._registered = spec.make_model(), False

    def ready(self) -> None:
        """Return when the actor has started."""

    async def run(
        self, step: int, adapters: dict[str, Any], config: Any, rollout: Callable[..., Awaitable[Any]], arguments: tuple
    ) -> tuple[Any, int]:
        """Run the rollout; return its result, and the number of tokens that this worker sampled since it last returned one.

        step: the latest. adapters: Ray's reference to that step's adapter, by the policy's name. config: the model's.
        """
        if not self._registered:
            await self.model.register(SamplingBackend(self.pool))  # type: ignore[arg-type]  # a part of the protocol
            self._registered = True
        if step > self.pool.names.step:  # that of a rollout repeated after its actor died may be lower
            self.pool.forget(self.pool.names.at())
            self.pool.names.step = step
        self.adapters.add(adapters)
        self.model.config = config
        result = await rollout(self.model, *arguments)
        sampled, self.pool.tokens_sampled = self.pool.tokens_sampled, 0
        return result, sampled


class RolloutWorkers:
    """All workers of one model; each rollout goes to the least loaded one."""

    def __init__(self, spec: ActorSpec, pool: SamplerPool, adapters: Adapters, count: int, options: dict[str, Any]):
        import ray

        samplers = [sampler.actor for sampler in pool.samplers]
        make = ray.remote(RolloutActor).options(max_restarts=-1, max_concurrency=MAX_ROLLOUTS, **options)
        self.actors = [make.remote(spec, pool.names, samplers, number) for number in range(count)]
        self._pool, self._adapters = pool, adapters
        self._running = [0] * count

    async def run(self, config: Any, rollout: Callable[..., Awaitable[Any]], arguments: tuple) -> Any:
        """Run a rollout. Re-raises its exception; RayActorError when Ray cannot restart its worker."""
        names, number = self._pool.names, self._running.index(min(self._running))
        self._running[number] += 1
        try:
            with self._pool.counted():
                adapters = self._adapters({names.at()})
                run = ask(self.actors[number], "run", names.step, adapters, config, rollout, arguments, repeat=True)
                result, sampled = await run
        finally:
            self._running[number] -= 1
        self._pool.tokens_sampled += sampled
        return result
