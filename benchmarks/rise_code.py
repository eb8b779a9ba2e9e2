"""How many more functions are repaired after training, from several seeds.

`python -m benchmarks.rise_code --seeds 0 1 2` prints one JSON line: for each seed of the backend (the adapter's start and
every draw), of the first 200 test problems before and after training: `repaired` (all hidden tests pass), `only_visible`
(all examples pass and hidden tests do not), `special` (the code answers examples by comparing with them) and `malformed` in
percent, `tries`, the mean number of `mend` calls, each with its rise and 95% interval (problem by problem, paired), and the
seconds of training. `drawn` is measured at temperature 1, as in training, `used` at 0.5. `at_random` is the share that
somebody repairs who draws as many tries blindly, without trying anything twice. `ratio` is
what is repaired after over before, drawn, in the mean. `--split val` is for choosing settings: test problems stay unseen.
`--reward` chooses what is paid: `simple` what `Mending.gains` says, each call for what it did, `visible` the same for
passing the examples, each call for all that follows it (an `if` for one example earns nothing before the others have one),
`whole` the task's reward.
"""

from __future__ import annotations

import random
from statistics import fmean

import art_nb as art
from art_nb.tasks.code_repair import Problem, problems, special_cases
from art_nb.tasks.code_repair.mending import Mending, random_mender
from art_nb.tasks.code_repair.players import play
from benchmarks.gathering import registered
from benchmarks.result import say
from benchmarks.rising import TEMPERATURES, before_and_after, command, falling, of_seeds, pay_calls, rises
from benchmarks.rollout_code import CODE_BASE, rollout

STEPS, GROUPS, SIZE = 12, 16, 8  # groups a step, repairs in a group
LEARNING_RATE = 1.5e-3
PROBLEMS = {"test": 200, "val": 93}
REWARDS = ("simple", "visible", "whole")
MEASURED = {"repaired": 100, "only_visible": 100, "special": 100, "malformed": 100, "tries": 1}  # metric: 100 for percent


def config(step: int, steps: int, reward: str = "simple") -> art.TrainConfig:
    """The settings of one training step, counted from 0. Only for passing examples is a call paid for later ones as well."""
    rate, discount = falling(step, steps, LEARNING_RATE), float(reward == "visible")
    return art.TrainConfig(learning_rate=rate, turn_discount=discount, scale_rewards="batch")


async def paid(model: art.TrainableModel, problem: Problem, reward: str, temperature: float = 1.0) -> art.Trajectory:
    """One repair with one of REWARDS."""
    paid_by = "visible" if reward == "visible" else "hidden"
    trajectory, repair = await rollout(model, problem, temperature=temperature, paid_by=paid_by)
    metrics = trajectory.metrics
    metrics |= {"special": float(bool(special_cases(problem, repair.files))), "tries": float(len(repair.tried))}
    if reward != "whole":
        pay_calls(trajectory, repair.gains)
    return trajectory


def at_random(chosen: list[Problem], tries: list[dict[str, float]], draws: int = 5) -> float:
    """Percent of the problems that blind tries repair, as many for each as `tries` says."""
    hits = []
    for problem, metrics in zip(chosen, tries, strict=True):
        menders = [random_mender(random.Random(f"{draw} {problem.id}"), int(metrics["tries"])) for draw in range(draws)]
        hits += [play(mender, Mending(problem)).metrics()["repaired"] for mender in menders]
    return 100 * fmean(hits)


async def measure_seed(folder: str, seed: int, split: str, reward: str, steps: int = STEPS, count: int = 0) -> dict:
    """Trains from one seed and measures before and after; seconds of gathering and updating."""
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
    say(f"blind tries: {found['drawn']['at_random']:.1f}")
    return {"seed": seed, **found, "seconds": seconds}


def measure(seeds: list[int], split: str, reward: str, **fewer: int) -> dict:
    """fewer: `steps` and `count` (problems) for a quick look."""
    return of_seeds(measure_seed, "repaired", seeds, split, reward, **fewer)


def main() -> None:
    command("rise_code", __doc__, measure, PROBLEMS, REWARDS)


if __name__ == "__main__":
    main()
