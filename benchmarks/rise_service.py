"""The rise in solved customer service tasks through training, from several seeds.

`python -m benchmarks.rise_service --seeds 0 1 2` prints one JSON line: for each seed of the backend (initial adapter and
all samples), over the first 200 test tasks at the shop's front desk, the columns of `rising.before_and_after` for `solved`
(tau-bench's reward); the rule is the hurried clerk. `rises` has, each side at its best temperature and the rise with a 95%
interval (paired by task), `solved`, `clean` (solved without a violation), `declined` (the agent declined something) and
`malformed` in percent, the means of `violations` (of the policy, not enforced by tools), `writes` and `calls`, and `due`:
`solved` over the tasks in which something must be done; an idle agent solves the others. `rule_clean` is the hurried
clerk's `clean`. `ratio` is the mean of `trained_best` over that of `untrained_best`. Use `--split val` to choose settings,
so that the test tasks stay unseen. `--reward` chooses the reward of training: `milestones` (`Desk.turn_rewards`, one per
call), `progress` (`Desk.progress_rewards`, one per call) or `whole` (the task's reward).
"""

from __future__ import annotations

from statistics import fmean

import art_nb as art
from benchmarks.gathering import registered
from benchmarks.rising import before_and_after, command, decayed_rate, reward_answers, rises, run_seeds
from benchmarks.rollout_service import SERVICE_BASE, rollout
from customer_service import Task, course_tasks, course_world
from customer_service.clerks import Clerk
from customer_service.front_desk import FrontDesk

STEPS, GROUPS, SIZE = 24, 16, 8  # groups per step, conversations per group
LEARNING_RATE = 1.5e-3
TASKS = {"test": 200, "val": 80}
REWARDS = ("milestones", "progress", "whole")
VALIDATION = 40  # tasks for choosing the temperature
PERCENT = ("solved", "clean", "declined", "malformed")
MEASURED = dict.fromkeys(PERCENT, 100) | {"violations": 1, "writes": 1, "calls": 1}


def config(step: int, steps: int) -> art.TrainConfig:
    """Return the settings of a step, counted from 0. A call is credited with its own reward only, not with later ones."""
    return art.TrainConfig(learning_rate=decayed_rate(step, steps, LEARNING_RATE), turn_discount=0.0, scale_rewards="batch")


async def play_with_reward(model: art.TrainableModel, task: Task, reward: str, temperature: float = 1.0) -> art.Trajectory:
    """Play one conversation with one of REWARDS."""
    trajectory, desk = await rollout(model, task, temperature=temperature)
    names = [call.function.name for answer in trajectory.choices() for call in answer.message.tool_calls or []]
    trajectory.metrics["declined"] = float("decline" in names)
    trajectory.metrics["clean"] = float(trajectory.metrics["solved"] == 1 and not trajectory.metrics["violations"])
    if reward != "whole":
        reward_answers(trajectory, desk.turn_rewards if reward == "milestones" else desk.progress_rewards)
    return trajectory


def compare(
    chosen: list[Task], before: list[dict[str, float]], after: list[dict[str, float]]
) -> dict[str, dict[str, float]]:
    """Return the rise of each metric, and of `solved` where something is due."""
    due = [n for n, task in enumerate(chosen) if task.actions or task.outputs]
    return rises(before, after, MEASURED) | {
        "due": rises([before[n] for n in due], [after[n] for n in due], {"solved": 100})["solved"]
    }


async def measure_seed(folder: str, seed: int, split: str, reward: str, steps: int = STEPS, count: int = 0) -> dict:
    """Train from one seed, and evaluate before and after."""
    chosen = course_tasks("retail", split, count or TASKS[split])
    hurried = [Clerk(hurried=True)(FrontDesk(course_world("retail"), task)).metrics() for task in chosen]
    model = await registered(folder, str(SERVICE_BASE), f"rise-{seed}", seed=seed)
    configs = [config(step, steps) for step in range(steps)]
    columns, before, after = await before_and_after(
        model, lambda task, temperature: play_with_reward(model, task, reward, temperature), "solved", chosen,
        course_tasks("retail", "val", count or VALIDATION), course_tasks("retail", "train"), configs, GROUPS, SIZE, MEASURED,
        [metrics["solved"] for metrics in hurried],
    )  # fmt: skip
    rule_clean = 100 * fmean(metrics["solved"] == 1 and not metrics["violations"] for metrics in hurried)
    return {"seed": seed, **columns, "rule_clean": rule_clean, "rises": compare(chosen, before, after)}


def measure(seeds: list[int], split: str, reward: str, **overrides: int) -> dict:
    """overrides: `steps` and `count` (tasks) for a quick run."""
    return {"split": split, "reward": reward, **run_seeds(measure_seed, seeds, split, reward, **overrides)}


def main() -> None:
    command("rise_service", __doc__, measure, TASKS, REWARDS)


if __name__ == "__main__":
    main()
