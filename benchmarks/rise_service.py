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

import art_nb as art
from art_nb.tasks.customer_service import Task, course_tasks
from benchmarks.gathering import registered
from benchmarks.rising import TEMPERATURES, before_and_after, command, falling, of_seeds, pay_calls, rises
from benchmarks.rollout_service import SERVICE_BASE, rollout

STEPS, GROUPS, SIZE = 24, 16, 8  # groups a step, conversations in a group
LEARNING_RATE = 1.5e-3
TASKS = {"test": 200, "val": 80}
REWARDS = ("milestones", "progress", "whole")
MEASURED = {"solved": 100, "declined": 100, "malformed": 100, "violations": 1, "writes": 1, "calls": 1}  # 100 for percent


def config(step: int, steps: int) -> art.TrainConfig:
    """The settings of one training step, counted from 0. A call is paid for what it did, and not for later ones."""
    return art.TrainConfig(learning_rate=falling(step, steps, LEARNING_RATE), turn_discount=0.0, scale_rewards="batch")


async def paid(model: art.TrainableModel, task: Task, reward: str, temperature: float = 1.0) -> art.Trajectory:
    """One conversation with one of REWARDS."""
    trajectory, desk = await rollout(model, task, temperature=temperature)
    names = [call.function.name for said in trajectory.choices() for call in said.message.tool_calls or []]
    trajectory.metrics["declined"] = float("decline" in names)
    if reward != "whole":
        pay_calls(trajectory, desk.gains if reward == "milestones" else desk.turn_rewards)
    return trajectory


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
    configs = [config(step, steps) for step in range(steps)]
    before, after, seconds = await before_and_after(
        model, lambda task, temperature: paid(model, task, reward, temperature), chosen, course_tasks("retail", "train"),
        configs, GROUPS, SIZE, MEASURED,
    )  # fmt: skip
    return {"seed": seed, **{name: compare(chosen, before[name], after[name]) for name in TEMPERATURES}, "seconds": seconds}


def measure(seeds: list[int], split: str, reward: str, **fewer: int) -> dict:
    """fewer: `steps` and `count` (tasks) for a quick look."""
    return of_seeds(measure_seed, "solved", seeds, split, reward, **fewer)


def main() -> None:
    command("rise_service", __doc__, measure, TASKS, REWARDS)


if __name__ == "__main__":
    main()
