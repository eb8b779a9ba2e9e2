"""What runs in Ray's actors: a sampler that is sent its adapters, and a learner that is a `LocalBackend`.

Whatever an actor holds can be had again: a sampler fetches the adapters that it is asked by, a learner reads its checkpoint.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art_nb.backend import LocalBackend, Running
from art_nb.model import TrainableModel
from art_nb.rollouts.gathering import Fresh
from art_nb.server.lines import Exchange, Lines
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.types import LocalTrainResult, TrainConfig, TrainSFTConfig

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

    from art_nb.inference.streaming import Chunks


@dataclass(frozen=True)
class Spec:
    """Arguments of the `TrainableModel` that an actor works for, its `_internal_config`, and those of its `LocalBackend`."""

    model: dict[str, Any]
    internal: dict[str, Any]
    backend: dict[str, Any]

    def make(self, kind: type[TrainableModel] = TrainableModel) -> TrainableModel:
        return kind(**self.model, _internal_config=self.internal)  # type: ignore[arg-type]  # a typed dict


class SamplerActor:
    """Answers by the policies that it is sent; conversations and batches are those of `server.lines`.

    patience: seconds that sampling waits for a client that was just answered.
    """

    def __init__(self, spec: Spec, patience: float):
        self.spec, self.lines, self.fresh = spec, Lines(patience), Fresh()
        self._in_order = asyncio.Lock()
        self._loaded = False

    async def ready(self) -> int:
        """The id of its process, once it can answer. Raises: as `load_policy`."""
        self._load()
        return os.getpid()

    def _load(self) -> None:
        if self._loaded:
            return
        from art_nb.cluster.received import Received
        from art_nb.inference.sampler import Sampler

        backend, model = LocalBackend(**self.spec.backend), self.spec.make()
        policy, base = backend._load_policy(model)
        self.sampler = Sampler(policy.base, policy.tokenizer, slots=backend.slots)
        self.sampler.settle = self.lines.settle
        self.versions = Received(policy, model.name, model.base_model, backend.seed, base)
        self._loaded = True

    async def exchange(self, line: str, said: dict[str, Any], adapters: dict[str, Any]) -> list[dict]:
        """See `server.lines.Line`. adapters: where the object store has those of the policies that are asked.

        Raises: Refused, when this actor was started anew and does not know the line.
        """
        async with self._in_order:  # one that waits for an adapter is not overtaken by the next
            self._load()
            for name, adapter in adapters.items():
                if not self.versions.has(name, adapter.hex()):
                    self._take(name, adapter.hex(), await adapter)
            told = Exchange.model_validate(said)
            exchanging = asyncio.ensure_future(self.lines.line(line, told.number, self._answer).exchange(told))
        return await exchanging

    def _take(self, name: str, version: str, adapter: bytes) -> None:
        """What the policy before a new one computed is not needed any more: as in process, when a step is done."""
        before = self.versions.latest
        self.versions.take(name, version, adapter)
        if before != self.versions.latest:
            self.sampler.forget(before)

    async def _answer(self, *, model: str, **parameters: Any) -> ChatCompletion | Chunks:
        policy = self.versions.asked(model)
        if self.fresh.begins(self.sampler.idle):
            self.sampler.forget()
        return await self.sampler.create(policy=policy, model=model, **parameters)


class LearnerModel(TrainableModel):
    """Leaves the rows of history.jsonl to the process that has the model: there is counted what goes with them."""

    async def _with_totals(self, split: str, row: dict[str, Any], groups: list[TrajectoryGroup]) -> dict[str, Any]:
        return row

    def _append_row(self, *of_row: Any) -> None:
        pass


class LearnerBackend(LocalBackend):
    """The same of a row that a kill kept from being logged."""

    def _log_again(self, running: Running, step: int, row: dict[str, Any]) -> None:
        pass


class LearnerActor:
    """Trains one model, each request once."""

    def __init__(self, spec: Spec):
        self.spec = spec
        self.backend, self.model = LearnerBackend(**spec.backend), spec.make(LearnerModel)
        self._registered = False

    async def ready(self) -> int:
        """The step of its checkpoint, once it can train. Raises: as `load_policy`."""
        if not self._registered:
            await self.model.register(self.backend)
            self._registered = True
        return await self.model.get_step()

    async def train(
        self, key: str, from_step: int, groups: list[TrajectoryGroup], config: TrainConfig, log: bool
    ) -> tuple[LocalTrainResult, list | None]:
        """One step, and of each choice the advantage that it taught. The same request again gets the same, without these.

        Raises: ValueError when the model is at another step; as `LocalBackend.train`.
        """
        from art_nb.server.registry import advantages_of

        if (done := await self._done(key, from_step)) is not None:
            return done, None
        result = await self.backend.train(self.model, groups, config=config, _log=log, _key=key)
        return result, [[advantages_of(trajectory) for trajectory in group] for group in groups]

    async def train_sft(
        self, key: str, from_step: int, trajectories: list[Trajectory], config: TrainSFTConfig | None, log: bool
    ) -> tuple[LocalTrainResult, None]:
        """One step on demonstrations. Raises: as `train`."""
        done = await self._done(key, from_step)
        return done or await self.backend.train_sft(self.model, trajectories, config=config, _log=log, _key=key), None

    async def _done(self, key: str, from_step: int) -> LocalTrainResult | None:
        """What the request has left, if it was served."""
        await self.ready()
        last, result = self.backend.last_request(self.model)
        if last == key:
            return result
        if result.step != from_step:
            raise ValueError(f"model {self.model.name!r} is at step {result.step}, not at {from_step}: who else trains it?")
        return None

    async def fork(self, *arguments: Any, **options: Any) -> int:
        """As `LocalBackend` does it; the step then."""
        await self.ready()
        await self.backend._experimental_fork_checkpoint(self.model, *arguments, **options)
        return await self.model.get_step()
