"""What benchmarks of a rise share: try held-out scenarios, train on others, try again, and say how much better it went."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from itertools import islice
from statistics import fmean
from typing import Any, TypeVar

import art_nb as art
from benchmarks.paired import paired
from benchmarks.result import print_result, say

S = TypeVar("S")
Play = Callable[[S, float], Awaitable[art.Trajectory]]  # from a scenario and a temperature
Metrics = dict[str, float]
Tried = dict[str, list[Metrics]]  # for each of TEMPERATURES the metrics of each scenario

LAST_SHARE = 0.1  # of the learning rate, at the last step
TEMPERATURES = {"drawn": 1.0, "used": 0.5}  # as in training, and as one would use it


def falling(step: int, steps: int, first: float) -> float:
    """A learning rate that falls in a line, to LAST_SHARE of the first, at a step counted from 0."""
    return first * (1 - (1 - LAST_SHARE) * step / max(1, steps - 1))


def pay_calls(trajectory: art.Trajectory, gains: Iterable[float]) -> None:
    """Each answer of the model is paid what its calls earned. gains: of each call; an answer without one counts as one."""
    left = iter(gains)
    answers = trajectory.choices()
    trajectory.turn_rewards = [sum(islice(left, max(1, len(said.message.tool_calls or [])))) for said in answers]
    trajectory.reward = sum(trajectory.turn_rewards)


async def before_and_after(
    model: art.TrainableModel,
    play: Play[S],
    held_out: Sequence[S],
    scenarios: Sequence[S],
    configs: Sequence[art.TrainConfig],
    groups: int,
    size: int,
    shown: Collection[str],
) -> tuple[Tried, Tried, float]:
    """(held-out scenarios tried before training, and after it; seconds of training).

    configs: one a step, which has `groups` groups of `size` trajectories, on scenarios of its own until there are no more.
    shown: the metrics whose means are said on the way.
    """
    before, started = await tried(model.name, play, held_out, shown), time.perf_counter()
    for step, config in enumerate(configs):
        chosen = [scenarios[(step * groups + g) % len(scenarios)] for g in range(groups)]
        say(f"step {step + 1} of {len(configs)}: " + await train_step(model, play, chosen, size, config, shown))
    seconds = time.perf_counter() - started
    return before, await tried(model.name, play, held_out, shown), seconds


async def train_step(
    model: art.TrainableModel,
    play: Play[S],
    chosen: Sequence[S],
    size: int,
    config: art.TrainConfig,
    shown: Collection[str],
) -> str:
    """Trains on a group of each chosen scenario; the means of what was gathered, the seconds of gathering and updating."""
    started = time.perf_counter()
    groups = [art.TrajectoryGroup(play(scenario, TEMPERATURES["drawn"]) for _ in range(size)) for scenario in chosen]
    played = await art.gather_trajectory_groups(groups, pbar_desc=None)
    gathered = time.perf_counter()
    await model.train(played, config)
    trajectories = [trajectory for group in played for trajectory in group]
    means = {name: fmean(t.metrics[name] for t in trajectories) for name in shown}
    means["reward"] = fmean(t.reward for t in trajectories)
    said = [f"{name} {mean:.2f}" for name, mean in means.items()]
    return ", ".join([*said, f"{gathered - started:.1f} + {time.perf_counter() - gathered:.1f} s"])


async def tried(name: str, play: Play[S], scenarios: Sequence[S], shown: Collection[str]) -> Tried:
    """One trajectory of each scenario in each way of sampling; `name` says whose."""
    found = {}
    for kind, temperature in TEMPERATURES.items():
        trajectories = await art.gather_trajectories([play(s, temperature) for s in scenarios], pbar_desc=None)
        found[kind] = [trajectory.metrics for trajectory in trajectories]
        say(f"{name}, {kind}: " + ", ".join(f"{key} {fmean(m[key] for m in found[kind]):.3f}" for key in shown))
    return found


def rises(before: list[Metrics], after: list[Metrics], measured: dict[str, int]) -> dict[str, dict[str, float]]:
    """For each metric its means before and after, and the mean rise with its 95% interval, paired by scenario.

    measured: metric -> its unit, 100 for percent.
    """
    return {name: paired([m[name] for m in before], [m[name] for m in after], unit) for name, unit in measured.items()}


def of_seeds(
    measure_seed: Callable[..., Any], metric: str, seeds: list[int], split: str, reward: str, **fewer: int
) -> dict[str, Any]:
    """What `measure_seed(folder, seed, split, reward)` finds from each seed; `ratio`: the metric, drawn, after over before.

    fewer: `steps` and `count` (scenarios) for a quick look.
    """
    with tempfile.TemporaryDirectory() as folder:
        runs = [asyncio.run(measure_seed(folder, seed, split, reward, **fewer)) for seed in seeds]
    before, after = (fmean(run["drawn"][metric][when] for run in runs) for when in ("before", "after"))
    return {"split": split, "reward": reward, "runs": runs, "ratio": after / before if before else None}


def command(
    benchmark: str, doc: str | None, measure: Callable[..., dict], splits: Iterable[str], rewards: Sequence[str]
) -> None:
    """The command line of such a benchmark; the first reward is the usual one."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--split", choices=list(splits), default="test", help="whose scenarios are tried")
    parser.add_argument("--reward", choices=rewards, default=rewards[0])
    a = parser.parse_args()
    print_result(benchmark, lambda: measure(a.seeds, a.split, a.reward))
