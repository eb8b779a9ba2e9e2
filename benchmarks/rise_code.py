"""The rise in repaired functions through training, from several seeds.

`python -m benchmarks.rise_code --seeds 0 1 2` prints one JSON line: for each seed of the backend (initial adapter and all
samples), over the first 200 test problems, the columns of `rising.before_and_after` for `repaired` (all hidden tests pass);
the rule tries eight different changes, starting with the kinds that have the most bugs per change in the training
problems (one draw). `rises` has, each side at its best temperature and with a 95% interval (paired by problem), `repaired`,
`only_visible` (all examples pass and hidden tests do not), `special` (the code special-cases an example) and `malformed`
in percent, and `tries`, the mean number of changes tried (a change: all mutations of a kind on a line). `at_random` is the
share repaired by random changes, none repeated, with as many tries as the trained policy, in percent (five draws). `ratio`
is the mean of `trained_best` over that of `untrained_best`. Use `--split val` to choose settings, so that the test problems
stay unseen. `--reward` chooses the reward of training: `simple` (one per call), `visible` (one per call for passing the
examples) or `whole` (the task's reward). With the first two each call is credited with later rewards, too, as in notebook
07.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean

import art_nb as art
from benchmarks.gathering import registered
from benchmarks.rising import before_and_after, command, decayed_rate, reward_answers, rises, run_seeds
from benchmarks.rollout_code import CODE_BASE, rollout
from code_repair import Problem, problems, special_cases
from code_repair.mutation_repair import MUTATION_TURNS, MutationRepair, frequent_kinds, random_mutation_player
from code_repair.players import play

STEPS, GROUPS, SIZE = 16, 16, 8  # groups per step, repairs per group
LEARNING_RATE = 1.5e-3
PROBLEMS = {"test": 200, "val": 93}
VALIDATION = 40  # problems for choosing the temperature
REWARDS = ("simple", "visible", "whole")
MEASURED = {"repaired": 100, "only_visible": 100, "special": 100, "malformed": 100, "tries": 1}  # 100: percent


def config(step: int, steps: int) -> art.TrainConfig:
    """Return the settings of a step, counted from 0."""
    return art.TrainConfig(learning_rate=decayed_rate(step, steps, LEARNING_RATE), turn_discount=1.0, scale_rewards="batch")


async def play_with_reward(
    model: art.TrainableModel, problem: Problem, reward: str, temperature: float = 1.0
) -> art.Trajectory:
    """Play one repair with one of REWARDS."""
    paid_by = "visible" if reward == "visible" else "hidden"
    trajectory, repair = await rollout(model, problem, temperature=temperature, paid_by=paid_by)
    metrics = trajectory.metrics
    metrics |= {"special": float(bool(special_cases(problem, repair.files))), "tries": float(len(repair.tried))}
    if reward != "whole":
        reward_answers(trajectory, repair.turn_rewards)
    return trajectory


def at_random(chosen: list[Problem], tries: list[dict[str, float]], draws: int = 5) -> float:
    """Return the percentage of problems that random changes repair, with the numbers of tries in `tries`."""
    pairs = zip(chosen, tries, strict=True)
    return 100 * fmean(repaired_by_rule(p, int(metrics["tries"]), draw) for p, metrics in pairs for draw in range(draws))


def repaired_by_rule(problem: Problem, tries: int, draw: int = 0, kinds: Sequence[str] = ()) -> float:
    """Return 1 if `tries` changes, none repeated, repair the problem, else 0. kinds: tried first, the rest at random."""
    player = random_mutation_player(random.Random(f"{draw} {problem.id}"), tries, kinds)
    return play(player, MutationRepair(problem)).metrics()["repaired"]


async def measure_seed(folder: str, seed: int, split: str, reward: str, steps: int = STEPS, count: int = 0) -> dict:
    """Train from one seed, and evaluate before and after."""
    chosen = problems(split, count or PROBLEMS[split])
    model = await registered(folder, str(CODE_BASE), f"rise-{seed}", seed=seed)
    configs = [config(step, steps) for step in range(steps)]
    kinds = frequent_kinds(problems("train"))
    columns, before, after = await before_and_after(
        model, lambda problem, temperature: play_with_reward(model, problem, reward, temperature), "repaired", chosen,
        problems("val", count or VALIDATION), problems("train"), configs, GROUPS, SIZE, MEASURED,
        [repaired_by_rule(problem, MUTATION_TURNS, kinds=kinds) for problem in chosen],
    )  # fmt: skip
    return {"seed": seed, **columns, "at_random": at_random(chosen, after), "rises": rises(before, after, MEASURED)}


def measure(seeds: list[int], split: str, reward: str, **overrides: int) -> dict:
    """overrides: `steps` and `count` (problems) for a quick run."""
    return {"split": split, "reward": reward, **run_seeds(measure_seed, seeds, split, reward, **overrides)}


def main() -> None:
    command("rise_code", __doc__, measure, PROBLEMS, REWARDS)


if __name__ == "__main__":
    main()
