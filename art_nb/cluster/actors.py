"""What runs in Ray's actors: a sampler that is sent its adapters, and a learner that is a `LocalBackend`.

Whatever an actor holds can be had again: a sampler fetches the adapters that it is asked by, a learner reads its checkpoint.
"""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art_nb.backend import LocalBackend, Running
from art_nb.model import TrainableModel
from art_nb.rollouts.gathering import Fresh
from art_nb.server.lines import Exchange, Lines
from art_nb.trajectories import TrajectoryGroup
from art_nb.types import LocalTrainResult, TrainConfig, TrainSFTConfig

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

    from art_nb.inference.streaming import Chunks
    from art_nb.training.ranks import Alone


@dataclass(frozen=True)
class Spec:
    """Arguments of the `TrainableModel` that an actor works for, its `_internal_config`, and those of its `LocalBackend`."""

    model: dict[str, Any]
    internal: dict[str, Any]
    backend: dict[str, Any]

    def make(self, kind: type[TrainableModel] = TrainableModel) -> TrainableModel:
        return kind(**self.model, _internal_config=self.internal)  # type: ignore[arg-type]  # a typed dict


@dataclass(frozen=True)
class Request:
    """One step: groups or demonstrations, and a key by which it is known that it was taken."""

    key: str
    from_step: int
    data: list
    config: TrainConfig | TrainSFTConfig | None
    log: bool

    def options(self) -> dict[str, Any]:
        """Of the backend's `train` or `train_sft`."""
        return {"config": self.config, "_log": self.log, "_key": self.key}


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
    """One learner of several, or the only one. All take the same steps; rank 0 writes them down."""

    rank = 0
    ranks: Alone | None = None

    def _use_options(self, running: Running, config: TrainConfig) -> None:
        from art_nb.training.ranks import Alone

        super()._use_options(running, config)
        running.learner.ranks = self.ranks or Alone()

    def _keep(self, model: TrainableModel, running: Running, *of_step: Any, **key: Any) -> LocalTrainResult:
        if self.rank == 0:
            return super()._keep(model, running, *of_step, **key)
        self._refresh(running, running.step + 1)
        return LocalTrainResult(running.step)

    def join(self, ranks: Alone | None) -> None:
        """Train with these from now on, from the latest checkpoint; with nobody if None."""
        from art_nb.training.ranks import Alone

        self.ranks = ranks
        for running in self._running.values():
            running.stale = True
            running.learner.ranks = ranks or Alone()

    def _log_again(self, running: Running, step: int, row: dict[str, Any]) -> None:
        pass


class LearnerActor:
    """Trains one model, each request once, alone or as one of several."""

    def __init__(self, spec: Spec, rank: int):
        self.backend, self.model = LearnerBackend(**spec.backend), spec.make(LearnerModel)
        self.backend.rank = rank
        self._registered = False

    async def ready(self) -> int:
        """The step of its checkpoint, once it can train. Raises: as `load_policy`."""
        if not self._registered:
            await self.model.register(self.backend)
            self._registered = True
        return await self.model.get_step()

    def place(self) -> tuple[str, int]:
        """Where other learners can meet this one: host, and a port that was free just now."""
        import ray

        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return host, probe.getsockname()[1]

    async def meet(self, size: int, host: str, port: int) -> None:
        """Train together with the others from now on, from the latest checkpoint. Raises: Parted when not all come."""
        from art_nb.training.ranks import Ranks

        await self.ready()
        self.backend.join(None)
        self.backend.join(Ranks(self.backend.rank, size, host, port))

    async def train(self, request: Request) -> tuple[LocalTrainResult, list | None]:
        """One step, and of each choice the advantage that it taught. The same request again gets the same, without these.

        Raises: ValueError when the model is at another step; Parted when another learner has died; as `LocalBackend.train`.
        """
        from art_nb.server.registry import advantages_of

        if (done := await self._done(request)) is not None:
            return done, None
        try:
            result = await self.backend.train(self.model, request.data, **request.options())
        except BaseException:
            self.backend.join(None)  # so that nobody waits for this one
            raise
        return result, [[advantages_of(trajectory) for trajectory in group] for group in request.data]

    async def train_sft(self, request: Request) -> tuple[LocalTrainResult, None]:
        """One step on demonstrations. Raises: as `train`."""
        return await self._done(request) or await self.backend.train_sft(self.model, request.data, **request.options()), None

    async def _done(self, request: Request) -> LocalTrainResult | None:
        """What the request has left, if it was served."""
        at = await self.ready()
        last, result = self.backend.last_request(self.model)
        if last == request.key:
            return result
        if at != request.from_step:
            raise ValueError(f"model {self.model.name!r} is at step {at}, not at {request.from_step}: who else trains it?")
        return None

    async def fork(self, *arguments: Any, **options: Any) -> int:
        """As `LocalBackend` does it; the step then."""
        await self.ready()
        await self.backend._experimental_fork_checkpoint(self.model, *arguments, **options)
        return await self.model.get_step()
