"""The tasks of benchmarks.time_to_skill: those of notebooks 02, 04 and 06, for us and for stock TRL."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from openai.types.chat.chat_completion import Choice

import art_nb as art
from benchmarks import rise_email, rise_real, rollout_email, rollout_real
from benchmarks.gathering import BASE
from benchmarks.rollout import MAX_TOKENS
from course.real_model import smollm2
from email_search import MAX_TURNS as MAX_CALLS
from email_search import EmailSearchEnvironment, Scenario
from email_search import scenarios as questions
from game_2048 import MOVE_TOOL, Game, Game2048Environment, TurnWeights, outcome_reward
from game_2048 import scenarios as games
from game_2048.environment import DEFAULT_TURN_WEIGHTS

WINNING_TILE = 128
GROUPS, SIZE = 4, 16
MAX_TURNS = 200  # more than a game up to the 128 tile takes


@dataclass(frozen=True)
class Skill:
    """A task and its training settings.

    base: the base model. rise: increase in held-out success rate that ends the run. groups, size: per step. config: with a
    constant learning rate, because the number of steps is not known. training: number from 0 -> scenario. held_out: count ->
    scenarios. play: our rollout. play_as_stock: a rollout in the format of stock TRL's training. succeeds: of a trajectory.
    row: scenario -> row of stock TRL's dataset. stock: its other settings. batch_size: stock TRL's fastest, see
    benchmarks.learner. engine: ours, as in the notebook. count: number of held-out scenarios.
    """

    base: Callable[[], str]
    rise: float
    groups: int
    size: int
    config: art.TrainConfig
    training: Callable[[int], Any]
    held_out: Callable[[int], list]
    play: Callable[[art.TrainableModel, Any], Coroutine[Any, Any, art.Trajectory]]
    play_as_stock: Callable[[art.TrainableModel, Any], Coroutine[Any, Any, art.Trajectory]]
    succeeds: Callable[[art.Trajectory], bool]
    row: Callable[[Any], dict]
    stock: dict[str, Any]
    batch_size: int
    engine: str = "auto"
    count: int = 200


async def game(
    model: art.TrainableModel, seed: int, by_tool: bool, winning_tile: int = WINNING_TILE, temperature: float = 1.0,
    weights: TurnWeights = DEFAULT_TURN_WEIGHTS, max_tokens: int = MAX_TOKENS,
) -> art.Trajectory:  # fmt: skip
    """Play one game with turn rewards: by tool calls in one conversation, or with the current board alone as prompt."""
    played = Game(seed, winning_tile=winning_tile, weights=weights)
    trajectory = art.Trajectory(messages_and_choices=[])
    client, extra = model.openai_client(), {"tools": [MOVE_TOOL]} if by_tool else {}
    reply_to: dict = {"role": "user"}
    while not played.over:
        board = {**reply_to, "content": played.render()}
        trajectory.messages_and_choices.append(board)
        completion = await client.chat.completions.create(
            model=model.get_inference_name(),
            messages=trajectory.messages() if by_tool else [board],
            max_tokens=max_tokens,
            temperature=temperature,
            **extra,
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        played.move(direction(choice) if by_tool else choice.message.content)
        if by_tool and not played.over:
            reply_to = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id}
    trajectory.reward, trajectory.turn_rewards = outcome_reward(played), played.turn_rewards
    trajectory.metrics["won"] = played.won
    return trajectory


async def measure_wins(model: art.TrainableModel, count: int) -> list[bool]:
    """Return for each of the first `count` test games whether the model wins, at temperature 1."""
    playing = [game(model, seed, by_tool=False) for seed in games("test", count)]
    played = await art.gather_trajectories(playing, pbar_desc=None)
    return [bool(trajectory.metrics["won"]) for trajectory in played]


def direction(choice: Choice) -> str | None:
    """Return the direction of the answer's single tool call, else None, which ends a game as malformed."""
    calls = choice.message.tool_calls or []
    arguments = json.loads(calls[0].function.arguments) if len(calls) == 1 else None
    return str(arguments.get("direction")) if isinstance(arguments, dict) else None


