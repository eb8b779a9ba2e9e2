"""`retry`: a decorator that repeats failed calls, with increasing delays."""

import asyncio
import functools
import inspect
import logging
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def retry(
    max_attempts: int = 3,
    delay: float = 0.25,
    backoff_factor: float = 2.0,
    exceptions: tuple[type[Exception], ...] = (Exception,),
    on_retry: Callable[[Exception, int], None] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a plain or `async` function so that a failed call is repeated, up to `max_attempts` calls in all.

    Args:
        max_attempts: calls, including the first; at least 1.
        delay: seconds before the second call.
        backoff_factor: each further delay is this many times the previous one.
        exceptions: types to retry; others propagate at once. Cancellation is never retried.
        on_retry: called with (exception, number of the failed attempt) instead of logging a warning.

    The decorated function raises the last attempt's exception. Raises: ValueError when `max_attempts` is less than 1.
    """
    if max_attempts < 1:
        raise ValueError(f"retry: max_attempts is {max_attempts}; expected 1 or more, as it counts the first call.")
    delays = [(attempt, delay * backoff_factor ** (attempt - 1)) for attempt in range(1, max_attempts)]

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        def warn(error: Exception, attempt: int) -> None:
            name = getattr(function, "__name__", repr(function))
            logging.getLogger(__name__).warning("%s failed (attempt %d of %d): %r", name, attempt, max_attempts, error)

        report = on_retry or warn
        target: Callable[P, Any] = function  # R is an awaitable if `function` is async

        async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            for attempt, seconds in delays:
                try:
                    return await target(*args, **kwargs)
                except exceptions as error:
                    report(error, attempt)
                await asyncio.sleep(seconds)
            return await target(*args, **kwargs)

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for attempt, seconds in delays:
                try:
                    return function(*args, **kwargs)
                except exceptions as error:
                    report(error, attempt)
                time.sleep(seconds)
            return function(*args, **kwargs)

        retried: Any = call_async if inspect.iscoroutinefunction(function) else call
        return functools.wraps(function)(retried)

    return decorate
