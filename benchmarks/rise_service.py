"""How many more customers are served rightly after training, from several seeds.

`python -m benchmarks.rise_service --seeds 0 1 2` prints one JSON line: for each seed of the backend (the adapter's start
and every draw), of the first 200 test tasks of the shop, served at its front desk before and after training: `solved`
(tau-bench's reward), `declined` (something was declined) and `malformed` in percent, `violations` (broken rules that no tool
enforces), `writes` and `calls` in the mean, each with its rise and 95% interval (task by task, paired), and the seconds of
training. `due` is `solved` of the tasks in which something is to be done: idleness solves the others. `drawn` is measured
at temperature 1, as in training, `used` at 0.5. `ratio` is what is solved after over before, drawn, in the mean. `--split
val` is for choosing settings: test tasks stay unseen. `--reward` chooses what is paid: `milestones` what `Desk.gains` says,
each call for what it did, `progress` the same by `Desk.turn_rewards`, `whole` the task's reward.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from itertools import islice
from statistics import fmean

import art_nb as art
from art_nb.tasks.customer_service import Task, course_tasks
from benchmarks.gathering import registered
from benchmarks.result import print_result, say
from benchmarks.rise_email import rises
from benchmarks.rollout_service import SERVICE_BASE, rollout

STEPS, GROUPS, SIZE = 24, 16, 8  # groups a step, conversations in a group
LEARNING_RATE, LAST_SHARE = 1.5e-3, 0.1  # it falls in a line, to this share
TASKS = {"test": 200, "val": 80}
TEMPERATURES = {"drawn": 1.0, "used": 0.5}
MEASURED = {"solved": 100, "declined": 100, "malformed": 100, "violations": 1, "writes": 1, "calls": 1}  # 100 for percent


def config(step: int, steps: int) -> art.TrainConfig:
    """The settings of one training step, counted from 0. A call is paid for what it did, and not for later ones."""
    rate = LEARNING_RATE * (1 - (1 - LAST_SHARE) * step / max(1, steps - 1))
    return art.TrainConfig(learning_rate=rate, turn_discount=0.0, scale_rewards="batch")


async def paid(model: art.TrainableModel, task: Task, reward: str, temperature: float = 1.0) -> art.Trajectory:
    """One conversation with the reward "milestones", "progress" or "whole"."""
    trajectory, desk = await rollout(model, task, temperature=temperature)
    answers = trajectory.choices()
    names = [call.function.name for said in answers for call in said.message.tool_calls or []]
    trajectory.metrics["declined"] = float("decline" in names)
    if reward != "whole":
        gains = iter(desk.gains if reward == "milestones" else desk.turn_rewards)
        trajectory.turn_rewards = [sum(islice(gains, max(1, len(said.message.tool_calls or [])))) for said in answers]
        trajectory.reward = sum(trajectory.turn_rewards)
    return trajectory


async def train(model: art.TrainableModel, steps: int, reward: str) -> None:
    """All training steps, each on tasks of its own until there are no more."""
    chosen = course_tasks("retail", "train")
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
        await model.train(groups, config(step, steps))
        seen = {name: fmean(t.metrics[name] for group in groups for t in group) for name in MEASURED}
        seen["reward"] = fmean(t.reward for group in groups for t in group)
        took = f"{gathered - started:.1f} + {time.perf_counter() - gathered:.1f} s"
        say(f"step {step + 1} of {steps}: " + ", ".join(f"{name} {value:.2f}" for name, value in seen.items()) + f", {took}")


async def tried(model: art.TrainableModel, chosen: list[Task]) -> dict[str, list[dict[str, float]]]:
    """For each way of sampling the metrics of one conversation about each task."""
    found = {}
    for name, temperature in TEMPERATURES.items():
        talks = [paid(model, task, "milestones", temperature) for task in chosen]
        found[name] = [trajectory.metrics for trajectory in await art.gather_trajectories(talks, pbar_desc=None)]
        say(f"{model.name}, {name}: " + ", ".join(f"{key} {fmean(m[key] for m in found[name]):.3f}" for key in MEASURED))
    return found


def compare(
    chosen: list[Task], before: list[dict[str, float]], after: list[dict[str, float]]
) -> dict[str, dict[str, float]]:
    """The rise of each metric, and of `solved` where something is due."""
    due = [n for n, task in enumerate(chosen) if task.actions or task.outputs]
    return rises(before, after, MEASURED) | {
        "due": rises([before[n] for n in due], [after[n] for n in due], {"solved": 100})["solved"]
    }


async def measure_seed(folder: str, seed: int, split: str, reward: str, steps: int = STEPS, count: int = 0) -> dict:
    """Trains from one seed and measures before and after; seconds of gathering and updating."""
    chosen = course_tasks("retail", split, count or TASKS[split])
    model = await registered(folder, str(SERVICE_BASE), f"rise-{seed}", seed=seed)
    before, started = await tried(model, chosen), time.perf_counter()
    await train(model, steps, reward)
    seconds, after = time.perf_counter() - started, await tried(model, chosen)
    return {"seed": seed, **{name: compare(chosen, before[name], after[name]) for name in TEMPERATURES}, "seconds": seconds}


def measure(seeds: list[int], split: str, reward: str, **fewer: int) -> dict:
    """fewer: `steps` and `count` (tasks) for a quick look."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [asyncio.run(measure_seed(folder, seed, split, reward, **fewer)) for seed in seeds]
    before, after = (fmean(run["drawn"]["solved"][when] for run in runs) for when in ("before", "after"))
    return {"split": split, "reward": reward, "runs": runs, "ratio": after / before if before else None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--split", choices=list(TASKS), default="test", help="whose tasks are tried")
    parser.add_argument("--reward", choices=["milestones", "progress", "whole"], default="milestones")
    a = parser.parse_args()
    print_result("rise_service", lambda: measure(a.seeds, a.split, a.reward))


if __name__ == "__main__":
    main()
