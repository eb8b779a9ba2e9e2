"""`limit_concurrency`: limit how many calls of a function run at once."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary


def limit_concurrency(n: int, derive_key: Callable[..., str] | None = None) -> Callable[[Callable], Callable]:
    """Limit an async function to `n` concurrent calls per event loop; with `derive_key(*args, **kwargs)`, `n` per key."""

    if n < 1:
        raise ValueError(f"n is {n}: expected 1 or more")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        by_loop: WeakKeyDictionary[Any, dict[str | None, asyncio.Semaphore]] = WeakKeyDictionary()

        @wraps(function)
        async def limited(*args: Any, **kwargs: Any) -> Any:
            loop = asyncio.get_running_loop()
            running = by_loop.setdefault(loop, defaultdict(lambda: asyncio.Semaphore(n)))
            async with running[derive_key(*args, **kwargs) if derive_key else None]:
                return await function(*args, **kwargs)

        return limited

    return decorate
