"""Asynchronous training: the next batch is sampled while the model trains on this one.

Samples of an older policy are off-policy: they are trained on with their ratio to that policy (see
`TrainConfig.other_policies`), up to a maximum staleness. ART's pipeline trainer does the same with a queue of groups; here
batches stay whole, so that runs with and without overlap can be compared step by step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from art_nb.model import TrainableModel
from art_nb.rollouts.gathering import cancel, unwrap_interrupt, wrap_interrupt
from art_nb.trajectories import Trajectory, TrajectoryGroup
from art_nb.types import PolicyName, TrainConfig

Batch = tuple[list[TrajectoryGroup], float]  # the groups, and the seconds that the samplers were idle before
Gather = Callable[[int], Awaitable[list[TrajectoryGroup]]]


@dataclass
class OverlappedStep:
    """The result of one training step.

    seconds: since the first batch was started. waited: seconds that training waited for this batch.
    staleness: mean number of steps by which the policies that sampled the batch are older than the one in training.
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
) -> AsyncIterator[OverlappedStep]:
    """Train until the model has taken `steps` steps, gathering each batch up to `max_staleness` steps ahead.

    On a `RayBackend` sampling and training then run at the same time. A `LocalBackend` does both in one process, so nothing
    overlaps and staleness gains nothing. Rollouts that use one policy throughout, by `name = model.get_inference_name()` at
    their start, keep the KV cache of their conversation.

    Args:
        gather: called with the number of the step that the batch is for, starting at the model's; returns the groups.
        config: of every step, or a function of the step's number.
        max_staleness: 0 gathers a batch when the step before is done, as a plain training loop does.

    Raises: any exception of `gather` or training, after cancelling the rest. Leaving the loop early (`aclose`) cancels, too.
    """
    if max_staleness < 0:
        raise ValueError(f"max_staleness={max_staleness}: give 0 or more")
    first = await model.get_step()
    ready: asyncio.Queue[Batch] = asyncio.Queue()
    step_taken = asyncio.Condition()
    at, started = first, time.perf_counter()

    async def sample() -> None:
        for step in range(first, steps):
            idle = time.perf_counter()
            async with step_taken:
                await step_taken.wait_for(lambda step=step: step - at <= max_staleness)  # type: ignore[misc]
            idle = time.perf_counter() - idle
            await ready.put((await gather(step), idle))

    sampling = asyncio.create_task(wrap_interrupt(sample()))
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
            async with step_taken:
                at = result.step
                step_taken.notify_all()
            yield OverlappedStep(result.step, time.perf_counter() - started, waited, stale, result.metrics)
    finally:
        await cancel([sampling])


async def _next(ready: asyncio.Queue[Batch], sampling: asyncio.Task[None]) -> Batch:
    """Return the next batch. Re-raises the exception of gathering it."""
    getting = asyncio.create_task(ready.get())
    try:
        with unwrap_interrupt():
            await asyncio.wait([getting, sampling], return_when=asyncio.FIRST_COMPLETED)
            if not getting.done() and ready.empty():
                sampling.result()
            return await getting
    finally:
        await cancel([getting])


def staleness(trajectories: list[Trajectory], step: int) -> float:
    """Return by how many steps the policies that sampled the choices are older than that of `step`, on average.

    Choices without a known policy count as sampled by that of `step`.
    """
    policies = [getattr(choice, "policy", None) or "" for t in trajectories for choice in t.all_choices()]
    ages = [step - policy.step for policy in map(PolicyName.parse, policies) if policy]
    return sum(ages) / len(policies) if policies else 0.0
