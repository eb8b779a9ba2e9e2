"""How far the real model rises in the training of notebook 05, from several seeds.

`python -m benchmarks.rise_real --seeds 0 1 2` prints one JSON line: for each seed of the backend (the adapter's start
and every draw) the share of 200 held-out questions answered rightly before and after training, the rise with its 95%
interval (question by question, paired), and the seconds of training. The settings are the notebook's. `--split val` is
for choosing settings: test questions stay unseen.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from statistics import fmean

import art_nb as art
from art_nb.real_model import smollm2
from benchmarks.gathering import registered
from benchmarks.paired import paired
from benchmarks.result import print_result, say
from benchmarks.rising import falling
from benchmarks.rollout_real import rollout

STEPS, GROUPS, SIZE = 12, 8, 8
LEARNING_RATE = 3e-4


async def right(model: art.TrainableModel, split: str, count: int) -> list[float]:
    """The rewards of one answer to each question."""
    tries = await art.gather_trajectories([rollout(model, split, i) for i in range(count)], pbar_desc=None)
    return [trajectory.reward for trajectory in tries]


async def measure_seed(folder: str, base: str, seed: int, split: str, steps: int = STEPS, count: int = 200) -> dict:
    """Train from one seed; shares in percent, seconds of gathering and updating."""
    model = await registered(folder, base, f"rise-{seed}", seed=seed, engine="transformers")
    before, started = await right(model, split, count), time.perf_counter()
    for step in range(steps):
        mails = range(step * GROUPS, (step + 1) * GROUPS)
        groups = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(rollout(model, "train", i) for _ in range(SIZE)) for i in mails], pbar_desc=None
        )
        await model.train(groups, art.TrainConfig(learning_rate=falling(step, steps, LEARNING_RATE)))
        say(f"seed {seed}: step {step + 1} of {steps}, right {fmean(t.reward for g in groups for t in g):.0%}")
    seconds, after = time.perf_counter() - started, await right(model, split, count)
    return {"seed": seed, **paired(before, after), "seconds": seconds}


def measure(seeds: list[int], split: str, base: str = "", **fewer: int) -> dict:
    """base: by default SmolLM2. fewer: `steps` and `count` (questions) for a quick look."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [asyncio.run(measure_seed(folder, base or smollm2(), seed, split, **fewer)) for seed in seeds]
    before, after = (fmean(run[when] for run in runs) for when in ("before", "after"))
    return {"split": split, "runs": runs, "ratio": after / before if before else None}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--split", choices=["val", "test"], default="test", help="whose questions are asked")
    arguments = parser.parse_args()
    print_result("rise_real", lambda: measure(arguments.seeds, arguments.split))
