"""What benchmarks.time_to_skill has both sides learn: the tasks of notebooks 02, 03 and 05, as either side plays them."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from openai.types.chat.chat_completion import Choice

import art_nb as art
from art_nb.real_model import smollm2
from art_nb.tasks.email_search import MAX_TURNS as MAX_CALLS
from art_nb.tasks.email_search import EmailSearchEnvironment, Scenario
from art_nb.tasks.email_search import scenarios as questions
from art_nb.tasks.game_2048 import MOVE_TOOL, Game, Game2048Environment, outcome_reward
from art_nb.tasks.game_2048 import scenarios as games
from benchmarks import rise_email, rise_real, rollout_email, rollout_real
from benchmarks.gathering import BASE
from benchmarks.rollout import MAX_TOKENS

WINNING_TILE = 128
GROUPS, SIZE = 4, 16
MAX_TURNS = 200  # more than a game up to the tile 128 has


@dataclass(frozen=True)
class Skill:
    """What is learned from which base model, and how.

    rise: of the share of held-out scenarios that succeed, at which it is learned. config: a constant learning rate, as how
    many steps it takes is the question. training: scenario by number, from 0. held_out: so many. play: ours.
    play_as_stock: as stock TRL has learned to play. succeeds: whether a trajectory did. row: of stock TRL's dataset.
    stock: its other settings. batch_size: stock TRL's fastest, see benchmarks.learner. engine: ours, the notebook's.
    count: held-out scenarios to try.
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


async def game(model: art.TrainableModel, seed: int, by_tool: bool) -> art.Trajectory:
    """One game, each turn with its reward; by tool calls in one conversation, or from each board alone."""
    played = Game(seed, winning_tile=WINNING_TILE)
    trajectory = art.Trajectory(messages_and_choices=[])
    client, extra = model.openai_client(), {"tools": [MOVE_TOOL]} if by_tool else {}
    reply_to: dict = {"role": "user"}
    while not played.over:
        board = {**reply_to, "content": played.render()}
        trajectory.messages_and_choices.append(board)
        completion = await client.chat.completions.create(
            model=model.get_inference_name(),
            messages=trajectory.messages() if by_tool else [board],
            max_tokens=MAX_TOKENS,
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


def direction(choice: Choice) -> str | None:
    """The direction of the answer's tool call; None, which ends a game as malformed, unless there is just one."""
    calls = choice.message.tool_calls or []
    arguments = json.loads(calls[0].function.arguments) if len(calls) == 1 else None
    return str(arguments.get("direction")) if isinstance(arguments, dict) else None


def game_2048(by_tool: bool = False) -> Skill:
    """by_tool: ours plays by tool calls, too, so that only the reward differs."""
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


class PaidForAnswers(EmailSearchEnvironment):
    """The search, paid 1 for a correct answer."""

    def get_reward(self) -> float:
        return self.search.metrics()["correct"]


def email() -> Skill:
    """Both sides play alike and are paid for correct answers alone.

    Notebook 03 takes 1 off for a malformed call, which never reaches an environment of TRL's.
    """
    asked = questions("train")

    async def play(model: art.TrainableModel, scenario: Scenario) -> art.Trajectory:
        trajectory = await rollout_email.rollout(model, scenario)
        trajectory.reward = trajectory.metrics["correct"]
        return trajectory

    return Skill(
        lambda: str(rollout_email.EMAIL_BASE), 0.2, rise_email.GROUPS, rise_email.SIZE, art.TrainConfig(learning_rate=2e-3),
        training=lambda number: asked[number % len(asked)], held_out=lambda count: questions("val", count),
        play=play, play_as_stock=play,
        succeeds=lambda trajectory: bool(trajectory.metrics["correct"]),
        row=lambda scenario: {"prompt": [{"role": "user", "content": ""}], "scenario": scenario.id},
        stock={
            "environment": PaidForAnswers,
            "generation_kwargs": {"max_new_tokens": rollout_email.MAX_TOKENS}, "max_tool_calling_iterations": MAX_CALLS - 1,
        },
        batch_size=2, count=120,
    )  # fmt: skip


def right(completions: list[list[dict]], price: list[int], **_: object) -> list[float]:
    """The reward of notebook 05, as stock TRL asks for it."""
    pairs = zip(completions, price, strict=True)
    return [float(rollout_real.names(answer[0]["content"], asked)) for answer, asked in pairs]


def answers() -> Skill:
    """Short answers of the real model; the reward and the prompts are the same on both sides."""

    def play(model: art.TrainableModel, asked: tuple[str, int]) -> Coroutine[Any, Any, art.Trajectory]:
        return rollout_real.rollout(model, *asked)

    def row(asked: tuple[str, int]) -> dict:
        text, price = rollout_real.scenario(*asked)
        return {"prompt": rollout_real.prompt(text), "price": price}

    return Skill(
        smollm2, 0.5, rise_real.GROUPS, rise_real.SIZE, art.TrainConfig(learning_rate=rise_real.LEARNING_RATE),
        training=lambda number: ("train", number), held_out=lambda count: [("val", i) for i in range(count)],
        play=play, play_as_stock=play,
        succeeds=lambda trajectory: bool(trajectory.reward),
        row=row,
        stock={"reward": right, "max_completion_length": rollout_real.MAX_TOKENS},
        batch_size=16, engine="transformers",
    )  # fmt: skip


SKILLS: dict[str, Callable[[], Skill]] = {
    "2048": game_2048, "2048-by-tool": partial(game_2048, by_tool=True), "email": email, "answers": answers,
}  # fmt: skip
