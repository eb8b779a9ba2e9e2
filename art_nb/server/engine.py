"""The backend in a thread of its own: whatever samples or trains runs there, and the server answers meanwhile.

All of it runs in one event loop, and a training step gives way to nothing: nobody is ever answered by weights that are half
updated.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")
MOST_UNREAD = 64  # pieces of a stream that wait for who reads them; then it pauses


class Engine:
    """A thread with an event loop; `start`, `run` and `stream` are called from another loop, always the same.

    streams: how many are open.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        # A daemon: a process that is told to end does not wait for a training step. What it writes is whole or not there.
        self._thread = threading.Thread(target=self.loop.run_forever, name="engine", daemon=True)
        self.streams = 0
        self._told: list[asyncio.Event] = []

    def start(self) -> None:
        self._outside = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await `coroutine` in the engine's loop. Cancelling cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    async def stream(
        self, start: Callable[[], Coroutine[Any, Any, S]], pieces: Callable[[S], AsyncGenerator[T, None]]
    ) -> AsyncGenerator[list[T], None]:
        """What `pieces` of what `start` gives yields, both in the engine's loop; each time all that came since the last.

        Who is slow to ask makes `pieces` wait. Leaving early ends it.
        """
        unread: deque[T] = deque()  # filled there, emptied here
        news, room = asyncio.Event(), asyncio.Event()  # set here, set there

        async def pump() -> None:
            async with aclosing(pieces(await start())) as given:
                async for piece in given:
                    room.clear()
                    unread.append(piece)
                    self._tell(news)
                    if len(unread) >= MOST_UNREAD:
                        await room.wait()

        self.streams += 1
        pumping = asyncio.create_task(self.run(pump()))
        pumping.add_done_callback(lambda _: news.set())
        try:
            over = False
            while not over:
                await news.wait()
                news.clear()
                over = pumping.done()
                if new := [unread.popleft() for _ in range(len(unread))]:
                    if len(new) >= MOST_UNREAD:
                        self.loop.call_soon_threadsafe(room.set)
                    yield new
            pumping.result()
        finally:
            self.streams -= 1
            pumping.cancel()

    def _tell(self, news: asyncio.Event) -> None:
        """Set it in the loop outside. All that is told at once, after a forward say, wakes that loop once: waking it costs
        as much as a piece does."""
        if not self._told:
            self.loop.call_soon(self._wake)
        self._told.append(news)

    def _wake(self) -> None:
        told, self._told = self._told, []
        if not self._outside.is_closed():
            self._outside.call_soon_threadsafe(_set, told)


def _set(events: list[asyncio.Event]) -> None:
    for event in events:
        event.set()
