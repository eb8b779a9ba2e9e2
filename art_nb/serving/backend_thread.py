"""A thread with an event loop that samples and trains, so that the server's own loop stays responsive.

A training step does not yield to other coroutines of this loop: no request is answered with half-updated weights.
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
MAX_BUFFERED = 64  # unread items of a stream at which its producer pauses


class BackendThread:
    """The thread. Call `start`, `run` and `stream` from a single other event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        # A daemon thread: the process exits without waiting for a training step. Files are written atomically.
        self._thread = threading.Thread(target=self.loop.run_forever, name="backend", daemon=True)
        self.open_streams = 0  # streams that are not finished
        self._to_set: list[asyncio.Event] = []

    def start(self) -> None:
        self._caller_loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await `coroutine` in the thread's loop. Cancelling this call cancels the coroutine."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    async def stream(
        self, start: Callable[[], Coroutine[Any, Any, S]], produce: Callable[[S], AsyncGenerator[T, None]]
    ) -> AsyncGenerator[list[T], None]:
        """Run `produce(await start())` in the thread's loop. Yields lists: the items produced since the previous list.

        A slow consumer pauses the producer. Closing this generator closes the producer. Raises: exceptions of either call.
        """
        unread: deque[T] = deque()  # appended to in the thread, emptied here
        available, has_capacity = asyncio.Event(), asyncio.Event()  # for the caller's loop, for the thread's

        async def pump() -> None:
            async with aclosing(produce(await start())) as items:
                async for item in items:
                    has_capacity.clear()
                    unread.append(item)
                    self._set_in_caller(available)
                    if len(unread) >= MAX_BUFFERED:
                        await has_capacity.wait()

        self.open_streams += 1
        pumping = asyncio.create_task(self.run(pump()))
        pumping.add_done_callback(lambda _: available.set())
        try:
            finished = False
            while not finished:
                await available.wait()
                available.clear()
                finished = pumping.done()
                new: list[T] = []
                while unread:  # until empty: else the producer could pause while `new` is too short to resume it
                    new.append(unread.popleft())
                if new:
                    if len(new) >= MAX_BUFFERED:
                        self.loop.call_soon_threadsafe(has_capacity.set)
                    yield new
            pumping.result()
        finally:
            self.open_streams -= 1
            pumping.cancel()

    def _set_in_caller(self, event: asyncio.Event) -> None:
        """Set an event in the caller's loop, with one wake-up per forward pass: a wake-up costs as much as an item."""
        if not self._to_set:
            self.loop.call_soon(self._wake_caller)
        self._to_set.append(event)

    def _wake_caller(self) -> None:
        events, self._to_set = self._to_set, []
        if not self._caller_loop.is_closed():
            self._caller_loop.call_soon_threadsafe(_set_all, events)


def _set_all(events: list[asyncio.Event]) -> None:
    for event in events:
        event.set()
