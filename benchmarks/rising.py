"""Shared by the benchmarks of learning: evaluate on held-out scenarios, train, evaluate again, and compare."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from itertools import islice
from random import Random
from statistics import fmean
from typing import Any, TypeVar

import art_nb as art
from benchmarks.paired import paired
from benchmarks.result import print_result, say
from course import comparison

S = TypeVar("S")
Play = Callable[[S, float], Awaitable[art.Trajectory]]  # of a scenario, at a temperature
Metrics = dict[str, float]

FINAL_SHARE = 0.1  # of the learning rate, at the last step
PASSES, TRIES = 40, 8  # held-out scenarios for pass@k, and k


def decayed_rate(step: int, steps: int, first: float) -> float:
    """Return the learning rate at a step, counted from 0. Decays linearly from `first` to FINAL_SHARE of it."""
    return first * (1 - (1 - FINAL_SHARE) * step / max(1, steps - 1))


def reward_answers(trajectory: art.Trajectory, call_rewards: Iterable[float]) -> None:
    """Set the turn reward of each answer to the sum of its calls' rewards. An answer without a call has one reward."""
    rewards = iter(call_rewards)
    answers = trajectory.choices()
    trajectory.turn_rewards = [sum(islice(rewards, max(1, len(a.message.tool_calls or [])))) for a in answers]
    trajectory.reward = sum(trajectory.turn_rewards)


async def before_and_after(
    model: art.TrainableModel,
    play: Play[S],
    metric: str,
    held_out: Sequence[S],
    validation: Sequence[S],
    scenarios: Sequence[S],
    configs: Sequence[art.TrainConfig],
    groups: int,
    size: int,
    shown: Collection[str],
    rule: Sequence[float],
) -> tuple[dict[str, Any], list[Metrics], list[Metrics]]:
    """Evaluate, train, evaluate again.

    metric: 1 for a success. validation: scenarios used to choose each side's temperature. rule: the success of the
    rule-based baseline on each held-out scenario. configs, groups, size, shown: see `train`.

    Returns the columns that all benchmarks of learning share (`Comparison.summary`, with the shares on validation and the
    seconds of training), and the metrics of the held-out scenarios before and after, each at its best temperature.
    """

    async def succeeds(scenario: S, temperature: float) -> float:
        return (await play(scenario, temperature)).metrics[metric]

    untrained, before = await evaluate(model.name, play, metric, held_out, validation)
    tried = Random(0).sample(held_out, min(PASSES, len(held_out)))
    tries = await comparison.tries_at(succeeds, tried, TRIES)
    seconds = await train(model, play, scenarios, configs, groups, size, shown)
    trained, after = await evaluate(model.name, play, metric, held_out, validation)
    found = comparison.compare(untrained, trained, rule, "rule", tries)
    say(f"{model.name}:\n{found.table()}")
    return {**found.summary(), "validation": found.validation, "seconds": seconds}, before, after


async def train(
    model: art.TrainableModel,
    play: Play[S],
    scenarios: Sequence[S],
    configs: Sequence[art.TrainConfig],
    groups: int,
    size: int,
    shown: Collection[str],
    after_each: Callable[[art.TrajectoryGroup], Awaitable[art.TrajectoryGroup | None]] | None = None,
    temperature: float = 1.0,
) -> float:
    """Train for one step per config, each on `groups` groups of `size` trajectories. Returns seconds.

    scenarios: used in order, one per group, from the beginning again after the last. shown: metrics whose means are printed
    after each step. after_each: applied to each gathered group. temperature: of the answers, the same as in the configs.
    """
    started = time.perf_counter()
    for step, config in enumerate(configs):
        chosen = [scenarios[(step * groups + g) % len(scenarios)] for g in range(groups)]
        report = await train_step(model, play, chosen, size, config, shown, after_each, temperature)
        say(f"{model.name}: step {step + 1} of {len(configs)}: {report}")
    return time.perf_counter() - started


