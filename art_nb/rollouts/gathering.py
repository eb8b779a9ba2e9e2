"""Concurrent rollouts: tasks whose results keep their order, and the state of one gather call.

The only requirement on a trajectory is that it has a `reward` and a dict of `metrics`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar
from weakref import WeakSet

from tqdm.auto import tqdm

T = TypeVar("T")

SILENT_AFTER = 20.0  # seconds without a finished or failed rollout after which the bar shows what it is waiting for


class _Interrupted(BaseException):
    """Wraps a KeyboardInterrupt or SystemExit, which would stop the event loop without cleanup if a task raised it."""


async def wrap_interrupt(awaitable: Awaitable[T]) -> T:
    """Await inside a task; re-raise KeyboardInterrupt and SystemExit wrapped, for `unwrap_interrupt`."""
    try:
        return await awaitable
    except (KeyboardInterrupt, SystemExit) as interrupt:
        raise _Interrupted(interrupt) from interrupt


@contextmanager
def unwrap_interrupt() -> Iterator[None]:
    """Re-raise the original interrupt when a task of `wrap_interrupt`, awaited in the block, raises it wrapped."""
    try:
        yield
    except _Interrupted as wrapped:
        raise wrapped.args[0] from None


async def in_order(
    coroutines: Iterable[Coroutine[Any, Any, T]], start: Callable[..., asyncio.Task] = asyncio.create_task
) -> list[T]:
    """Run the coroutines concurrently, each in a task made by `start`; return their results in the order given.

    When one raises, or the caller is cancelled, the others are cancelled and awaited before the exception propagates.
    """
    tasks = [start(wrap_interrupt(c)) for c in coroutines]
    try:
        with unwrap_interrupt():
            return await asyncio.gather(*tasks)
    finally:
        await cancel(tasks)


async def cancel(tasks: Iterable[asyncio.Future]) -> None:
    """Cancel the tasks and wait until all have stopped."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def discard(awaitables: Iterable[Any]) -> None:
    """Close the coroutines and pending groups among these without running them."""
    for each in awaitables:
        if hasattr(each, "close"):
            each.close()


async def drain_event_loop(rounds: int = 8) -> None:
    """Yield to the event loop `rounds` times, so that other coroutines submit the requests they are ready to make."""
    for _ in range(rounds):
        await asyncio.sleep(0)


