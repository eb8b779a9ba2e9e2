"""Run many rollouts at once: results keep their order, failures are counted, a long silence is explained.

It knows nothing of trajectories beyond a `reward` and a dict of `metrics`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar
from weakref import WeakSet

from tqdm.auto import tqdm

T = TypeVar("T")

SILENT_AFTER = 20.0  # seconds without a finished rollout after which the bar says what it waits for


class _Interrupted(BaseException):
    """Carries a KeyboardInterrupt out of a task; raised bare it stops the event loop with no clean-up."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(raised)
        self.raised = raised


async def carried(awaitable: Awaitable[T]) -> T:
    """Await inside a task that `uncarried` waits for."""
    try:
        return await awaitable
    except (KeyboardInterrupt, SystemExit) as interrupt:
        raise _Interrupted(interrupt) from interrupt


@contextmanager
def uncarried() -> Iterator[None]:
    """What `carried` tasks raise leaves this block as it was raised first."""
    try:
        yield
    except _Interrupted as carrier:
        raise carrier.raised from None


async def in_order(
    coroutines: Iterable[Coroutine[Any, Any, T]], start: Callable[..., asyncio.Task] = asyncio.create_task
) -> list[T]:
    """Run all at once, each in a task made by `start`; their results in the order given.

    When one raises, or the caller is cancelled, all others are cancelled and waited for before it propagates.
    """
    tasks = [start(carried(c)) for c in coroutines]
    try:
        with uncarried():
            return await asyncio.gather(*tasks)
    finally:
        await cancel(tasks)


async def cancel(tasks: Iterable[asyncio.Future]) -> None:
    """Cancel what still runs and wait until it has stopped."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Gathering:
    """The state of one gather call: what has finished, what has failed, and the bar that shows it.

    total: rollouts expected.
    max_exceptions: failures to put up with: a count, or a share of `total` if it lies between 0 and 1.
    max_metrics: how many metrics the bar shows; None shows all.
    advance: whether a finished rollout moves the bar (a gather of batches moves it itself).
    """

    def __init__(
        self,
        total: int = 1,
        max_exceptions: int | float = 0,
        max_metrics: int | None = None,
        advance: bool = True,
    ) -> None:
        if not max_exceptions >= 0:
            raise ValueError(
                f"max_exceptions is {max_exceptions}; give a count >= 0 or a share between 0 and 1."
            )
        self.max_exceptions, self.max_metrics, self.advance = max_exceptions, max_metrics, advance
        self.in_flight, self.bar = 0, None
        self.outer = _current.get()  # a rollout may gather in turn
        self.restart(total)

    def restart(self, total: int) -> None:
        """Forget what was counted (the next batch begins)."""
        self.total = total
        self.errors: list[Exception] = []
        self.counted: dict[int, Any] = {}  # by id; held, so that no id is used twice
        self.sums: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.last_news = time.monotonic()

    def finished(self, trajectories: Iterable[Any], steps: int) -> None:
        """Count trajectories (once each, however often they are reported) and move the bar by `steps`."""
        for trajectory in trajectories:
            if id(trajectory) not in self.counted:
                self.counted[id(trajectory)] = trajectory
                metrics = {"reward": trajectory.reward, **trajectory.metrics}
                self.sums.update(metrics)
                self.counts.update(metrics.keys())
        self._news(steps)

    def failed(self, error: Exception) -> None:
        """Count a failure. Raises: `error` itself when there are more than `max_exceptions`."""
        new = not any(error is known for known in self.errors)
        if new:
            self.errors.append(error)
        self._news(0)
        allowed = self.max_exceptions * self.total if 0 < self.max_exceptions < 1 else self.max_exceptions
        if len(self.errors) > allowed:
            if new:
                failures = f"{len(self.errors)} of {self.total} rollouts failed"
                error.add_note(f"{failures}; max_exceptions={self.max_exceptions} allows no more.")
            raise error

    def expect(self, more: int) -> None:
        """A group turned out to hold `more` rollouts than were counted on."""
        self.total += more
        if self.bar is not None and self.advance:
            self.bar.total = self.total

    def step(self) -> None:
        """Move a bar that finished rollouts do not move."""
        if self.bar is not None:
            self.bar.update(1)

    def _news(self, steps: int) -> None:
        self.last_news = time.monotonic()
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
        """A rollout runs inside this block."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task; it and the tasks that it makes report to this gathering."""
        context = copy_context()
        context.run(_current.set, self)
        return asyncio.create_task(coroutine, context=context)

    async def explain_silence(self) -> None:
        """Runs beside the rollouts: when nothing finishes for a while, the bar says so."""
        while True:
            silence = time.monotonic() - self.last_news
            if silence >= SILENT_AFTER and self.bar is not None:
                what = f"{self.in_flight} running rollouts" if self.in_flight else "after_each"
                self.bar.set_postfix_str(f"nothing new for {silence:.0f} s, waiting for {what}")
            # A kernel that sleeps notices an interrupt only when it next wakes up: at most a second.
            await asyncio.sleep(1.0 if silence >= SILENT_AFTER else min(1.0, SILENT_AFTER - silence))

    @asynccontextmanager
    async def watched(self, desc: str | None, bar_total: int | None = None) -> AsyncIterator["Gathering"]:
        """Show a bar (none when `desc` is None) and explain silences; closed at the end, come what may."""
        self.bar = None if desc is None else tqdm(desc=desc, total=bar_total or self.total)
        watcher = asyncio.create_task(self.explain_silence())
        try:
            yield self
        finally:
            watcher.cancel()
            if self.bar is not None:
                self.bar.close()


_current: ContextVar[Gathering | None] = ContextVar("gathering", default=None)


def outermost() -> Gathering | None:
    """The gathering that the running task belongs to, not one that a rollout began; None outside of all."""
    gathering = _current.get()
    while gathering is not None and gathering.outer is not None:
        gathering = gathering.outer
    return gathering


class Fresh:
    """Tells when what was remembered of earlier gatherings goes: as the first of several side by side begins to ask.

    So a gathering gives the same whatever was sampled before it: a run that was interrupted, or that validates at other
    times, still trains on the same rollouts.
    """

    def __init__(self) -> None:
        self._known: WeakSet[Gathering] = WeakSet()

    def begins(self, idle: bool) -> bool:
        """Whether the running task asks first for its gathering and nobody else is at it. idle: nothing is being sampled."""
        now = outermost()
        if now is None or now in self._known:
            return False
        alone = idle and not any(gathering.in_flight for gathering in self._known)
        self._known.add(now)
        return alone


def current(total: int) -> Gathering:
    """The gathering that the running task belongs to, or one of `total` rollouts that tolerates no exception."""
    return _current.get() or Gathering(total)
