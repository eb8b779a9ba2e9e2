"""The rise of the real model's accuracy in the training of notebook 06, from several seeds.

`python -m benchmarks.rise_real --seeds 0 1 2` prints one JSON line: for each seed of the backend (initial adapter and all
samples) the share of 200 held-out questions answered correctly before and after training, the rise with a 95% interval
(paired by question), and the seconds of training. The settings are the notebook's. Use `--split val` to choose settings,
so that the test questions stay unseen.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile

import art_nb as art
from benchmarks.gathering import registered
from benchmarks.paired import paired
from benchmarks.result import print_result
from benchmarks.rising import decayed_rate, ratio_of_means, train
from benchmarks.rollout_real import rollout
from course.real_model import smollm2

STEPS, GROUPS, SIZE = 12, 8, 8
LEARNING_RATE = 3e-4


async def correct(model: art.TrainableModel, split: str, count: int) -> list[float]:
    """Return the reward of one answer to each question."""
    answers = await art.gather_trajectories([rollout(model, split, i) for i in range(count)], pbar_desc=None)
    return [trajectory.reward for trajectory in answers]


async def measure_seed(folder: str, base: str, seed: int, split: str, steps: int = STEPS, count: int = 200) -> dict:
    """Train from one seed. Returns shares in percent, and seconds of gathering and updating."""
    model = await registered(folder, base, f"rise-{seed}", seed=seed, engine="transformers")
    before = await correct(model, split, count)
    configs = [art.TrainConfig(learning_rate=decayed_rate(step, steps, LEARNING_RATE)) for step in range(steps)]
    emails = range(steps * GROUPS)
    seconds = await train(model, lambda i, _: rollout(model, "train", i), emails, configs, GROUPS, SIZE, [])
    return {"seed": seed, **paired(before, await correct(model, split, count)), "seconds": seconds}


def measure(seeds: list[int], split: str, base: str = "", **fewer: int) -> dict:
    """base: by default SmolLM2. fewer: `steps` and `count` (questions) for a quick run."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [asyncio.run(measure_seed(folder, base or smollm2(), seed, split, **fewer)) for seed in seeds]
    return {"split": split, "runs": runs, "ratio": ratio_of_means(runs)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the backend, one run for each")
    parser.add_argument("--split", choices=["val", "test"], default="test", help="of the held-out questions")
    arguments = parser.parse_args()
    print_result("rise_real", lambda: measure(arguments.seeds, arguments.split))
