"""Rollouts beside the samplers, on machines that have processors for them: an environment may be a browser or a compiler.

A rollout is the function of the notebook. Ray sends it to a worker with its arguments, and its trajectory back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from art_nb.cluster.adapters import Adapters
from art_nb.cluster.calls import until_back
from art_nb.cluster.pool import Member, Pool
from art_nb.inference.client import InProcessClient

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from art_nb.cluster.actors import Spec
    from art_nb.model import Model
    from art_nb.training.names import Names

MOST = 1000  # rollouts at once in a worker
PROMPTS = 2**32  # no worker asks the same as often


class AskingBackend:
    """What a model in a worker has for a backend: its samplers can be asked, and that is all."""

    def __init__(self, pool: Pool):
        self.pool = pool

    def client(self, model: Model[Any, Any]) -> AsyncOpenAI:
        return InProcessClient(self.pool.create, self.pool.names.names)

    async def _get_step(self, model: Model[Any, Any]) -> int:
        return self.pool.names.step

    def _model_inference_name(self, model: Model[Any, Any], step: int | None = None) -> str:
        names = self.pool.names
        return names.at(names.step if step is None else step)


class RolloutActor:
    """Runs rollouts of one model, many at once. What it holds can be had again: when it dies its rollouts begin anew.

    place: of how many workers it is which, from 0.
    """

    def __init__(self, spec: Spec, names: Names, samplers: list[Any], place: int):
        self.adapters = Adapters(names)
        # Each worker turns to another sampler first, for it does not know what the other workers ask.
        first = place % len(samplers)
        members = [Member(actor, self.adapters) for actor in samplers[first:] + samplers[:first]]
        self.pool = Pool(members, names, first=(place + 1) * PROMPTS)
        self.model = spec.make()
        self.model._backend = AskingBackend(self.pool)

    def ready(self) -> None:
        """Answers once it runs."""

    async def run(
        self, step: int, adapters: dict[str, Any], rollout: Callable[..., Awaitable[Any]], arguments: tuple
    ) -> tuple[Any, int]:
        """What the rollout returns, and how many tokens were sampled here since the last one was told.

        step: the latest. adapters: where the object store has its adapter.
        """
        if step != self.pool.names.step:
            self.pool.forget(self.pool.names.at(self.pool.names.step))
        self.pool.names.step = step
        self.adapters.know(adapters)
        result = await rollout(self.model, *arguments)
        sampled, self.pool.tokens_sampled = self.pool.tokens_sampled, 0
        return result, sampled


class RolloutWorkers:
    """All workers of one model; each rollout goes to the one that runs fewest."""

    def __init__(self, spec: Spec, pool: Pool, adapters: Adapters, count: int, options: dict[str, Any]):
        import ray

        samplers = [member.actor for member in pool.members]
        make = ray.remote(RolloutActor).options(max_restarts=-1, max_concurrency=MOST, **options)
        self.actors = [make.remote(spec, pool.names, samplers, place) for place in range(count)]
        self._pool, self._adapters = pool, adapters
        self._running = [0] * count

    async def run(self, rollout: Callable[..., Awaitable[Any]], arguments: tuple) -> Any:
        """Raises: what the rollout raises; RayActorError when Ray can't start its worker any more."""
        names, place = self._pool.names, self._running.index(min(self._running))
        self._running[place] += 1
        try:
            with self._pool.counted():
                adapters = self._adapters({names.at(names.step)})
                result, sampled = await self._ask(place, names.step, adapters, rollout, arguments)
        finally:
            self._running[place] -= 1
        self._pool.tokens_sampled += sampled
        return result

    async def _ask(self, place: int, *told: Any) -> tuple[Any, int]:
        """What the worker answers; when it dies it is asked again."""
        import ray

        while True:
            await until_back(self.actors[place])
            try:
                return await self.actors[place].run.remote(*told)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except ray.exceptions.RayActorError:
                continue