async def train_step(
    model: art.TrainableModel,
    play: Play[S],
    chosen: Sequence[S],
    size: int,
    config: art.TrainConfig,
    shown: Collection[str],
    after_each: Callable[[art.TrajectoryGroup], Awaitable[art.TrajectoryGroup | None]] | None = None,
    temperature: float = 1.0,
) -> str:
    """Train on one group per chosen scenario. Returns the means of the metrics and the seconds of gathering and updating."""
    started = time.perf_counter()
    groups = [art.TrajectoryGroup(play(scenario, temperature) for _ in range(size)) for scenario in chosen]
    played = await art.gather_trajectory_groups(groups, pbar_desc=None, after_each=after_each)
    gathered = time.perf_counter()
    await model.train(played, config)
    trajectories = [trajectory for group in played for trajectory in group]
    means = {name: fmean(t.metrics[name] for t in trajectories) for name in shown}
    means["reward"] = fmean(t.reward for t in trajectories)
    report = [f"{name} {mean:.2f}" for name, mean in means.items()]
    return ", ".join([*report, f"{gathered - started:.1f} + {time.perf_counter() - gathered:.1f} s"])


async def evaluate(
    name: str, play: Play[S], metric: str, held_out: Sequence[S], validation: Sequence[S]
) -> tuple[comparison.Measured, list[Metrics]]:
    """Choose the temperature on validation and play the held-out scenarios. Also returns their metrics at this temperature.

    name: the model's, for the printed line. metric: 1 for a success.
    """
    found: dict[tuple[int, float], Metrics] = {}
    numbered = list(enumerate([*held_out, *validation]))  # a scenario may be in both

    async def succeeds(scenario: tuple[int, S], temperature: float) -> float:
        found[scenario[0], temperature] = metrics = (await play(scenario[1], temperature)).metrics
        return metrics[metric]

    measured = await comparison.measure(succeeds, numbered[len(held_out) :], numbered[: len(held_out)])
    at_one, at_best = comparison.share(measured.t1), comparison.share(measured.best)
    say(f"{name}, {metric}: {at_one} at temperature 1, {at_best} at {measured.temperature:g}")
    return measured, [found[number, measured.temperature] for number in range(len(held_out))]


def rises(before: list[Metrics], after: list[Metrics], measured: dict[str, int]) -> dict[str, dict[str, float]]:
    """Return for each metric its means before and after, and the mean rise with a 95% interval, paired by scenario.

    measured: metric -> its factor, 100 for percent.
    """
    return {name: paired([m[name] for m in before], [m[name] for m in after], unit) for name, unit in measured.items()}


def run_seeds(measure_seed: Callable[..., Any], seeds: list[int], *arguments: Any, **overrides: int) -> dict[str, Any]:
    """Run `measure_seed(folder, seed, *arguments)` for each seed. `ratio`: trained over untrained, both at their best.

    overrides: `steps` and `count` (scenarios) for a quick run.
    """
    with tempfile.TemporaryDirectory() as folder:
        runs = [asyncio.run(measure_seed(folder, seed, *arguments, **overrides)) for seed in seeds]
    pairs = [{"before": run["untrained_best"], "after": run["trained_best"]} for run in runs]
    return {"runs": runs, "ratio": ratio_of_means(pairs)}


def ratio_of_means(runs: Sequence[dict[str, float]]) -> float | None:
    """Return the mean `after` over the mean `before`, or None if the latter is 0."""
    before, after = (fmean(run[when] for run in runs) for when in ("before", "after"))
    return after / before if before else None


def command(
    benchmark: str, doc: str | None, measure: Callable[..., dict], splits: Iterable[str], rewards: Sequence[str]
) -> None:
    """Run the command line of a benchmark. The first reward is the default."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="backend seeds, one run for each")
    parser.add_argument("--split", choices=list(splits), default="test", help="split of the held-out scenarios")
    parser.add_argument("--reward", choices=rewards, default=rewards[0], help="the training reward, see above")
    a = parser.parse_args()
    print_result(benchmark, lambda: measure(a.seeds, a.split, a.reward))
