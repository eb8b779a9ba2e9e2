"""Training time until the success rate has risen by a given amount, compared with stock TRL's GRPOTrainer.

`python -m benchmarks.time_to_skill --seeds 3 [--task 2048|2048-by-tool|email|answers]` prints one JSON line. It measures
the seconds of training (gathering and updating) until the success rate on held-out scenarios has risen by `goal`. Both
sides start from the same base model and adapter (ours loaded by Unsloth where it is installed, as in the notebooks,
except in `answers`; stock TRL's by transformers), with the same number of rollouts per step and the same constant learning
rate, and stop at `--limit` seconds (`stopped`). The clock is paused during evaluation, which follows each step that ends
at least 10 s of training after the previous evaluation, on the same scenarios of the validation split, at temperature 1.
Each side is evaluated in its own prompt format.

`2048`: games won with the 128 tile; 20 points. Ours plays as in notebook 02: each prompt is the current board, and each
turn has a reward. Stock TRL plays through environment_factory, in a growing conversation of tool calls, and learns from
the outcome reward. In `2048-by-tool` ours uses tool calls as well, so that of the task only the reward differs. `email`:
correct answers in notebook 04; 20 points. `answers`: correct prices by SmolLM2, as in notebook 06; 50 points. In these
two both sides have the same prompts and rewards (TRL's loop requests one more answer after a final answer, see
benchmarks.rollout_email).

`ratio` is the mean seconds of stock TRL over ours; a lower bound (`ratio_is_at_least`) if a run of stock TRL was stopped,
and null if one of ours was.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from transformers import TrainerCallback

import art_nb as art
from benchmarks.gathering import registered
from benchmarks.result import print_result, say
from benchmarks.skills import SKILLS, Skill
from benchmarks.stock_trl import GRPOTrainer, import_loss_kernel, stock_policy, stock_trainer

EVERY = 10.0  # seconds of training between two evaluations


async def success_rate(model: art.TrainableModel, skill: Skill, count: int, as_stock: bool = False) -> float:
    """Return the success rate on `count` held-out scenarios."""
    play = skill.play_as_stock if as_stock else skill.play
    tries = await art.gather_trajectories([play(model, scenario) for scenario in skill.held_out(count)], pbar_desc=None)
    return sum(map(skill.succeeds, tries)) / count


class Race:
    """The clock and the success rates of one side's run from one seed."""

    def __init__(self, side: str, seed: int, limit: float, goal: float):
        self.side, self.seed, self.limit, self.goal = side, seed, limit, goal
        self.seconds, self.steps, self.measured_at, self.shares = 0.0, 0, 0.0, []

    def add_training_time(self, seconds: float) -> None:
        self.seconds += seconds
        self.steps += 1

    @property
    def due(self) -> bool:
        """Whether the next evaluation is due."""
        return not self.shares or self.seconds - self.measured_at >= EVERY or self.out_of_time

    def add_evaluation(self, found: float) -> None:
        self.shares.append(found)
        self.measured_at = self.seconds
        say(f"{self.side}, seed {self.seed}: {self.steps} steps, {self.seconds:.0f} s, share {found:.3f}")

    @property
    def reached_goal(self) -> bool:
        return self.shares[-1] >= self.shares[0] + self.goal

    @property
    def out_of_time(self) -> bool:
        return self.seconds >= self.limit

    def result(self) -> dict:
        return {
            "seed": self.seed,
            "seconds": min(self.seconds, self.limit),
            "stopped": not self.reached_goal,
            "steps": self.steps,
            "before": self.shares[0],
            "after": self.shares[-1],
        }


async def race_ours(folder: str, skill: Skill, seed: int, limit: float, count: int) -> dict:
    race = Race("ours", seed, limit, skill.rise)
    model = await registered(folder, skill.base(), f"ours-{seed}", seed=seed, engine=skill.engine)
    race.add_evaluation(await success_rate(model, skill, count))
    while not race.reached_goal and not race.out_of_time:
        started = time.perf_counter()
        first = seed * 100_000 + race.steps * skill.groups
        scenarios = [skill.training(first + g) for g in range(skill.groups)]
        groups = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(skill.play(model, scenario) for _ in range(skill.size)) for scenario in scenarios],
            pbar_desc=None,
        )
        await model.train(groups, skill.config)
        race.add_training_time(time.perf_counter() - started)
        if race.due:
            race.add_evaluation(await success_rate(model, skill, count))
    return race.result()


class OutOfTime(Exception):
    """Raised in a step of stock TRL that exceeds the time limit."""


