"""Yielding: a function hands out a trajectory without returning it, so that what it returns stays its own affair."""

from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

from art_nb.trajectories.trajectory import Trajectory

# A list, for the tasks that the function starts: they share it, where a value they set would be theirs alone.
_yielded: ContextVar[list[Trajectory] | None] = ContextVar("yielded", default=None)


def yield_trajectory(trajectory: Trajectory) -> None:
    """Hand `trajectory` to whoever awaits with `capture_yielded_trajectory`; if nobody does, nothing happens."""
    handed = _yielded.get()
    if handed is not None:
        handed[:] = [trajectory]


async def capture_yielded_trajectory(coroutine: Coroutine[Any, Any, Any]) -> Trajectory:
    """Await `coroutine` and return the trajectory that it yielded last; what it returns itself is dropped.

    Raises: RuntimeError when it yielded none; what the coroutine raises.
    """
    handed: list[Trajectory] = []
    token = _yielded.set(handed)
    try:
        await coroutine
    finally:
        _yielded.reset(token)
    if not handed:
        raise RuntimeError("no trajectory was yielded: call `art.yield_trajectory(trajectory)` in what is awaited.")
    return handed[0]
