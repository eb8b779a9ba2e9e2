"""Ray actor classes: samplers, which receive adapters from the driver, and learners, which use a `LocalBackend`.

No actor holds state that cannot be restored: the driver sends samplers their adapters again, learners read their checkpoint.
"""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art_nb.backends.local import LocalBackend
from art_nb.backends.lockstep import Exchange, LockstepSessions
from art_nb.backends.steps import StepRequest, choice_advantages
from art_nb.model import Model, TrainableModel
from art_nb.rollouts.gathering import GatherResetDetector
from art_nb.storage.run_log import RunLog
from art_nb.types import LocalTrainResult

if TYPE_CHECKING:
    from filelock import FileLock
    from openai.types.chat import ChatCompletion

    from art_nb.backends.loaded_model import LoadedModel
    from art_nb.inference.streaming import Chunks


@dataclass(frozen=True)
class ActorSpec:
    """Arguments for an actor's `TrainableModel` (`model`, with `internal` as `_internal_config`) and its `LocalBackend`."""

    model: dict[str, Any]
    internal: dict[str, Any]
    backend: dict[str, Any]

    def make_model(self) -> TrainableModel:
        """Return a new, unregistered model."""
        return TrainableModel(**self.model, _internal_config=self.internal)  # type: ignore[arg-type]  # a typed dict


class SamplerActor:
    """Samples with the adapters that it receives. patience: see `LockstepSessions`."""

    def __init__(self, spec: ActorSpec, patience: float):
        self.spec, self.sessions, self.gather_resets = spec, LockstepSessions(patience), GatherResetDetector()
        self._in_order = asyncio.Lock()

    async def ready(self) -> int:
        """Load the model; return the id of this process. Raises: as `load_policy`."""
        if not hasattr(self, "policies"):
            from art_nb.backends.ray.remote_policy_store import RemotePolicyStore
            from art_nb.inference.sampler import Sampler

            backend, model = LocalBackend(**self.spec.backend), self.spec.make_model()
            policy, base = backend.load_policy(model)
            self.sampler = Sampler(policy.base, policy.tokenizer, slots=backend.slots)
            self.sessions.attach(self.sampler.decoder)
            self.policies = RemotePolicyStore(policy, model.name, model.base_model, backend.seed, base)
        return os.getpid()

    async def exchange(self, key: str, fields: dict[str, Any], adapters: dict[str, Any]) -> list[dict]:
        """See `LockstepSession.exchange`. adapters: Ray references to the requested policies' adapters, by policy name.

        Raises: StatusError; 410 when the session is unknown: this actor was restarted, or the session has timed out.
        """
        async with self._in_order:  # a later exchange must not overtake one that waits for an adapter
            await self.ready()
            for name, adapter in adapters.items():
                if not self.policies.has(name, adapter.hex()):
                    self._add(name, adapter.hex(), await adapter)
            self.policies.drop_oldest(adapters)
            exchange = Exchange.model_validate(fields)
            session = self.sessions.session(key, exchange.number, self._answer)
            exchanging = asyncio.ensure_future(session.exchange(exchange))
            for _ in range(2):  # let each request look up its policy before the next exchange can drop that policy
                await asyncio.sleep(0)
        return await exchanging

    def _add(self, name: str, version: str, adapter: bytes) -> None:
        """Add an adapter. If it is the new latest, drop the caches of the previous one, as `LoadedModel.finish` does."""
        before = self.policies.at()
        self.policies.add(name, version, adapter)
        if before != self.policies.at():
            self.sampler.forget(before)

    async def _answer(self, *, model: str, **parameters: Any) -> ChatCompletion | Chunks:
        policy = self.policies.get(model)
        if self.gather_resets.should_reset(self.sampler.decoder.idle):
            self.sampler.forget()
        return await self.sampler.create(policy=policy, model=model, **parameters)


class TrajectoryLog(RunLog):
    """Writes trajectories only: the driver, which counts costs and seconds, writes the rows."""

    async def complete_row(self, split: str, row: dict[str, Any], groups: Any) -> dict[str, Any]:
        return row

    def append_row(self, *arguments: Any) -> None:
        pass


class LearnerBackend(LocalBackend):
    """The backend of one learner actor. Learners that have joined take the same steps; only rank 0 writes files."""

    def __init__(self, rank: int, **options: Any) -> None:
        super().__init__(**options)
        self.rank = rank

    def lock(self, folder: Path) -> FileLock | None:
        return super().lock(folder) if self.rank == 0 else None

    def run_log(self, model: Model) -> RunLog:
        return TrajectoryLog(self.output_dir(model))

    def save_step(
        self, model: TrainableModel, loaded: LoadedModel, row: dict[str, Any], request: StepRequest
    ) -> LocalTrainResult:
        if self.rank == 0:
            return super().save_step(model, loaded, row, request)
        loaded.finish(loaded.step + 1)
        return LocalTrainResult(loaded.step)


class LearnerActor:
    """Trains one model, alone or with other learners. Carries out each request only once."""

    def __init__(self, spec: ActorSpec, rank: int):
        self.backend, self.model = LearnerBackend(rank, **spec.backend), spec.make_model()
        self._registered = False

    async def ready(self) -> int:
        """Load the model; return the step of its latest checkpoint. Raises: as `LocalBackend.load`."""
        if not self._registered:
            await self.model.register(self.backend)
            self._registered = True
        return await self.model.get_step()

    def address(self) -> tuple[str, int]:
        """Return a host and a currently free port at which other learners can reach this one."""
        import ray

        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return host, probe.getsockname()[1]

    async def join(self, size: int, host: str, port: int) -> None:
        """Join the group of all learners and load the latest checkpoint. Raises: PeerLost when not all join."""
        from art_nb.training.process_group import ProcessGroup

        await self.ready()
        loaded = self.leave()  # closes the connections of an earlier group
        loaded.learner.process_group = ProcessGroup(self.backend.rank, size, host, port)
        self.backend.restore(self.model, loaded)

    def leave(self) -> LoadedModel:
        """Leave the group, to train alone from now on; return the loaded model."""
        from art_nb.training.process_group import SingleProcess

        loaded = self.backend.loaded(self.model)
        loaded.learner.process_group = SingleProcess()
        return loaded

    async def take_step(self, request: StepRequest, from_step: int) -> tuple[LocalTrainResult, list | None]:
        """Train one step; return the result, and the advantage of each choice by group and trajectory.

        A request that was already carried out returns the same result again, without advantages.

        Raises: ValueError if the model is at another step, PeerLost if another learner died, others as `LocalBackend.train`.
        """
        step = await self.ready()
        last, result = self.backend.last_request(self.model)
        if last == request.key:
            return result, None
        if step != from_step:
            raise ValueError(f"model {self.model.name!r} is at step {step}, not {from_step}: is it being trained elsewhere?")
        try:
            result = await self.backend.take_step(self.model, request)
        except BaseException:
            self.leave()  # so that the others do not wait for this one
            raise
        return result, [[choice_advantages(trajectory) for trajectory in group] for group in request.groups] or None

    async def fork(self, from_model: str, from_project: str, **options: Any) -> int:
        """As `LocalBackend.fork`."""
        await self.ready()
        return await self.backend.fork(self.model, from_model, from_project, **options)
