"""Connect to Ray, and call actors that Ray restarts when they die."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from typing import Any

PAUSE = 0.2  # seconds between two polls
STARTS = 3  # attempts to start Ray: its time limit of 30 s, which no option changes, is too short on a busy machine


def connect(address: str, cpus: int) -> bool:
    """Connect to the Ray cluster at `address` unless this process is connected already. Returns whether this call did.

    "local" starts a cluster here with `cpus` CPUs, no usage statistics, and a new token that other processes need to join
    (RAY_AUTH_TOKEN in the environment); on the loopback interface unless Ray was imported before. Preset variables are kept.
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
    """Wait until the actor can be called; return its `ready()`. Raises: as `ready`; RayActorError if it is not restarted."""
    import ray

    while True:
        try:
            return await actor.ready.remote()
        except ray.exceptions.ActorUnavailableError:
            await asyncio.sleep(PAUSE)


async def ask(actor: Any, method: str, *arguments: Any, repeat: bool = False, **options: Any) -> Any:
    """Call an actor's method. Re-raises the remote exception.

    Raises: RayActorError when the actor dies during the call, with `repeat` only when Ray does not restart it; as `ready`.
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
