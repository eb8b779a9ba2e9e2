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

import argparse
import asyncio
import random
import tempfile
import time
from itertools import islice
from statistics import fmean

import art_nb as art
from art_nb.tasks.code_repair import Problem, problems, special_cases
from art_nb.tasks.code_repair.mending import Mending, random_mender
from art_nb.tasks.code_repair.players import play
from benchmarks.gathering import registered
from benchmarks.result import print_result, say
from benchmarks.rise_email import rises
from benchmarks.rollout_code import CODE_BASE, rollout

STEPS, GROUPS, SIZE = 12, 16, 8  # groups a step, repairs in a group
LEARNING_RATE, LAST_SHARE = 1.5e-3, 0.1  # it falls in a line, to this share
PROBLEMS = {"test": 200, "val": 93}
TEMPERATURES = {"drawn": 1.0, "used": 0.5}
MEASURED = {"repaired": 100, "only_visible": 100, "special": 100, "malformed": 100, "tries": 1}  # metric: 100 for percent


def config(step: int, steps: int, reward: str = "simple") -> art.TrainConfig:
    """The settings of one training step, counted from 0. Only for passing examples is a call paid for later ones as well."""
    rate = LEARNING_RATE * (1 - (1 - LAST_SHARE) * step / max(1, steps - 1))
    return art.TrainConfig(learning_rate=rate, turn_discount=float(reward == "visible"), scale_rewards="batch")


async def paid(model: art.TrainableModel, problem: Problem, reward: str, temperature: float = 1.0) -> art.Trajectory:
    """One repair with the reward "simple", "visible" or "whole"."""
    paid_by = "visible" if reward == "visible" else "hidden"
    trajectory, repair = await rollout(model, problem, temperature=temperature, paid_by=paid_by)
    metrics = trajectory.metrics
    metrics |= {"special": float(bool(special_cases(problem, repair.files))), "tries": float(len(repair.tried))}
    if reward != "whole":
        gains, answers = iter(repair.gains), trajectory.choices()
        trajectory.turn_rewards = [sum(islice(gains, max(1, len(said.message.tool_calls or [])))) for said in answers]
        trajectory.reward = sum(trajectory.turn_rewards)
    return trajectory


async def train(model: art.TrainableModel, steps: int, reward: str) -> None:
    """All training steps, each on problems of its own until there are no more."""
    chosen = problems("train")
    for step in range(steps):
        started = time.perf_counter()
        groups = await art.gather_trajectory_groups(
            [
                art.TrajectoryGroup(paid(model, chosen[(step * GROUPS + g) % len(chosen)], reward) for _ in range(SIZE))
                for g in range(GROUPS)
            ],
            pbar_desc=None,
        )
        gathered = time.perf_counter()
        await model.train(groups, config(step, steps, reward))
        seen = {name: fmean(t.metrics[name] for group in groups for t in group) for name in MEASURED}
        took = f"{gathered - started:.1f} + {time.perf_counter() - gathered:.1f} s"
        say(f"step {step + 1} of {steps}: " + ", ".join(f"{name} {value:.2f}" for name, value in seen.items()) + f", {took}")


async def tried(model: art.TrainableModel, chosen: list[Problem]) -> dict[str, list[dict[str, float]]]:
    """For each way of sampling the metrics of one repair of each problem."""
    found = {}
    for name, temperature in TEMPERATURES.items():
        repairs = [paid(model, problem, "simple", temperature) for problem in chosen]
        found[name] = [trajectory.metrics for trajectory in await art.gather_trajectories(repairs, pbar_desc=None)]
        say(f"{model.name}, {name}: " + ", ".join(f"{key} {fmean(m[key] for m in found[name]):.3f}" for key in MEASURED))
    return found


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
    before, started = await tried(model, chosen), time.perf_counter()
    await train(model, steps, reward)
    seconds, after = time.perf_counter() - started, await tried(model, chosen)
    found: dict = {name: rises(before[name], after[name], MEASURED) for name in TEMPERATURES}
    for name in TEMPERATURES:
        found[name]["at_random"] = at_random(chosen, after[name])
    say(f"blind tries: {found['drawn']['at_random']:.1f}")
    return {"seed": seed, **found, "seconds": seconds}


def measure(seeds: list[int], split: str, reward: str, **fewer: int) -> dict:
    """fewer: `steps` and `count` (problems) for a quick look."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [asyncio.run(measure_seed(folder, seed, split, reward, **fewer)) for seed in seeds]
    before, after = (fmean(run["drawn"]["repaired"][when] for run in runs) for when in ("before", "after"))
    return {"split": split, "reward": reward, "runs": runs, "ratio": after / before if before else None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--split", choices=list(PROBLEMS), default="test", help="whose problems are tried")
    parser.add_argument("--reward", choices=["simple", "visible", "whole"], default="simple")
    a = parser.parse_args()
    print_result("rise_code", lambda: measure(a.seeds, a.split, a.reward))


if __name__ == "__main__":
    main()