def game_2048(by_tool: bool = False) -> Skill:
    """Return notebook 02's task, up to the 128 tile. by_tool: ours also uses tool calls, so that only the reward differs."""
    return Skill(
        lambda: str(BASE), 0.2, GROUPS, SIZE, art.TrainConfig(learning_rate=1.5e-3, turn_discount=0.5),
        training=lambda number: number, held_out=lambda count: list(games("val", count)),
        play=partial(game, by_tool=by_tool), play_as_stock=partial(game, by_tool=True),
        succeeds=lambda trajectory: bool(trajectory.metrics["won"]),
        row=lambda seed: {"prompt": [{"role": "user", "content": ""}], "seed": seed},
        stock={
            "environment": partial(Game2048Environment, winning_tile=WINNING_TILE),
            "generation_kwargs": {"max_new_tokens": MAX_TOKENS}, "max_tool_calling_iterations": MAX_TURNS,
        },
        batch_size=8,
    )  # fmt: skip


class EmailCorrectnessEnvironment(EmailSearchEnvironment):
    """The search with reward 1 for a correct answer and 0 otherwise."""

    def get_reward(self) -> float:
        """Return 1 for a correct answer, else 0."""
        return self.episode.metrics()["correct"]


def email() -> Skill:
    """Return the task of notebook 04. Both sides get reward 1 for a correct answer and 0 otherwise.

    The notebook's rewards for each call are left out, because an environment of TRL has one reward.
    """
    training_questions = questions("train")

    async def play(model: art.TrainableModel, scenario: Scenario) -> art.Trajectory:
        trajectory = await rollout_email.rollout(model, scenario)
        trajectory.reward = trajectory.metrics["correct"]
        return trajectory

    return Skill(
        lambda: str(rollout_email.EMAIL_BASE), 0.2, rise_email.GROUPS, rise_email.SIZE, art.TrainConfig(learning_rate=2e-3),
        training=lambda number: training_questions[number % len(training_questions)],
        held_out=lambda count: questions("val", count),
        play=play, play_as_stock=play,
        succeeds=lambda trajectory: bool(trajectory.metrics["correct"]),
        row=lambda scenario: {"prompt": [{"role": "user", "content": ""}], "scenario": scenario.id},
        stock={
            "environment": EmailCorrectnessEnvironment,
            "generation_kwargs": {"max_new_tokens": rollout_email.MAX_TOKENS}, "max_tool_calling_iterations": MAX_CALLS,
        },
        batch_size=2, count=120,
    )  # fmt: skip


def price_reward(completions: list[list[dict]], price: list[int], **_: object) -> list[float]:
    """Return the rewards of notebook 06, as a reward function of TRL."""
    pairs = zip(completions, price, strict=True)
    return [float(rollout_real.names_price(answer[0]["content"], expected)) for answer, expected in pairs]


def answers() -> Skill:
    """Return the task of notebook 06, short answers of the real model. Both sides have the same prompts and rewards."""

    def play(model: art.TrainableModel, question: tuple[str, int]) -> Coroutine[Any, Any, art.Trajectory]:
        return rollout_real.rollout(model, *question)

    def row(question: tuple[str, int]) -> dict:
        text, price = rollout_real.scenario(*question)
        return {"prompt": rollout_real.prompt(text), "price": price}

    task = rise_real.TASKS["prices"]
    config = art.TrainConfig(learning_rate=task.learning_rate)
    return Skill(
        smollm2, 0.5, task.groups, task.size, config,
        training=lambda number: ("train", number), held_out=lambda count: [("val", i) for i in range(count)],
        play=play, play_as_stock=play,
        succeeds=lambda trajectory: bool(trajectory.reward),
        row=row,
        stock={"reward": price_reward, "max_completion_length": rollout_real.MAX_TOKENS},
        batch_size=16, engine="transformers",
    )  # fmt: skip


SKILLS: dict[str, Callable[[], Skill]] = {
    "2048": game_2048, "2048-by-tool": partial(game_2048, by_tool=True), "email": email, "answers": answers,
}  # fmt: skip
