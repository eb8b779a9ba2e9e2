"""What the routes of one server share."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from art_nb.backend import LocalBackend
from art_nb.server.engine import Engine
from art_nb.server.lines import Lines
from art_nb.server.registry import Registry
from art_nb.server.settings import Settings
from art_nb.server.specs import ModelSpec
from art_nb.server.tokens import Codes, Token
from art_nb.server.work import WorkQueue


class News:
    """What happens in the engine, told to whoever listens in the server's loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: set[asyncio.Queue[tuple[str, str]]] = set()
        self.last, self.about = "", ""

    def open(self) -> None:
        """Tell from now on, in the running loop."""
        self._loop = asyncio.get_running_loop()

    def tell(self, spec: ModelSpec | None, text: str) -> None:
        """Called in the engine's thread. spec: of the model that it is about."""
        self.last, self.about = text, f"{spec.project}/{spec.name}" if spec else ""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._spread, (self.about, text))

    def _spread(self, item: tuple[str, str]) -> None:
        for queue in self._listeners:
            queue.put_nowait(item)

    def listen(self) -> asyncio.Queue[tuple[str, str]]:
        """Everything told from now on, as ("project/name" of the model or "", text), until `leave`."""
        queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._listeners.add(queue)
        return queue

    def leave(self, queue: asyncio.Queue[tuple[str, str]]) -> None:
        self._listeners.discard(queue)


@dataclass
class Served:
    """registry, lines: used in the engine's loop alone, but for what only reads files; work: by any thread."""

    settings: Settings
    token: Token
    engine: Engine
    news: News
    registry: Registry
    lines: Lines
    work: WorkQueue
    codes: Codes = field(default_factory=Codes)
    started: float = field(default_factory=time.time)

    def sampling(self) -> dict[str, Any]:
        """Of all loaded models: conversations that are decoded and that wait, tokens sampled and the seconds it took."""
        samplers = [running.sampler for running in list(self.registry.backend._running.values())]
        return {
            "active": sum(len(sampler.active) for sampler in samplers),
            "waiting": sum(len(sampler.waiting) for sampler in samplers),
            "tokens": sum(sampler.tokens_sampled for sampler in samplers),
            "seconds": round(sum(sampler.seconds for sampler in samplers), 3),
        }


def make_served(settings: Settings, token: Token) -> Served:
    """A server's parts, nothing of it started."""
    lines, news = Lines(settings.patience), News()
    backend = LocalBackend(
        path=settings.path, engine=settings.engine, seed=settings.seed, slots=settings.slots,
        base_models=settings.base_models,
    )  # fmt: skip
    work = WorkQueue(settings.path / "work.sqlite")
    work.resume(settings.lease)
    return Served(settings, token, Engine(), news, Registry(backend, lines.settle, news.tell), lines, work)
