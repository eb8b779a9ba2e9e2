"""How fast games are gathered through the public API, against stock TRL with environment_factory.

`python -m benchmarks.rollout` prints one JSON line. `ratio`: sampled tokens a second of gathering 64 games of
40 turns, over those of stock TRL's generation phase (`GRPOTrainer._generate`, nothing else of it) in the same
run: same base model and adapter, prompts, tool schema and tool results, limit of tokens per turn, temperature
1. Ours counts all of `gather_trajectory_groups`. On both sides the games are of `EndlessEnvironment`, and end
after exactly 40 turns, or at an answer without a tool call, because TRL's loop can't go on from there
(`turns` says how long they were in the mean). It stops if the two sides did not read the same prompts.

`turn_cost_ratio`: a second measurement, of ours alone: the mean seconds of turns 78 to 82 over those of turns
8 to 12, in 64 games of 82 turns. A turn lasts from a game's answer before to its answer, with all games in
parallel; here a malformed answer ends no game, so that late turns do not look cheap because games are missing.

`python -m benchmarks.rollout --task email` races on the email task: see benchmarks/rollout_email.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path

import art_nb as art
from art_nb.tasks.game_2048 import MOVE_TOOL, Game, Game2048Environment
from benchmarks.result import print_result, say
from benchmarks.stock_trl import GRPOTrainer, stock_policy, stock_trainer

MAX_TOKENS = 16  # of one answer; a move takes 5
BASE = Path(__file__).resolve().parent.parent / "data" / "nano"


class EndlessEnvironment(Game2048Environment):
    """2048 where a game lasts for as many turns as its player takes, however badly it is played.

    An illegal move changes nothing and ends nothing; a board that is won or stuck makes way for a new game's. The
    player's loop sets the length, 40 turns in this benchmark: `play` by its `turns`, TRL by
    max_tool_calling_iterations.
    """

    def move(self, direction: str) -> str:
        self.game.move(str(direction))
        if self.game.ended_by in ("won", "stuck"):
            self.game = Game(self.game.seed + 10_000_000, self.size, self.winning_tile)
        self.game.ended_by = None
        return self.game.render()

    move.__doc__ = Game2048Environment.move.__doc__  # the tool's schema is made from it


async def play(
    model: art.TrainableModel, seed: int, turns: int, clock: dict[int, list[float]] | None = None
) -> art.Trajectory:
    """One game of `turns` turns, as TRL's loop plays it.

    clock: is given the seconds of turn k under k, counted from 1. With it, a malformed answer does not end the game:
      the board is shown again, so that as many games are played at the last turn as at the first.
    """
    environment = EndlessEnvironment()
    first = {"role": "user", "content": environment.reset(seed=seed)}
    trajectory = art.Trajectory(messages_and_choices=[first])
    client, before = model.openai_client(), time.perf_counter()
    for turn in range(1, turns + 1):
        completion = await client.chat.completions.create(
            model=model.get_inference_name(),
            messages=trajectory.messages(),
            tools=[MOVE_TOOL],
            max_tokens=MAX_TOKENS,
        )
        now = time.perf_counter()
        if clock is not None:
            clock[turn].append(now - before)
        choice, before = completion.choices[0], now
        trajectory.messages_and_choices.append(choice)
        calls = choice.message.tool_calls or []
        if turn == turns or not (calls or clock is not None):
            break
        again = {"role": "user", "content": environment.game.render()}
        trajectory.messages_and_choices += [tool_message(environment, call) for call in calls] or [again]
    trajectory.reward = environment.get_reward()
    return trajectory


def tool_message(environment: EndlessEnvironment, call) -> dict:
    """What TRL's loop answers to a tool call, the model's mistakes included."""
    name = call.function.name
    try:
        if name != "move":
            raise ValueError(f"Tool {name} not found.")
        content = environment.move(**json.loads(call.function.arguments))
    except Exception as error:  # as TRL does: the model is told of any error
        content = str({"error": str(error)})
    return {"role": "tool", "tool_call_id": call.id, "content": content}


async def registered(folder: str, base: str, name: str, seed: int = 0) -> art.TrainableModel:
    """A model ready for rollouts that keeps its files in `folder`."""
    from art_nb.local import LocalBackend

    model = art.TrainableModel(name=name, project="benchmarks", base_model=str(base))
    await model.register(LocalBackend(path=folder, seed=seed))
    return model


async def gather(groups: Iterable[Iterable[Coroutine]]) -> dict:
    """Runs the rollouts of all groups; returns speed, turns, first prompts, and the trajectories."""
    started = time.perf_counter()
    gathered = await art.gather_trajectory_groups([art.TrajectoryGroup(group) for group in groups], pbar_desc=None)
    seconds = time.perf_counter() - started
    trajectories = [trajectory for group in gathered for trajectory in group]
    answers = [trajectory.choices() for trajectory in trajectories]
    return {
        "tokens": sum(len(choice.token_ids) for rollout in answers for choice in rollout),
        "seconds": seconds,
        "turns": sum(map(len, answers)) / len(answers),
        "prompts": [rollout[0].prompt_token_ids for rollout in answers],
        "trajectories": trajectories,
    }


def games(model: art.TrainableModel, groups: int, size: int, turns: int, clock: dict | None = None) -> list:
    """Groups of games to be played, each group from a seed of its own."""
    return [[play(model, seed, turns, clock) for _ in range(size)] for seed in range(groups)]


async def measure_ours(folder: str, base: str, groups: int, size: int, turns: int) -> dict:
    """`gather` with nothing cached, after a few turns of another model have warmed torch up."""
    await gather(games(await registered(folder, base, "warm-up"), groups, size, turns=2))
    return await gather(games(await registered(folder, base, "model"), groups, size, turns))


async def turn_costs(folder: str, base: str, groups: int, size: int, late: int, early: int = 10) -> dict:
    """Mean seconds of the five turns around `early` and around `late`, and their ratio."""
    clock: dict[int, list[float]] = defaultdict(list)
    await gather(games(await registered(folder, base, "long"), groups, size, late + 2, clock))
    seconds = []
    for middle in (early, late):
        around = [s for turn in range(middle - 2, middle + 3) for s in clock[turn]]
        seconds.append(sum(around) / len(around))
    return {f"turn_{early}_s": seconds[0], f"turn_{late}_s": seconds[1], "turn_cost_ratio": seconds[1] / seconds[0]}


class TimedTrainer(GRPOTrainer):
    """Stock TRL that notes what its generation phase took and gave."""

    def _generate(self, prompts: list) -> tuple:
        started = time.perf_counter()
        generated = super()._generate(prompts)
        seconds = time.perf_counter() - started
        prompt_ids, completion_ids, sampled, messages = generated[:4]
        answers = [sum(message["role"] == "assistant" for message in game) for game in messages]
        self.measured = {
            "tokens": sum(map(sum, sampled)),
            "seconds": seconds,
            "turns": sum(answers) / len(answers),
            "prompts": prompt_ids,
            "games": [a + b for a, b in zip(prompt_ids, completion_ids, strict=True)],
            "messages": messages,
        }
        return generated


def measure_stock(folder: str, base: str, groups: int, size: int, turns: int) -> dict:
    """The same games by stock TRL."""
    seeds = [{"seed": seed} for seed in range(groups)]
    return stock_generation(folder, base, seeds, size, EndlessEnvironment, turns, MAX_TOKENS)


def stock_generation(
    folder: str, base: str, columns: list[dict], size: int, environment: Callable, turns: int, max_tokens: int
) -> dict:
    """What stock TRL's generation phase takes and gives, after a short one has warmed torch up.

    columns: one dict per group, what its environments' `reset` is told. turns: answers in a rollout, at most.
    """
    policy = stock_policy(base, seed=0)
    rows = [{"prompt": [{"role": "user", "content": ""}], **column} for column in columns]
    trainer = stock_trainer(
        policy, folder, rows, trainer_class=TimedTrainer, environment=environment,
        per_device_train_batch_size=len(rows) * size, num_generations=size,
        # TRL has one limit for a whole rollout, here the context, and hands this one on to `generate` for each turn.
        max_completion_length=policy.model.config.max_position_embeddings,
        generation_kwargs={"max_new_tokens": max_tokens},
    )  # fmt: skip
    trainer.model.train()
    for length in (2, turns):
        trainer.max_tool_calling_iterations = length - 1
        trainer._generate_and_score_completions([row for row in rows for _ in range(size)])
    return trainer.measured | {"environments": trainer.environments}


def compared(ours: dict, stock: dict) -> dict:
    """The ratio of speeds, and each side's numbers. Raises: SystemExit when the sides read different prompts."""
    if ours["prompts"] != stock["prompts"]:
        raise SystemExit("the two sides read different prompts: what they measured can't be compared")
    speeds = {"ours": ours["tokens"] / ours["seconds"], "stock": stock["tokens"] / stock["seconds"]}
    result = {"ratio": speeds["ours"] / speeds["stock"]}
    for side, numbers in (("ours", ours), ("stock", stock)):
        result[f"{side}_tokens_per_s"] = speeds[side]
        result |= {f"{side}_{key}": numbers[key] for key in ("tokens", "seconds", "turns")}
    return result


