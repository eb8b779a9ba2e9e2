"""How long training takes until the policy wins clearly more, against stock TRL's GRPOTrainer.

`python -m benchmarks.time_to_skill --seeds 3` prints one JSON line. Seconds of training (gathering and
updating, nothing else) until the share of held-out games won, a game of 2048 being won at the tile 128, has
risen by 20 points. Both sides start from the same base model and adapter, play 64 games a step (4 groups of
16) at the same learning rate, and stop at `--limit` seconds, which then stand for more (`stopped`). The win
rate is measured outside the clock, after each step that ends 10 s or more of training after the last
measurement, on the same 200 games.

Ours plays as notebook 02 does: the board alone in each prompt, and a reward for each turn. Stock TRL plays
through environment_factory, which means a growing conversation of tool calls, and learns from the outcome
reward. Each side is judged by its own way of playing. `--play tool` lets ours play by tool calls too, so that
only the reward differs. `ratio` is stock's mean seconds over ours, a lower bound (`ratio_is_at_least`) when a
run of stock was stopped, and null when one of ours was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from openai.types.chat.chat_completion import Choice
from transformers import TrainerCallback

import art_nb as art
from art_nb.tasks.game_2048 import MOVE_TOOL, Game, Game2048Environment, outcome_reward, scenarios
from benchmarks.gathering import BASE, registered
from benchmarks.result import print_result, say
from benchmarks.rollout import MAX_TOKENS
from benchmarks.stock_trl import GRPOTrainer, need_a_loss, stock_policy, stock_trainer

WINNING_TILE = 128
GROUPS, SIZE = 4, 16
MAX_TURNS = 200  # more than a game up to the tile 128 has
RISE = 0.2
EVERY = 10.0  # seconds of training between two measurements of the win rate
CONFIG = art.TrainConfig(learning_rate=1.5e-3, turn_discount=0.5)  # constant: how many steps it takes is the question


async def rollout(model: art.TrainableModel, seed: int, by_tool: bool) -> art.Trajectory:
    """One game, each turn with its reward; by tool calls in one conversation, or from each board alone."""
    game = Game(seed, winning_tile=WINNING_TILE)
    trajectory = art.Trajectory(messages_and_choices=[])
    client, extra = model.openai_client(), {"tools": [MOVE_TOOL]} if by_tool else {}
    reply_to: dict = {"role": "user"}
    while not game.over:
        board = {**reply_to, "content": game.render()}
        trajectory.messages_and_choices.append(board)
        completion = await client.chat.completions.create(
            model=model.get_inference_name(),
            messages=trajectory.messages() if by_tool else [board],
            max_tokens=MAX_TOKENS,
            **extra,
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        game.move(direction(choice) if by_tool else choice.message.content)
        if by_tool and not game.over:
            reply_to = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id}
    trajectory.reward, trajectory.turn_rewards = outcome_reward(game), game.turn_rewards
    trajectory.metrics["won"] = game.won
    return trajectory


def direction(choice: Choice) -> str | None:
    """The direction of the answer's tool call; None, which ends a game as malformed, unless there is just one."""
    calls = choice.message.tool_calls or []
    arguments = json.loads(calls[0].function.arguments) if len(calls) == 1 else None
    return str(arguments.get("direction")) if isinstance(arguments, dict) else None


async def win_rate(model: art.TrainableModel, games: int, by_tool: bool) -> float:
    """The share of the first `games` validation games that the model wins at temperature 1."""
    seeds = scenarios("val", games)
    played = await art.gather_trajectories([rollout(model, seed, by_tool) for seed in seeds], pbar_desc=None)
    return sum(trajectory.metrics["won"] for trajectory in played) / games


class Race:
    """One side's run from one seed: its clock, and whether it has arrived."""

    def __init__(self, side: str, seed: int, limit: float):
        self.side, self.seed, self.limit = side, seed, limit
        self.seconds, self.steps, self.measured_at, self.rates = 0.0, 0, 0.0, []

    def trained(self, seconds: float) -> None:
        self.seconds += seconds
        self.steps += 1

    @property
    def due(self) -> bool:
        """Whether it is time to measure the win rate."""
        return not self.rates or self.seconds - self.measured_at >= EVERY or self.out_of_time

    def measured(self, rate: float) -> None:
        self.rates.append(rate)
        self.measured_at = self.seconds
        say(f"{self.side}, seed {self.seed}: {self.steps} steps, {self.seconds:.0f} s, win rate {rate:.3f}")

    @property
    def arrived(self) -> bool:
        return self.rates[-1] >= self.rates[0] + RISE

    @property
    def out_of_time(self) -> bool:
        return self.seconds >= self.limit

    def result(self) -> dict:
        return {
            "seed": self.seed,
            "seconds": min(self.seconds, self.limit),
            "stopped": not self.arrived,
            "steps": self.steps,
            "win_rate_before": self.rates[0],
            "win_rate_after": self.rates[-1],
        }


