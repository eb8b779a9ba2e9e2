"""The rise in data/nano's success rate on gymnasium's FrozenLake in the training of notebook 13, from several seeds.

`python -m benchmarks.rise_lake --seeds 0 1 2` prints the columns that all learning benchmarks share
(`rising.before_and_after`) on 200 lakes that are in no other split. The rule looks one step ahead
(`course.frozen_lake.careful_chance`). Needs the extra `gymnasium`.
"""

from __future__ import annotations

import argparse
from typing import Any

import art_nb as art
from art_nb.environments import rollout_environment
from benchmarks.gathering import BASE, registered
from benchmarks.result import print_result
from benchmarks.rising import before_and_after, decayed_rate, run_seeds
from course.frozen_lake import MAX_TURNS, careful_chance, distinct_lakes, lake

GROUPS, SIZE, STEPS = 16, 8, 60
LEARNING_RATE, UPDATES = 2e-3, 2  # of the first step; per step
VALIDATION, TEST = 60, 200


async def walk(model: art.TrainableModel, seed: int, temperature: float) -> art.Trajectory:
    trajectory = await rollout_environment(
        model.openai_client(), lambda: lake(seed), model=model.get_inference_name(), row={"seed": seed}, tools=None,
        max_turns=MAX_TURNS, history=False, max_tokens=1, temperature=temperature, timeout=None,
    )  # fmt: skip
    trajectory.metrics["arrived"] = trajectory.reward
    return trajectory


async def measure_seed(folder: str, seed: int, steps: int = STEPS, test: int = TEST) -> dict[str, Any]:
    """Train from one seed, and evaluate before and after."""
    lakes = distinct_lakes(test=test, val=min(test, VALIDATION), train=steps * GROUPS)
    model = await registered(folder, str(BASE), f"lake-{seed}", seed=seed)
    rates = [decayed_rate(step, steps, LEARNING_RATE) for step in range(steps)]
    configs = [art.TrainConfig(learning_rate=rate, num_updates=UPDATES, scale_rewards="none") for rate in rates]
    columns, _, _ = await before_and_after(
        model, lambda lake, temperature: walk(model, lake, temperature), "arrived", lakes["test"], lakes["val"],
        lakes["train"], configs, GROUPS, SIZE, ["arrived", "turns"], [careful_chance(lake) for lake in lakes["test"]],
    )  # fmt: skip
    return {"seed": seed, **columns}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the backend, one run for each")
    seeds = parser.parse_args().seeds
    print_result("rise_lake", lambda: run_seeds(measure_seed, seeds))
