"""`limit_concurrency`: limit how many calls of a function run at once."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from typing import Any


def limit_concurrency(n: int, derive_key: Callable[..., str] | None = None) -> Callable[[Callable], Callable]:
    """Decorate an async function so that at most `n` calls run at once; with `derive_key(*args)`, `n` per key."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        running: defaultdict[str | None, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(n))

        @wraps(function)
        async def limited(*args: Any, **kwargs: Any) -> Any:
            async with running[derive_key(*args, **kwargs) if derive_key else None]:
                return await function(*args, **kwargs)

        return limited

    return decorate