async def race_ours(folder: str, base: str, seed: int, limit: float, games: int, by_tool: bool) -> dict:
    race = Race("ours", seed, limit)
    model = await registered(folder, base, f"ours-{seed}", seed=seed)
    race.measured(await win_rate(model, games, by_tool))
    while not race.arrived and not race.out_of_time:
        started = time.perf_counter()
        first = seed * 100_000 + race.steps * GROUPS
        groups = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(rollout(model, first + g, by_tool) for _ in range(SIZE)) for g in range(GROUPS)],
            pbar_desc=None,
        )
        await model.train(groups, CONFIG)
        race.trained(time.perf_counter() - started)
        if race.due:
            race.measured(await win_rate(model, games, by_tool))
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
    """Runs the race's clock while a step runs, and measures the win rate between steps."""

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


def race_stock(folder: str, base: str, seed: int, limit: float, games: int, batch_size: int) -> dict:
    race, policy = Race("stock TRL", seed, limit), stock_policy(base, seed)

    def judge() -> float:
        """The win rate of the policy as it is, through the public API."""
        adapter = Path(folder) / f"stock-{seed}-{race.steps}"
        policy.model.save_pretrained(adapter)
        policy.tokenizer.save_pretrained(adapter)
        return asyncio.run(judged(str(adapter)))

    async def judged(adapter: str) -> float:
        return await win_rate(await registered(folder, adapter, Path(adapter).name), games, by_tool=True)

    rows = [{"prompt": [{"role": "user", "content": ""}], "seed": seed * 100_000 + i} for i in range(4000)]
    trainer = stock_trainer(
        policy, folder, rows, trainer_class=RacingTrainer,
        environment=partial(Game2048Environment, winning_tile=WINNING_TILE),
        per_device_train_batch_size=batch_size, gradient_accumulation_steps=GROUPS * SIZE // batch_size,
        num_generations=SIZE, learning_rate=CONFIG.learning_rate, max_steps=len(rows) // GROUPS, seed=seed,
        max_completion_length=policy.model.config.max_position_embeddings,
        generation_kwargs={"max_new_tokens": MAX_TOKENS}, max_tool_calling_iterations=MAX_TURNS,
    )  # fmt: skip
    race.measured(judge())
    trainer.add_callback(Judge(race, trainer, judge))
    try:
        trainer.train()
    except OutOfTime:
        race.seconds = limit
        race.measured(judge())
    return race.result()


def measure(base: str, seeds: int, limit: float, games: int, by_tool: bool, batch_size: int) -> dict:
    need_a_loss()
    ours, stock = [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            ours.append(asyncio.run(race_ours(folder, base, seed, limit, games, by_tool)))
            stock.append(race_stock(folder, base, seed, limit, games, batch_size))
    ours_mean, stock_mean = (statistics.mean(run["seconds"] for run in runs) for runs in (ours, stock))
    return {
        "ratio": None if any(run["stopped"] for run in ours) else stock_mean / ours_mean,
        "ratio_is_at_least": any(run["stopped"] for run in stock),
        "ours_mean_s": ours_mean,
        "stock_mean_s": stock_mean,
        "limit_s": limit,
        "held_out_games": games,
        "ours": ours,
        "stock": stock,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", default=str(BASE), help="folder or hub name of the base model")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of training after which a run is stopped")
    parser.add_argument("--games", type=int, default=200, help="held-out games")
    parser.add_argument("--play", choices=["text", "tool"], default="text", help="how ours plays")
    parser.add_argument("--stock-batch-size", type=int, default=8, help="sequences at a time in stock TRL's update")
    a = parser.parse_args()
    by_tool = a.play == "tool"
    print_result("time_to_skill", lambda: measure(a.base, a.seeds, a.limit, a.games, by_tool, a.stock_batch_size))


if __name__ == "__main__":
    main()
