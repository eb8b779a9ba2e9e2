"""The state that the routes of one server share."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from art_nb.backends.local import LocalBackend
from art_nb.backends.lockstep import LockstepSessions
from art_nb.serving.backend_thread import BackendThread
from art_nb.serving.registry import ModelRegistry
from art_nb.serving.settings import Settings
from art_nb.serving.specs import ModelSpec
from art_nb.serving.tokens import AccessToken, LoginCodes
from art_nb.serving.training import TrainingRequests
from art_nb.serving.work import WorkQueue

if TYPE_CHECKING:
    from art_nb.backends.loaded_model import LoadedModel


class ProgressFeed:
    """Sends progress texts from the backend's thread to other event loops. latest: ("project/name" or "", text)."""

    def __init__(self) -> None:
        self._subscribers: dict[asyncio.Queue[str], tuple[str, asyncio.AbstractEventLoop]] = {}
        self.latest = ("", "")

    def publish(self, spec: ModelSpec | None, text: str) -> None:
        """Store a text as `latest`, and send it to the subscribers of its model, if any. Called in the backend's thread."""
        self.latest = ("/".join(spec.key) if spec else "", text)
        for queue, (model, loop) in tuple(self._subscribers.items()):
            if model == self.latest[0]:
                with suppress(RuntimeError):  # the loop was closed
                    loop.call_soon_threadsafe(queue.put_nowait, text)

    @contextmanager
    def subscribe(self, model: str) -> Iterator[asyncio.Queue[str]]:
        """Yield a queue of the running event loop that receives the texts about a model until the block ends."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._subscribers[queue] = model, asyncio.get_running_loop()
        try:
            yield queue
        finally:
            del self._subscribers[queue]


class ServerState:
    """The server's parts. Use models, training and sessions in the backend's event loop, except to look up or read files."""

    def __init__(self, settings: Settings, token: AccessToken) -> None:
        self.settings, self.token, self.started_at = settings, token, time.time()
        self.thread, self.progress, self.login_codes = BackendThread(), ProgressFeed(), LoginCodes()
        self.backend = LocalBackend(
            path=settings.path, engine=settings.engine, seed=settings.seed, slots=settings.slots,
            base_models=settings.base_models,
        )  # fmt: skip
        self.sessions = LockstepSessions(settings.lockstep_patience)
        self.models = ModelRegistry(self.backend, self._configure_decoder, settings.models)
        self.training = TrainingRequests(self.models, self.progress.publish)
        self.work = WorkQueue(settings.path / "work.sqlite")
        self.work.renew(None, settings.lease)  # while no server ran, workers could not renew their leases

    def _configure_decoder(self, loaded: LoadedModel) -> None:
        """Connect a loaded model's decoder to the lockstep sessions, and limit its cache and threads."""
        from art_nb.training.policy import SMALL_MODEL

        decoder = loaded.sampler.decoder
        self.sessions.attach(decoder)
        decoder.cache_tokens = self.settings.cache_tokens
        # A small model's forward pass is many short matrix products, after each of which its threads synchronise. On all
        # cores they would compete with the event loops of server and clients, so one core stays free (`benchmarks.server`).
        if loaded.policy.device.type == "cpu" and loaded.policy.parameters < SMALL_MODEL:
            decoder.threads = max(1, (os.cpu_count() or 1) - 1)

    def status(self) -> dict[str, Any]:
        """Return models, sampling, episodes, workers and the last progress message."""
        return {
            "models": [self.models.describe(spec) for spec in self.models.registered()],
            "sampling": self.sampling(),
            "work": self.work.counts(),
            "workers": self.work.workers(),
            "last": self.progress.latest[1],
        }

    def sampling(self) -> dict[str, Any]:
        """Return totals over all loaded models: active and waiting generations, sampled tokens, and seconds of sampling."""
        samplers = [loaded.sampler for loaded in list(self.backend.models.values())]
        return {
            "active": sum(len(sampler.decoder.active) for sampler in samplers),
            "waiting": sum(len(sampler.decoder.waiting) for sampler in samplers),
            "tokens": sum(sampler.decoder.tokens_sampled for sampler in samplers),
            "seconds": round(sum(sampler.decoder.seconds for sampler in samplers), 3),
        }
