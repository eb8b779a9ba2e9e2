"""Call third-party code with a time limit, in a thread for each rollout: a call that hangs costs only one rollout."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any


class BrokenEnvironment(RuntimeError):
    """The environment raised, hung or violated its contract; the message names the call."""


class IsolatedCalls:
    """Calls the functions of one rollout, one after another, in a daemon thread that belongs to it.

    Coroutine functions run in an event loop in a second such thread, which keeps running between calls. Python cannot stop a
    thread: one whose call hangs is abandoned, and may keep a core busy. Run code that may hang in its own process, behind
    MCP or OpenEnv.

    seconds: time limit of a call; None: call in the caller's own thread, without a limit, which is faster.
    """

    def __init__(self, seconds: float | None):
        self._seconds = seconds
        self._waiting: queue.SimpleQueue[tuple[Future, Callable[[], Any]] | None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last: Future | None = None

    async def returned(self, seconds: float) -> bool:
        """Wait for the last call, at most `seconds`; return whether it has ended. A cancelled async call counts as ended."""
        if self._last is not None and not self._last.done():
            await asyncio.wait([asyncio.wrap_future(self._last)], timeout=seconds)
        return self._last is None or self._last.done()

    def call_later(self, function: Callable[[], Any]) -> None:
        """Queue a function, to be called once the running call has returned; return at once."""
        self._queue().put((Future(), function))

    async def call(self, what: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, await it if it is async, and return its result. what: its name in messages.

        Raises: BrokenEnvironment after the time limit and, if there is a limit, in place of SystemExit, KeyboardInterrupt,
        GeneratorExit and CancelledError; any other exception of the function.
        """
        is_async = inspect.iscoroutinefunction(function)
        if self._seconds is None:
            return await function(*args, **kwargs) if is_async else function(*args, **kwargs)
        future: Future = Future()
        if is_async:
            future = asyncio.run_coroutine_threadsafe(_awaited(what, function(*args, **kwargs)), self._running_loop())
        else:
            context = copy_context()
            self._queue().put((future, lambda: context.run(function, *args, **kwargs)))
        self._last = future
        try:
            done, _ = await asyncio.wait([asyncio.wrap_future(future)], timeout=self._seconds)
        except asyncio.CancelledError:
            future.cancel()
            raise
        if not done:
            future.cancel()
            limit = f"within {self._seconds:g} seconds"
            raise BrokenEnvironment(f"{what} did not return {limit}: fix it, or raise the rollout's `timeout`.")
        try:
            return done.pop().result()
        except (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError) as error:
            raise _would_end_the_program(what, error) from error

    def close(self) -> None:
        """Let the threads end, without waiting: async calls are cancelled, other running or queued calls complete."""
        if self._waiting is not None:
            self._waiting.put(None)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _queue(self) -> queue.SimpleQueue:
        if self._waiting is None:
            self._waiting = queue.SimpleQueue()
            threading.Thread(target=_work, args=(self._waiting,), name="art_nb: environment", daemon=True).start()
        return self._waiting

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(self._loop,), name="art_nb: environment loop", daemon=True).start()
        return self._loop


def _would_end_the_program(what: str, error: BaseException) -> BrokenEnvironment:
    return BrokenEnvironment(f"{what} raised {type(error).__name__}, which would end the program or cancel the rollout.")


async def _awaited(what: str, coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise _would_end_the_program(what, error) from error


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
    loop.close()


def _work(waiting: queue.SimpleQueue) -> None:
    while (item := waiting.get()) is not None:
        future, function = item
        if not future.set_running_or_notify_cancel():
            continue
        try:
            result = function()
        except BaseException as error:  # passed to the rollout, which handles it
            # A future cannot hold a StopIteration.
            future.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
        else:
            future.set_result(result)
        del future, function, item