class RacingTrainer(GRPOTrainer):
    """Stock TRL that raises OutOfTime within a step after `deadline`, a time of `perf_counter`."""

    deadline = float("inf")

    def _generate_single_turn(self, *args, **kwargs):
        if time.perf_counter() > self.deadline:
            raise OutOfTime
        return super()._generate_single_turn(*args, **kwargs)

    def training_step(self, *args, **kwargs):
        if time.perf_counter() > self.deadline:
            raise OutOfTime
        return super().training_step(*args, **kwargs)


class RaceCallback(TrainerCallback):
    """Runs the clock during steps, and evaluates between them."""

    def __init__(self, race: Race, trainer: RacingTrainer, evaluate: Callable[[], float]):
        self.race, self.trainer, self.evaluate = race, trainer, evaluate

    def on_step_begin(self, args, state, control, **_):
        self.started = time.perf_counter()
        self.trainer.deadline = self.started + self.race.limit - self.race.seconds

    def on_step_end(self, args, state, control, **_):
        self.race.add_training_time(time.perf_counter() - self.started)
        if self.race.due:
            self.race.add_evaluation(self.evaluate())
        control.should_training_stop = self.race.reached_goal or self.race.out_of_time


def race_stock(folder: str, skill: Skill, seed: int, limit: float, count: int, batch_size: int) -> dict:
    base = skill.base()
    race, policy = Race("stock TRL", seed, limit, skill.rise), stock_policy(base, seed)

    def evaluate() -> float:
        """Return the success rate of the current policy, through the public API."""
        adapter = Path(folder) / f"stock-{seed}-{race.steps}"
        policy.model.save_pretrained(adapter)
        policy.tokenizer.save_pretrained(adapter)
        return asyncio.run(evaluate_adapter(str(adapter)))

    async def evaluate_adapter(adapter: str) -> float:
        model = await registered(folder, adapter, Path(adapter).name, engine=skill.engine)
        return await success_rate(model, skill, count, as_stock=True)

    rows = [skill.row(skill.training(seed * 100_000 + i)) for i in range(4000)]
    settings = {"max_completion_length": policy.model.config.max_position_embeddings} | skill.stock
    trainer = stock_trainer(
        policy, folder, rows, trainer_class=RacingTrainer,
        per_device_train_batch_size=batch_size, gradient_accumulation_steps=skill.groups * skill.size // batch_size,
        num_generations=skill.size, learning_rate=skill.config.learning_rate, max_steps=len(rows) // skill.groups,
        seed=seed, **settings,
    )  # fmt: skip
    race.add_evaluation(evaluate())
    trainer.add_callback(RaceCallback(race, trainer, evaluate))
    try:
        trainer.train()
    except OutOfTime:
        race.seconds = limit
        race.add_evaluation(evaluate())
    return race.result()


def measure(skill: Skill, seeds: int, limit: float, count: int = 0, batch_size: int = 0) -> dict:
    """Run both sides from each seed. count: held-out scenarios. batch_size: of stock TRL. 0: the skill's."""
    import_loss_kernel()
    count = count or skill.count
    ours, stock = [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            ours.append(asyncio.run(race_ours(folder, skill, seed, limit, count)))
            stock.append(race_stock(folder, skill, seed, limit, count, batch_size or skill.batch_size))
    ours_mean, stock_mean = (statistics.mean(run["seconds"] for run in runs) for runs in (ours, stock))
    return {
        "goal": skill.rise,
        "ratio": None if any(run["stopped"] for run in ours) else stock_mean / ours_mean,
        "ratio_is_at_least": any(run["stopped"] for run in stock),
        "ours_mean_s": ours_mean,
        "stock_mean_s": stock_mean,
        "limit_s": limit,
        "held_out": count,
        "ours": ours,
        "stock": stock,
    }


def main() -> None:
    """Run the command line above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(SKILLS), default="2048")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of training after which a run is stopped")
    parser.add_argument("--held-out", type=int, default=0, help="number of held-out scenarios (default: the task's)")
    parser.add_argument("--stock-batch-size", type=int, default=0, help="of stock TRL's update (default: the fastest)")
    arguments = parser.parse_args()
    print_result(
        "time_to_skill",
        lambda: {
            "task": arguments.task,
            **measure(
                SKILLS[arguments.task](), arguments.seeds, arguments.limit, arguments.held_out, arguments.stock_batch_size
            ),
        },
    )


if __name__ == "__main__":
    main()
