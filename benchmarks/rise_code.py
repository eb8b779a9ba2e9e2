"""The rise of repaired functions by training, from several seeds.

`python -m benchmarks.rise_code --seeds 0 1 2` prints one JSON line: for each seed of the backend (initial adapter and all
samples), over the first 200 test problems before and after training: `repaired` (all hidden tests pass), `only_visible`
(all examples pass and hidden tests do not), `special` (the code compares with the examples) and `malformed` in percent,
and `tries`, the mean number of mutations tried; each with its rise and a 95% interval (paired by problem), and the
seconds of training. `drawn` is at temperature 1, as in training, `used` at 0.5. `at_random` is the share repaired by
random mutations without repetition, with as many tries. `ratio` is the mean of `repaired` after training over that
before, at temperature 1. Use `--split val` to choose settings, so that the test problems stay unseen. `--reward` chooses
the reward of training: `simple` (one per call), `visible` (one per call for passing the examples, with later calls
credited to earlier ones) or `whole` (the task's reward).
"""

from __future__ import annotations

import random
from statistics import fmean

import art_nb as art
from benchmarks.gathering import registered
from benchmarks.result import say
from benchmarks.rising import TEMPERATURES, before_and_after, command, decayed_rate, of_seeds, reward_answers, rises
from benchmarks.rollout_code import CODE_BASE, rollout
from code_repair import Problem, problems, special_cases
from code_repair.mutation_repair import MutationRepair, random_mutation_player
from code_repair.players import play

STEPS, GROUPS, SIZE = 12, 16, 8  # groups per step, repairs per group
LEARNING_RATE = 1.5e-3
PROBLEMS = {"test": 200, "val": 93}
REWARDS = ("simple", "visible", "whole")
MEASURED = {"repaired": 100, "only_visible": 100, "special": 100, "malformed": 100, "tries": 1}  # 100: percent


def config(step: int, steps: int, reward: str = "simple") -> art.TrainConfig:
    """Return the settings of a step, counted from 0. With the reward `visible` calls are credited with later rewards."""
    rate, discount = decayed_rate(step, steps, LEARNING_RATE), float(reward == "visible")
    return art.TrainConfig(learning_rate=rate, turn_discount=discount, scale_rewards="batch")


async def paid(model: art.TrainableModel, problem: Problem, reward: str, temperature: float = 1.0) -> art.Trajectory:
    """Play one repair with one of REWARDS."""
    paid_by = "visible" if reward == "visible" else "hidden"
    trajectory, repair = await rollout(model, problem, temperature=temperature, paid_by=paid_by)
    metrics = trajectory.metrics
    metrics |= {"special": float(bool(special_cases(problem, repair.files))), "tries": float(len(repair.tried))}
    if reward != "whole":
        reward_answers(trajectory, repair.turn_rewards)
    return trajectory


def at_random(chosen: list[Problem], tries: list[dict[str, float]], draws: int = 5) -> float:
    """Return the percentage of problems that random mutations repair, with the numbers of tries in `tries`."""
    hits = []
    for problem, metrics in zip(chosen, tries, strict=True):
        tried = int(metrics["tries"])
        players = [random_mutation_player(random.Random(f"{draw} {problem.id}"), tried) for draw in range(draws)]
        hits += [play(player, MutationRepair(problem)).metrics()["repaired"] for player in players]
    return 100 * fmean(hits)


async def measure_seed(folder: str, seed: int, split: str, reward: str, steps: int = STEPS, count: int = 0) -> dict:
    """Train from one seed, and evaluate before and after. `seconds` are of gathering and updating."""
    chosen = problems(split, count or PROBLEMS[split])
    model = await registered(folder, str(CODE_BASE), f"rise-{seed}", seed=seed)
    configs = [config(step, steps, reward) for step in range(steps)]
    before, after, seconds = await before_and_after(
        model, lambda problem, temperature: paid(model, problem, reward, temperature), chosen, problems("train"),
        configs, GROUPS, SIZE, MEASURED,
    )  # fmt: skip
    found: dict = {name: rises(before[name], after[name], MEASURED) for name in TEMPERATURES}
    for name in TEMPERATURES:
        found[name]["at_random"] = at_random(chosen, after[name])
    say(f"random mutations: {found['drawn']['at_random']:.1f}")
    return {"seed": seed, **found, "seconds": seconds}


def measure(seeds: list[int], split: str, reward: str, **fewer: int) -> dict:
    """fewer: `steps` and `count` (problems) for a quick run."""
    return of_seeds(measure_seed, "repaired", seeds, split, reward, **fewer)


def main() -> None:
    command("rise_code", __doc__, measure, PROBLEMS, REWARDS)


if __name__ == "__main__":
    main()
