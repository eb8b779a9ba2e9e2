"""Calls to Ray actors that may die and be restarted by Ray."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from typing import Any

PAUSE = 0.2  # seconds between two polls
STARTS = 3  # attempts: Ray's own limit of 30 s, which no option changes, is too short on a busy machine


def connect(address: str, cpus: int) -> bool:
    """Connect to the Ray cluster at `address`, unless this process is connected to one. Returns whether it connected.

    "local" starts a cluster here with that many CPUs, without usage statistics, on the loopback interface, and with a new
    token that other processes need to join it (RAY_AUTH_TOKEN in this process's environment).
    """
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "WARNING"}
    if address == "local":
        options["num_cpus"] = cpus
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if not os.environ.get("RAY_AUTH_TOKEN_PATH"):  # else Ray writes a token to a file that every user may read
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        if "ray" not in sys.modules:  # Ray reads these when it is imported; later it enables tokens itself, and warns
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # loopback, as on these systems
    import ray

    if ray.is_initialized():
        return False
    for left in reversed(range(STARTS)):
        try:
            ray.init(address=address, **options)
            return True
        except Exception as error:
            ray.shutdown()
            if not left or "timed out during startup" not in str(error):
                raise
    raise AssertionError  # unreachable: the last attempt returns or raises


async def until_ready(actor: Any) -> Any:
    """Wait until the actor can be called; return its `ready()`. Raises: RayActorError when Ray no longer restarts it."""
    import ray

    while True:
        try:
            return await actor.ready.remote()
        except ray.exceptions.ActorUnavailableError:
            await asyncio.sleep(PAUSE)


async def ask(actor: Any, method: str, *arguments: Any, repeat: bool = False, **options: Any) -> Any:
    """Call an actor's method. Re-raises the remote exception.

    Raises: RayActorError when the actor died during the call; with `repeat`, only when Ray does not restart it.
    """
    import ray

    while True:
        await until_ready(actor)
        try:
            return await getattr(actor, method).remote(*arguments, **options)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayActorError:
            if not repeat:
                raise
