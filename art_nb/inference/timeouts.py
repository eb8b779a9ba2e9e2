"""How long an answer is waited for, as OpenAI's clients are told it; knows nothing of what is asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from openai import APITimeoutError, NotGiven, Omit

from art_nb.inference.chat import URL, RequestError


def seconds(timeout: Any, otherwise: Any = None) -> float | None:
    """The seconds that `timeout` allows: a number, an `httpx.Timeout` (its `read`), or None for ever.

    otherwise: the client's own, where the request gives none.

    Raises: RequestError when it is neither.
    """
    if isinstance(timeout, NotGiven | Omit):
        return seconds(otherwise)
    allowed = timeout.read if isinstance(timeout, httpx.Timeout) else timeout
    if allowed is None:
        return None
    if isinstance(allowed, bool) or not isinstance(allowed, int | float) or not allowed >= 0:
        raise RequestError(f"timeout is {timeout!r}: expected seconds, an httpx.Timeout, or None to wait for ever")
    return float(allowed)


@asynccontextmanager
async def within(allowed: float | None) -> AsyncIterator[None]:
    """What is awaited inside is cancelled after so many seconds; a forward that has begun is waited for.

    Raises: openai.APITimeoutError.
    """
    try:
        async with asyncio.timeout(allowed) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise APITimeoutError(request=httpx.Request("POST", URL)) from error
