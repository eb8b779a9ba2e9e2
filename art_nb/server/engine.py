"""The backend in a thread of its own: whatever samples or trains runs there, and the server answers meanwhile.

All of it runs in one event loop, and a training step gives way to nothing: nobody is ever answered by weights that are half
updated.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")
_END = object()


class Engine:
    """A thread with an event loop; `run` and `stream` are called from another loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        # A daemon: a process that is told to end does not wait for a training step. What it writes is whole or not there.
        self._thread = threading.Thread(target=self.loop.run_forever, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await `coroutine` in the engine's loop. Cancelling cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    async def stream(
        self, start: Callable[[], Coroutine[Any, Any, S]], pieces: Callable[[S], AsyncGenerator[T, None]]
    ) -> AsyncGenerator[T, None]:
        """What `pieces` of what `start` gives yields, both in the engine's loop. Leaving early ends it there."""
        here = asyncio.get_running_loop()
        queue: asyncio.Queue[Any] = asyncio.Queue()

        def put(item: Any) -> None:
            if not here.is_closed():
                here.call_soon_threadsafe(queue.put_nowait, item)

        async def pump() -> None:
            try:
                async with aclosing(pieces(await start())) as given:
                    async for item in given:
                        put(item)
                put(_END)
            except Exception as error:
                put(error)

        task = asyncio.create_task(self.run(pump()))
        try:
            while (item := await queue.get()) is not _END:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            task.cancel()
