"""Steps that overlap: the next batch is sampled while the model trains on this one.

What an older policy sampled is trained on with its ratio to that policy (see `TrainConfig.other_policies`), and at most so
many steps old. ART's pipeline trainer does the same with a queue of groups; here a batch is a batch, so that a run with and
one without can be compared step by step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from art_nb.model import TrainableModel
from art_nb.rollouts.gathering import cancel, carried, uncarried
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.types import TrainConfig

Gather = Callable[[int], Awaitable[list[TrajectoryGroup]]]


@dataclass
class Step:
    """A step that was taken.

    seconds: since the first batch was begun; waited: of these the seconds that training waited for the batch.
    staleness: how many steps older than the policy in training the policies were that sampled the batch, in the mean.
    """

    step: int
    seconds: float
    waited: float
    staleness: float
    metrics: dict[str, float] = field(default_factory=dict)


async def overlapped(
    model: TrainableModel,
    gather: Gather,
    steps: int,
    config: Callable[[int], TrainConfig] | TrainConfig | None = None,
    *,
    max_staleness: int = 1,
) -> AsyncIterator[Step]:
    """Train until the model has taken `steps` steps. A batch is gathered while at most `max_staleness` before it are open.

    On a `RayBackend` sampling and training then go on at the same time. A `LocalBackend` trains and samples in one process:
    nothing overlaps there, and with a staleness nothing is gained. Rollouts that name one policy throughout, by
    `name = model.get_inference_name()` at their start, keep what is computed of their conversation.

    Args:
        gather: called with the number of the step that the batch is for, from the model's present one on; gives the groups.
        config: of every step, or a function of the step's number.
        max_staleness: 0 gathers a batch when the step before is done, as a loop without this does.

    Raises: whatever `gather` or training raises; what runs is cancelled. Leaving the loop early (`aclose`) cancels it too.
    """
    if max_staleness < 0:
        raise ValueError(f"max_staleness={max_staleness}: give 0 or more")
    first = await model.get_step()
    ready: asyncio.Queue[tuple[list[TrajectoryGroup], float]] = asyncio.Queue()
    taken = asyncio.Condition()
    at, started = first, time.perf_counter()

    async def sample() -> None:
        for step in range(first, steps):
            idle = time.perf_counter()
            async with taken:
                await taken.wait_for(lambda step=step: step - at <= max_staleness)  # type: ignore[misc]
            idle = time.perf_counter() - idle
            await ready.put((await gather(step), idle))

    sampling = asyncio.create_task(carried(sample()))
    try:
        for step in range(first, steps):
            waiting = time.perf_counter()
            groups, actor_idle = await _next(ready, sampling)
            waited, stale = time.perf_counter() - waiting, staleness([t for group in groups for t in group], step)
            model.metrics_builder().add_idle_times(step_trainer_idle_s=waited, step_actor_idle_s=actor_idle)
            for trajectory in (trajectory for group in groups for trajectory in group):
                trajectory.metrics["steps_off_policy"] = staleness([trajectory], step)
            chosen = config(step) if callable(config) else config
            result = await model.train(groups, chosen)
            async with taken:
                at = result.step
                taken.notify_all()
            yield Step(result.step, time.perf_counter() - started, waited, stale, result.metrics)
    finally:
        await cancel([sampling])


async def _next(
    ready: asyncio.Queue[tuple[list[TrajectoryGroup], float]], sampling: asyncio.Task[None]
) -> tuple[list[TrajectoryGroup], float]:
    """The next batch. Raises: what gathering it raised."""
    getting = asyncio.create_task(ready.get())
    try:
        with uncarried():
            await asyncio.wait([getting, sampling], return_when=asyncio.FIRST_COMPLETED)
            if not getting.done() and ready.empty():
                sampling.result()
            return await getting
    finally:
        await cancel([getting])


def staleness(trajectories: list[Trajectory], step: int) -> float:
    """How many steps older than the policy of `step` the policies are that sampled the choices, in the mean.

    Choices that do not say which policy sampled them count as of that step.
    """
    policies = [getattr(choice, "policy", None) or "" for t in trajectories for choice in t.choices()]
    ages = [step - int(number) for _, at, number in (policy.rpartition("@") for policy in policies) if at]
    return sum(ages) / len(policies) if policies else 0.0


@dataclass
class Compared:
    """Two runs of as many steps: one step after the other, and overlapped."""

    apart: list[Step]
    overlapped: list[Step]

    @property
    def ratio(self) -> float:
        """Steps a minute, overlapped over one after the other."""
        return (len(self.overlapped) / self.overlapped[-1].seconds) / (len(self.apart) / self.apart[-1].seconds)


async def compared(
    models: tuple[TrainableModel, TrainableModel],
    gather: Callable[[TrainableModel, int], Awaitable[list[TrajectoryGroup]]],
    steps: int,
    config: Callable[[int], TrainConfig] | TrainConfig | None = None,
    *,
    max_staleness: int = 1,
) -> Compared:
    """Train the first model with one step after the other, then the second one overlapped; as `overlapped`.

    gather: called with the model and the number of the step.
    """
    runs = []
    for model, most in zip(models, (0, max_staleness), strict=True):
        runs.append([step async for step in overlapped(model, partial(gather, model), steps, config, max_staleness=most)])
    return Compared(*runs)
