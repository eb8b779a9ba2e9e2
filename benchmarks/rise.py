"""How far the win rate rises in the training of notebook 02, from several seeds.

`python -m benchmarks.rise --seeds 0 1 2` prints one JSON line: for each seed of the backend (the adapter's start and
every draw) the share of 200 held-out games won before and after 12 steps, the rise with its 95% interval (game by game,
paired by seed), and the seconds of training. The settings are the notebook's; `ratio` is the win rate after over before,
in the mean.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from statistics import fmean

import art_nb as art
from art_nb.tasks.game_2048 import scenarios
from benchmarks.gathering import BASE, registered
from benchmarks.paired import paired
from benchmarks.result import print_result, say
from benchmarks.rising import falling
from benchmarks.skills import GROUPS, SIZE, game

STEPS, GAMES = 12, 200


def rate(step: int, steps: int) -> float:
    """The learning rate of notebook 02: it falls in a line, to a tenth."""
    return falling(step, steps, 3e-3)


async def won(model: art.TrainableModel, games: int) -> list[bool]:
    """Which of the first `games` test games the model wins."""
    played = await art.gather_trajectories(
        [game(model, seed, by_tool=False) for seed in scenarios("test", games)], pbar_desc=None
    )
    return [bool(trajectory.metrics["won"]) for trajectory in played]


async def measure_seed(folder: str, seed: int, steps: int = STEPS, games: int = GAMES) -> dict:
    """Train from one seed; shares in percent, seconds of gathering and updating."""
    model = await registered(folder, BASE, f"rise-{seed}", seed=seed)
    before, started = await won(model, games), time.perf_counter()
    for step in range(steps):
        seeds = scenarios("train", (step + 1) * GROUPS)[-GROUPS:]
        groups = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(game(model, s, by_tool=False) for _ in range(SIZE)) for s in seeds], pbar_desc=None
        )
        await model.train(groups, art.TrainConfig(learning_rate=rate(step, steps), turn_discount=0.5))
        say(f"seed {seed}: step {step + 1} of {steps}, won {fmean(t.metrics['won'] for g in groups for t in g):.0%}")
    seconds, after = time.perf_counter() - started, await won(model, games)
    return {"seed": seed, **paired(before, after), "seconds": seconds}


def measure(seeds: list[int]) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        runs = [asyncio.run(measure_seed(folder, seed)) for seed in seeds]
    ratio = fmean(run["after"] for run in runs) / fmean(run["before"] for run in runs)
    return {"runs": runs, "ratio": ratio}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    print_result("rise", lambda: measure(arguments.seeds))
