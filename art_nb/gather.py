"""Run rollouts concurrently and collect their trajectories, with a progress bar."""

import asyncio
import warnings
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from art_nb.rollouts.gathering import Gathering, cancel, carried, in_order, uncarried
from art_nb.rollouts.tracebacks import ShortTraceback
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.trajectories.group import PendingGroup, attempt, one_trajectory

AfterEach = Callable[[TrajectoryGroup], Awaitable[TrajectoryGroup | list[TrajectoryGroup] | None]]


async def gather_trajectories(
    trajectories: Iterable[Awaitable[Trajectory]] | Iterable[Awaitable[Iterable[Trajectory]]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
) -> list[Any]:
    """Run rollouts at once. Returns one result for each, in the order given.

    A result is what the rollout returned (a Trajectory or a list of them), or the exception that it raised.

    Args:
        pbar_desc: label of the progress bar; None shows no bar.
        max_exceptions: how many rollouts may fail: a count, or a share of them if between 0 and 1.

    Raises: the exception of a rollout that is one too many; all others are then cancelled. Its traceback shows the
        caller's own frames and where it was raised; `error.full_traceback` keeps the rest.
    """
    _deprecated(pbar_total_completion_tokens)
    awaitables = list(trajectories)
    gathering = Gathering(len(awaitables), max_exceptions)
    with ShortTraceback():
        async with gathering.watched(pbar_desc):
            return await in_order((attempt(a, gathering, _one_or_many) for a in awaitables), gathering.spawn)


async def gather_trajectory_groups(
    groups: Iterable[Awaitable[TrajectoryGroup]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
    max_metrics: int | None = None,
    after_each: AfterEach | None = None,
) -> list[TrajectoryGroup]:
    """Run all rollouts of all groups at once. Returns the groups in the order given.

    Args:
        groups: `TrajectoryGroup(rollout(...) for ...)`, or calls of async functions that return a group.
        pbar_desc: label of the progress bar; None shows no bar.
        max_exceptions: how many rollouts may fail: a count, or a share of them if between 0 and 1. Those that
            failed are in `group.exceptions`, and their group is smaller.
        max_metrics: how many metrics the bar shows; None shows all.
        after_each: awaited with each group once it is complete (a judge, say). Returns the group to keep,
            a list of groups, or None to drop it.

    Raises: the exception of a rollout that is one too many; all others are then cancelled. Its traceback shows the
        caller's own frames and where it was raised; `error.full_traceback` keeps the rest.
    """
    _deprecated(pbar_total_completion_tokens)
    pending = list(groups)
    gathering = Gathering(_rollouts_in(pending), max_exceptions, max_metrics)

    async def finish(group: Awaitable[TrajectoryGroup]) -> list[TrajectoryGroup]:
        done = await _run_group(group, gathering)
        if done is None:
            return []
        kept = done if after_each is None else await after_each(done)
        return [] if kept is None else kept if isinstance(kept, list) else [kept]

    with ShortTraceback():
        async with gathering.watched(pbar_desc):
            kept = await in_order((finish(group) for group in pending), gathering.spawn)
    return [group for several in kept for group in several]


async def trajectory_group_batches(
    groups: Iterable[Awaitable[TrajectoryGroup]],
    *,
    batch_size: int,
    max_batch_exceptions: int | float = 0,
    max_concurrent_batches: int = 4,
    skip_batches: int = 0,
    pbar_desc: str | None = "batches",
    pbar_total_completion_tokens: bool = False,
) -> AsyncIterator[list[TrajectoryGroup]]:
    """Yield lists of `batch_size` groups, in the order given (the last may be shorter), while later ones run.

    Args:
        batch_size: groups in a list.
        max_batch_exceptions: how many rollouts may fail from one list to the next: a count, or a share of the
            rollouts of one list if between 0 and 1.
        max_concurrent_batches: lists' worth of groups that run at a time, the one being waited for included.
        skip_batches: lists to leave out at the start, without running them (to go on where a run stopped).
        pbar_desc: label of the progress bars, one per list; None shows none.

    Leaving the loop early (`await batches.aclose()`) cancels what still runs.
    """
    _deprecated(pbar_total_completion_tokens)
    if batch_size < 1 or max_concurrent_batches < 1:
        raise ValueError(
            f"batch_size={batch_size}, max_concurrent_batches={max_concurrent_batches}: give 1 or more."
        )
    waiting = deque(groups)
    for _ in range(min(len(waiting), batch_size * skip_batches)):
        _give_up(waiting.popleft())
    running: deque[asyncio.Task] = deque()
    gathering = Gathering(max_exceptions=max_batch_exceptions, advance=False)
    try:
        while waiting or running:
            gathering.restart(_rollouts_in(list(waiting)[:batch_size]) or gathering.total)
            with ShortTraceback():
                async with gathering.watched(pbar_desc, batch_size):
                    batch = await _next_batch(
                        waiting, running, gathering, batch_size, batch_size * max_concurrent_batches
                    )
            if batch:
                yield batch
    finally:
        await cancel(running)
        for group in waiting:
            _give_up(group)


async def _next_batch(
    waiting: deque, running: deque[asyncio.Task], gathering: Gathering, size: int, at_a_time: int
) -> list[TrajectoryGroup]:
    """The next `size` groups that did not fail, in order, while up to `at_a_time` groups run."""
    batch: list[TrajectoryGroup] = []
    while len(batch) < size and (waiting or running):
        while waiting and len(running) < at_a_time:
            running.append(gathering.spawn(carried(_run_group(waiting.popleft(), gathering))))
        with uncarried():
            await _first_or_any_failure(running)
        group = running.popleft().result()
        if group is not None:
            batch.append(group)
            gathering.step()
    return batch


async def _first_or_any_failure(running: deque[asyncio.Task]) -> None:
    """Wait for the first task; a later one that fails before it ends the wait by raising."""
    while True:
        for task in running:
            if task.done():
                task.result()
        if running[0].done():
            return
        pending = [task for task in running if not task.done()]
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)


async def _run_group(group: Awaitable[TrajectoryGroup], gathering: Gathering) -> TrajectoryGroup | None:
    """The group; None when an async function that was to make it raised, and that is tolerated."""
    if isinstance(group, PendingGroup):
        return await group
    result = await attempt(group, gathering, _one_group)
    if isinstance(result, Exception):
        return None
    gathering.expect(len(result) - 1)
    return result


def _rollouts_in(groups: list[Any]) -> int:
    return sum(getattr(group, "_num_trajectories", 1) for group in groups)


def _one_or_many(result: Any) -> Trajectory | list[Trajectory]:
    many = [result] if isinstance(result, Trajectory) or not isinstance(result, Iterable) else list(result)
    for item in many:
        one_trajectory(item)
    return result if isinstance(result, Trajectory) else many


def _one_group(result: Any) -> TrajectoryGroup:
    if not isinstance(result, TrajectoryGroup):
        raise TypeError(f"expected an awaitable of a TrajectoryGroup, but it gave {type(result).__name__}.")
    return result


def _give_up(group: Any) -> None:
    if hasattr(group, "close"):
        group.close()


def _deprecated(pbar_total_completion_tokens: bool) -> None:
    if pbar_total_completion_tokens:
        warnings.warn("pbar_total_completion_tokens has no effect", DeprecationWarning, stacklevel=3)
