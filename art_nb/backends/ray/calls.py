"""Calls of Ray actors that may die and be restarted by Ray."""

from __future__ import annotations

import asyncio
import os
from typing import Any

PAUSE = 0.2  # seconds between two polls
STARTS = 3  # attempts: Ray's own limit of 30 s, which no option changes, is too short on a busy machine


def connect(address: str, cpus: int) -> None:
    """Connect to the Ray cluster at `address`; "local" starts one here with that many CPUs, without usage statistics."""
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
    """Wait until the actor can be called. Raises: RayActorError when Ray does not restart it any more."""
    import ray

    while True:
        try:
            await actor.ready.remote()
            return
        except ray.exceptions.ActorUnavailableError:
            await asyncio.sleep(PAUSE)


async def ask(actor: Any, method: str, *arguments: Any, repeat: bool = False, **options: Any) -> Any:
    """Call an actor's method. Re-raises the remote exception.

    Raises: RayActorError when the actor died during the call; with `repeat`, only when Ray does not restart it.
    """
    import ray

    while True:
        await until_back(actor)
        try:
            return await getattr(actor, method).remote(*arguments, **options)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayActorError:
            if not repeat:
                raise