class Gathering:
    """The state of one gather call: finished and failed rollouts, and its progress bar.

    awaited: rollouts, groups of rollouts, and calls of async functions that return a group.
    max_exceptions: failures to tolerate: a count, or a share of `total` if between 0 and 1. Raises: ValueError if negative.
    max_metrics: number of metrics that the bar shows; None: all.
    advance: whether each finished rollout advances the bar; False: the caller advances it once per group, with `step`.
    """

    def __init__(
        self, awaited: Sequence[Any] = (), max_exceptions: float = 0, max_metrics: int | None = None, advance: bool = True
    ) -> None:
        if not max_exceptions >= 0:
            raise ValueError(f"max_exceptions is {max_exceptions}; expected a count >= 0 or a share between 0 and 1.")
        self.max_exceptions, self.max_metrics, self.advance = max_exceptions, max_metrics, advance
        self.in_flight, self.bar = 0, None
        self.outer = _current.get()  # the gather call whose rollout started this one
        self.sizes: Counter[int] = Counter()  # rollouts in each async function's group, by id of the call; missing: unknown
        self.raised: list[Exception] = []
        self.restart(awaited)

    def restart(self, awaited: Sequence[Any]) -> None:
        """Reset the counts for the next batch."""
        self.awaited = awaited
        self.errors: list[Exception] = []
        self.counted: dict[int, Any] = {}  # by id; holds a reference, so that no id is reused
        self.sums: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Number of expected rollouts. A call of an async function counts as one until the size of its group is known."""
        return sum(self.sizes.get(id(each), getattr(each, "num_rollouts", 1)) for each in self.awaited)

    def finished(self, trajectories: Iterable[Any], steps: int) -> None:
        """Count the trajectories that have not been counted yet, and advance the bar by `steps` rollouts."""
        for trajectory in trajectories:
            if id(trajectory) not in self.counted:
                self.counted[id(trajectory)] = trajectory
                metrics = {"reward": trajectory.reward, **trajectory.metrics}
                self.sums.update(metrics)
                self.counts.update(metrics.keys())
        self._update_bar(steps)

    def failed(self, error: Exception) -> None:
        """Count a failure, once per error. Raises: an error that exceeds `max_exceptions`, each time it is reported."""
        if not any(error is known for known in (*self.errors, *self.raised)):
            self.errors.append(error)
            rollouts = max(self.total, 1) if 0 < self.max_exceptions < 1 else 1
            if len(self.errors) / rollouts > self.max_exceptions:  # share * rollouts could be rounded down
                self.raised.append(error)
                failures = f"{len(self.errors)} of {self.total} rollouts failed"
                error.add_note(f"{failures}; max_exceptions={self.max_exceptions} allows no more.")
        self._update_bar(0)
        if any(error is known for known in self.raised):
            raise error

    def expect(self, rollouts: int) -> None:
        """Add to the expected rollouts of the async function's group that the running task belongs to, if any."""
        self.sizes[group_call.get()] += rollouts
        if self.bar is not None and self.advance and group_call.get():
            self.bar.total = self.total

    def step(self) -> None:
        """Advance the bar by one group."""
        if self.bar is not None:
            self.bar.update(1)

    def _update_bar(self, steps: int) -> None:
        self.last_change = time.monotonic()
        if self.bar is None:
            return
        shown = {name: total / self.counts[name] for name, total in self.sums.items()}
        if self.errors:
            shown["exceptions"] = len(self.errors)
        self.bar.set_postfix(dict(list(shown.items())[: self.max_metrics]), refresh=not steps)
        if self.advance:
            self.bar.update(steps)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count a rollout, or a call of an async function that returns a group, as in flight during the block."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task; it and the tasks that it starts report to this gathering."""
        context = copy_context()
        context.run(_current.set, self)
        return asyncio.create_task(coroutine, context=context)

    @asynccontextmanager
    async def progress(self, desc: str | None, bar_total: int | None = None) -> AsyncIterator["Gathering"]:
        """Show a progress bar during the block; it explains long waits. desc: None: no bar. bar_total: None: `total`."""
        self.bar = None if desc is None else tqdm(desc=desc, total=bar_total or self.total)
        self.last_change = time.monotonic()
        watcher = asyncio.create_task(self._explain_silence())
        try:
            yield self
        finally:
            watcher.cancel()
            if self.bar is not None:
                self.bar.close()

    async def _explain_silence(self) -> None:
        while True:
            silence = time.monotonic() - self.last_change
            if silence >= SILENT_AFTER and self.bar is not None:
                what = f"{self.in_flight} running rollouts and group functions" if self.in_flight else "after_each"
                self.bar.set_postfix_str(f"nothing new for {silence:.0f} s, waiting for {what}")
            # A sleeping kernel handles an interrupt only when it wakes up, so sleep at most a second.
            await asyncio.sleep(1.0 if silence >= SILENT_AFTER else min(1.0, SILENT_AFTER - silence))


_current: ContextVar[Gathering | None] = ContextVar("gathering", default=None)
group_call: ContextVar[int] = ContextVar("group_call", default=0)  # id of the call of an async function that returns a group


def current(group: Any) -> Gathering:
    """Return the running task's gathering, or a new one for `group` that tolerates no exception."""
    return _current.get() or Gathering([group])


def outermost() -> Gathering | None:
    """Return the outermost gathering that the running task belongs to; None outside of any."""
    gathering = _current.get()
    while gathering is not None and gathering.outer is not None:
        gathering = gathering.outer
    return gathering


class GatherResetDetector:
    """Detects when a sampler must clear its caches: at a gather call's first request, if no other gather call is active.

    Earlier samples then do not affect the tokens of such a gather call.
    """

    def __init__(self) -> None:
        self._known: WeakSet[Gathering] = WeakSet()

    def should_reset(self, idle: bool) -> bool:
        """Return True at the first request of a gather call that starts alone. idle: the sampler has no other requests."""
        now = outermost()
        if now is None or now in self._known:
            return False
        alone = idle and not any(gathering.in_flight for gathering in self._known)
        self._known.add(now)
        return alone
