"""How long training takes until the policy succeeds clearly more often, against stock TRL's GRPOTrainer.

`python -m benchmarks.time_to_skill --seeds 3 [--task 2048|2048-by-tool|email|answers]` prints one JSON line. Seconds of
training (gathering and updating, nothing else) until the share of held-out scenarios that succeed has risen by `goal`. Both
sides start from the same base model and adapter, make the same number of rollouts a step at the same, constant learning
rate, and stop at `--limit` seconds, which then stand for more (`stopped`). The share is measured outside the clock, after
each step that ends 10 s or more of training after the last measurement, on the same scenarios of the validation split, at
temperature 1. Each side is judged by its own way of playing.

`2048`: games won, up to the tile 128; 20 points. Ours plays as notebook 02 does: the board alone in each prompt, and a
reward for each turn. Stock TRL plays through environment_factory, which means a growing conversation of tool calls, and
learns from the outcome reward. `2048-by-tool` lets ours play by tool calls too, so that only the reward differs. `email`:
questions of notebook 03 answered; 20 points. `answers`: prices that SmolLM2 reads rightly, as in notebook 05; 50 points. In
these two both sides play and are paid alike, for what is correct (TRL's loop asks once more after a final answer, see
benchmarks.rollout_email).

`ratio` is stock's mean seconds over ours, a lower bound (`ratio_is_at_least`) when a run of stock was stopped, and null when
one of ours was.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from transformers import TrainerCallback

import art_nb as art
from benchmarks.gathering import registered
from benchmarks.result import print_result, say
from benchmarks.skills import SKILLS, Skill
from benchmarks.stock_trl import GRPOTrainer, need_a_loss, stock_policy, stock_trainer

EVERY = 10.0  # seconds of training between two measurements of the share


async def share(model: art.TrainableModel, skill: Skill, count: int, as_stock: bool = False) -> float:
    """The share of `count` held-out scenarios at which the model succeeds."""
    play = skill.play_as_stock if as_stock else skill.play
    tries = await art.gather_trajectories([play(model, scenario) for scenario in skill.held_out(count)], pbar_desc=None)
    return sum(map(skill.succeeds, tries)) / count


class Race:
    """One side's run from one seed: its clock, and whether it has arrived."""

    def __init__(self, side: str, seed: int, limit: float, goal: float):
        self.side, self.seed, self.limit, self.goal = side, seed, limit, goal
        self.seconds, self.steps, self.measured_at, self.shares = 0.0, 0, 0.0, []

    def trained(self, seconds: float) -> None:
        self.seconds += seconds
        self.steps += 1

    @property
    def due(self) -> bool:
        """Whether it is time to measure the share."""
        return not self.shares or self.seconds - self.measured_at >= EVERY or self.out_of_time

    def measured(self, found: float) -> None:
        self.shares.append(found)
        self.measured_at = self.seconds
        say(f"{self.side}, seed {self.seed}: {self.steps} steps, {self.seconds:.0f} s, share {found:.3f}")

    @property
    def arrived(self) -> bool:
        return self.shares[-1] >= self.shares[0] + self.goal

    @property
    def out_of_time(self) -> bool:
        return self.seconds >= self.limit

    def result(self) -> dict:
        return {
            "seed": self.seed,
            "seconds": min(self.seconds, self.limit),
            "stopped": not self.arrived,
            "steps": self.steps,
            "before": self.shares[0],
            "after": self.shares[-1],
        }


async def race_ours(folder: str, skill: Skill, seed: int, limit: float, count: int) -> dict:
    race = Race("ours", seed, limit, skill.rise)
    model = await registered(folder, skill.base(), f"ours-{seed}", seed=seed, engine=skill.engine)
    race.measured(await share(model, skill, count))
    while not race.arrived and not race.out_of_time:
        started = time.perf_counter()
        first = seed * 100_000 + race.steps * skill.groups
        scenarios = [skill.training(first + g) for g in range(skill.groups)]
        groups = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(skill.play(model, scenario) for _ in range(skill.size)) for scenario in scenarios],
            pbar_desc=None,
        )
        await model.train(groups, skill.config)
        race.trained(time.perf_counter() - started)
        if race.due:
            race.measured(await share(model, skill, count))
    return race.result()