def measure(base: str, groups: int, size: int, turns: int, late: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        say(f"ours: {groups * size} games of {turns} turns")
        ours = asyncio.run(measure_ours(folder, base, groups, size, turns))
        say(f"ours: {groups * size} games of {late + 2} turns")
        costs = asyncio.run(turn_costs(folder, base, groups, size, late))
        say(f"stock TRL: {groups * size} games of {turns} turns")
        stock = measure_stock(folder, base, groups, size, turns)
    return compared(ours, stock) | costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=["2048", "email"], default="2048")
    parser.add_argument("--base", help="folder or hub name of the base model; by default the task's nano model")
    parser.add_argument("--groups", type=int, help="by default 8 of 2048, 16 of email")
    parser.add_argument("--size", type=int, default=8, help="games or searches in a group")
    parser.add_argument("--turns", type=int, default=80, help="the late turn whose cost is compared with turn 10's")
    parser.add_argument("--game-turns", type=int, default=40, help="turns of a game of the race against TRL")
    a = parser.parse_args()
    if a.task == "2048":
        print_result("rollout", lambda: measure(a.base or str(BASE), a.groups or 8, a.size, a.game_turns, a.turns))
    else:
        from benchmarks import rollout_email

        base = a.base or str(rollout_email.EMAIL_BASE)
        print_result("rollout_email", lambda: rollout_email.measure(base, a.groups or 16, a.size))


if __name__ == "__main__":
    main()
