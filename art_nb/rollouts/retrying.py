"""`retry`: call a function again when it fails, waiting longer each time.

The module is not called `retry` because `art_nb.retry` is the decorator.
"""

import asyncio
import functools
import inspect
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)


def retry(
    max_attempts: int = 3,
    delay: float = 0.25,
    backoff_factor: float = 2.0,
    exceptions: tuple[type[Exception], ...] = (Exception,),
    on_retry: Callable[[Exception, int], None] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a plain or `async` function so that it is tried up to `max_attempts` times.

    Args:
        max_attempts: calls in all, the first included; at least 1.
        delay: seconds before the second call.
        backoff_factor: each further wait is this many times the one before.
        exceptions: only these are tried again; others propagate at once. Cancelling is never retried.
        on_retry: called with (exception, number of the failed attempt) instead of logging a warning.

    Raises: whatever the last attempt raised.
    """
    if max_attempts < 1:
        raise ValueError(
            f"retry: max_attempts is {max_attempts}; it counts the first call, so give 1 or more."
        )

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        report = on_retry or _warn(function, max_attempts)
        calls: Callable[P, Any] = function  # R is an awaitable, or it is not

        def waits() -> Iterator[tuple[int, float]]:
            return ((i + 1, delay * backoff_factor**i) for i in range(max_attempts - 1))

        @functools.wraps(function)
        async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            for attempt, seconds in waits():
                try:
                    return await calls(*args, **kwargs)
                except exceptions as error:
                    report(error, attempt)
                await asyncio.sleep(seconds)
            return await calls(*args, **kwargs)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for attempt, seconds in waits():
                try:
                    return function(*args, **kwargs)
                except exceptions as error:
                    report(error, attempt)
                time.sleep(seconds)
            return function(*args, **kwargs)

        retried: Callable[P, Any] = call_async if inspect.iscoroutinefunction(function) else call
        return retried

    return decorate


def _warn(function: Callable, max_attempts: int) -> Callable[[Exception, int], None]:
    name = getattr(function, "__name__", repr(function))

    def report(error: Exception, attempt: int) -> None:
        log.warning("%s failed (attempt %d of %d): %r", name, attempt, max_attempts, error)

    return report
