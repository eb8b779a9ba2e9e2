"""Run rollouts concurrently and collect their trajectories, with a progress bar.

`pbar_total_completion_tokens` is accepted for ART compatibility but ignored.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from art_nb.rollouts.gathering import Gathering, cancel, discard, group_call, in_order, unwrap_interrupt, wrap_interrupt
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
    """Run rollouts concurrently; return one result for each, in the order given.

    A result is the rollout's return value (a Trajectory or a list of them), or the exception that it raised.

    Args:
        pbar_desc: label of the progress bar; None: no bar.
        max_exceptions: failures to tolerate: a count, or a share of the rollouts if between 0 and 1.

    Raises: the first exception that is not tolerated, after cancelling the other rollouts. Its traceback omits
        frames of art_nb and asyncio except the last; `error.full_traceback` has all frames.
    """
    awaitables = list(trajectories)
    gathering = Gathering(awaitables, max_exceptions)
    with ShortTraceback():
        async with gathering.progress(pbar_desc):
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
    """Run all rollouts of all groups concurrently; return the groups in the order given.

    Args:
        groups: `TrajectoryGroup(rollout(...) for ...)`, or calls of async functions that return a group. If `max_exceptions`
            is a share, a call counts as one rollout until it awaits a `TrajectoryGroup` of rollouts, or returns.
        pbar_desc: label of the progress bar; None: no bar.
        max_exceptions: as in `gather_trajectories`; a failed rollout is in `group.exceptions`; a failed call has no group.
        max_metrics: number of metrics that the bar shows; None: all.
        after_each: async function of a finished group, such as a judge. Returns the group to keep, a list of groups, or
            None to drop it.

    Raises: as `gather_trajectories`; TypeError when `after_each` returns anything else.
    """
    pending = list(groups)
    gathering = Gathering(pending, max_exceptions, max_metrics)

    async def finish(group: Awaitable[TrajectoryGroup]) -> list[TrajectoryGroup]:
        done = await _run_group(group, gathering)
        kept = done if done is None or after_each is None else await after_each(done)
        found = [] if kept is None else kept if isinstance(kept, list) else [kept]
        if wrong := [type(each).__name__ for each in found if not isinstance(each, TrajectoryGroup)]:
            raise TypeError(f"after_each returned {', '.join(wrong)}: expected a TrajectoryGroup, a list of them, or None")
        return found

    with ShortTraceback():
        async with gathering.progress(pbar_desc):
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
    """Yield lists of `batch_size` groups in the order given (the last may be shorter) while later groups run.

    Args:
        max_batch_exceptions: failures to tolerate between two yields, including those of later batches, which run
            concurrently: a count, or a share of the next batch's rollouts if between 0 and 1.
        max_concurrent_batches: batches' worth of groups that run concurrently, including the next one to yield.
        skip_batches: to resume a run, skip the first `skip_batches * batch_size` groups without running them. If an async
            function failed, a later group took its place, and the resumed run repeats that group.
        pbar_desc: label of the progress bars, one per batch; None: no bars.

    To leave the loop early and cancel the rollouts, call `await batches.aclose()`.
    """
    if batch_size < 1 or max_concurrent_batches < 1:
        raise ValueError(f"batch_size={batch_size}, max_concurrent_batches={max_concurrent_batches}: expected 1 or more.")
    waiting = deque(groups)
    discard(waiting.popleft() for _ in range(min(len(waiting), batch_size * skip_batches)))
    running: deque[asyncio.Task] = deque()  # tasks of the first groups of `waiting`
    gathering = Gathering(list(waiting)[:batch_size], max_batch_exceptions, advance=False)
    try:
        while waiting:
            with ShortTraceback():
                async with gathering.progress(pbar_desc, batch_size):
                    at_a_time = batch_size * max_concurrent_batches
                    batch = await _next_batch(waiting, running, gathering, batch_size, at_a_time)
            gathering.restart(list(waiting)[:batch_size])
            if batch:
                yield batch
    finally:
        await cancel(running)
        discard(list(waiting)[len(running) :])


async def _next_batch(
    waiting: deque, running: deque[asyncio.Task], gathering: Gathering, size: int, at_a_time: int
) -> list[TrajectoryGroup]:
    """Return the next `size` groups that did not fail, in order, while up to `at_a_time` groups run."""
    batch: list[TrajectoryGroup] = []
    while len(batch) < size and waiting:
        while len(running) < min(at_a_time, len(waiting)):
            running.append(gathering.spawn(wrap_interrupt(_run_group(waiting[len(running)], gathering))))
        with unwrap_interrupt():
            await _first_or_any_failure(running)
        waiting.popleft()
        group = running.popleft().result()
        if group is not None:
            batch.append(group)
            gathering.step()
    return batch


async def _first_or_any_failure(running: deque[asyncio.Task]) -> None:
    """Wait for the first task. Raises: the exception of any task that fails by then."""
    while True:
        for task in running:
            if task.done():
                task.result()
        if running[0].done():
            return
        pending = [task for task in running if not task.done()]
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)


async def _run_group(group: Awaitable[TrajectoryGroup], gathering: Gathering) -> TrajectoryGroup | None:
    """Return the group; None when an async function raised a tolerated exception instead of returning one."""
    if isinstance(group, TrajectoryGroup):  # complete already
        return group
    if isinstance(group, PendingGroup):
        return await group
    group_call.set(id(group))
    result = await attempt(group, gathering, _one_group)
    if isinstance(result, Exception):
        return None
    gathering.expect(0 if id(group) in gathering.sizes else len(result))
    return result


def _one_or_many(result: Any) -> Trajectory | list[Trajectory]:
    if isinstance(result, Trajectory) or not isinstance(result, Iterable):
        return one_trajectory(result)
    return [one_trajectory(item) for item in result]


def _one_group(result: Any) -> TrajectoryGroup:
    if not isinstance(result, TrajectoryGroup):
        raise TypeError(f"a group's async function returned {type(result).__name__}: expected a TrajectoryGroup.")
    return result
