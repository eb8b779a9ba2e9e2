"""Calls of Ray's actors that may die and be started anew by Ray."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterable
from typing import Any

PAUSE = 0.2  # seconds between two looks
STARTS = 3  # of Ray, which gives up its own start after 30 s (no option of Ray changes that): too short on a busy machine


def connect(address: str, cpus: int) -> None:
    """Connect this process to the Ray cluster at the address. "local" starts one here, of so many processors, which sends no
    statistics of its use."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    for left in reversed(range(STARTS)):
        try:
            ray.init(address=address, num_cpus=cpus if address == "local" else None, **quiet)
            return
        except Exception as error:
            ray.shutdown()
            if not left or "timed out during startup" not in str(error):
                raise


async def until_back(actor: Any) -> None:
    """Wait until it can be asked. Raises: RayActorError when Ray starts it no more."""
    import ray

    while True:
        try:
            await actor.ready.remote()
            return
        except ray.exceptions.ActorUnavailableError:
            await asyncio.sleep(PAUSE)


async def ask(actor: Any, method: str, *arguments: Any, **options: Any) -> Any:
    """What it answers. Raises: what it raises, as it was there; RayActorError when it died over it."""
    import ray

    await until_back(actor)
    try:
        return await getattr(actor, method).remote(*arguments, **options)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


async def every(calls: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """What each returns or raises, all at once."""
    return await asyncio.gather(*calls, return_exceptions=True)