class OutOfTime(Exception):
    """Raised inside a step of stock TRL that has passed the limit."""


class RacingTrainer(GRPOTrainer):
    """Stock TRL that stops in the middle of a step once `deadline`, a time of `perf_counter`, has passed."""

    deadline = float("inf")

    def _generate_single_turn(self, *args, **kwargs):
        if time.perf_counter() > self.deadline:
            raise OutOfTime
        return super()._generate_single_turn(*args, **kwargs)

    def training_step(self, *args, **kwargs):
        if time.perf_counter() > self.deadline:
            raise OutOfTime
        return super().training_step(*args, **kwargs)


class Judge(TrainerCallback):
    """Runs the race's clock while a step runs, and measures the share between steps."""

    def __init__(self, race: Race, trainer: RacingTrainer, judge):
        self.race, self.trainer, self.judge = race, trainer, judge

    def on_step_begin(self, args, state, control, **_):
        self.started = time.perf_counter()
        self.trainer.deadline = self.started + self.race.limit - self.race.seconds

    def on_step_end(self, args, state, control, **_):
        self.race.trained(time.perf_counter() - self.started)
        if self.race.due:
            self.race.measured(self.judge())
        control.should_training_stop = self.race.arrived or self.race.out_of_time


def race_stock(folder: str, skill: Skill, seed: int, limit: float, count: int, batch_size: int) -> dict:
    base = skill.base()
    race, policy = Race("stock TRL", seed, limit, skill.rise), stock_policy(base, seed)

    def judge() -> float:
        """The share of the policy as it is, through the public API."""
        adapter = Path(folder) / f"stock-{seed}-{race.steps}"
        policy.model.save_pretrained(adapter)
        policy.tokenizer.save_pretrained(adapter)
        return asyncio.run(judged(str(adapter)))

    async def judged(adapter: str) -> float:
        model = await registered(folder, adapter, Path(adapter).name, engine=skill.engine)
        return await share(model, skill, count, as_stock=True)

    rows = [skill.row(skill.training(seed * 100_000 + i)) for i in range(4000)]
    settings = {"max_completion_length": policy.model.config.max_position_embeddings} | skill.stock
    trainer = stock_trainer(
        policy, folder, rows, trainer_class=RacingTrainer,
        per_device_train_batch_size=batch_size, gradient_accumulation_steps=skill.groups * skill.size // batch_size,
        num_generations=skill.size, learning_rate=skill.config.learning_rate, max_steps=len(rows) // skill.groups,
        seed=seed, **settings,
    )  # fmt: skip
    race.measured(judge())
    trainer.add_callback(Judge(race, trainer, judge))
    try:
        trainer.train()
    except OutOfTime:
        race.seconds = limit
        race.measured(judge())
    return race.result()


def measure(skill: Skill, seeds: int, limit: float, count: int = 0, batch_size: int = 0) -> dict:
    """count: held-out scenarios. batch_size: of stock TRL's update. 0: the skill's."""
    need_a_loss()
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(SKILLS), default="2048")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of training after which a run is stopped")
    parser.add_argument("--held-out", type=int, default=0, help="scenarios, where fewer are enough")
    parser.add_argument("--stock-batch-size", type=int, default=0, help="sequences at a time in stock TRL's update")
    a = parser.parse_args()
    print_result(
        "time_to_skill",
        lambda: {"task": a.task, **measure(SKILLS[a.task](), a.seeds, a.limit, a.held_out, a.stock_batch_size)},
    )


if __name__ == "__main__":
    main()
