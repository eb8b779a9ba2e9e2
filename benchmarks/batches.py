"""The batches that benchmarks.learner trains on: what one step of a notebook gathers, and long games."""

from __future__ import annotations

import copy
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass

from openai.types.chat.chat_completion import Choice

import art_nb as art
from art_nb.real_model import smollm2
from art_nb.tasks.email_search import TOOLS, Scenario
from art_nb.tasks.email_search import scenarios as questions
from art_nb.tasks.game_2048 import scenarios as games
from benchmarks.gathering import BASE
from benchmarks.rise_email import paid
from benchmarks.rollout import play
from benchmarks.rollout_email import EMAIL_BASE
from benchmarks.rollout_email import rollout as search
from benchmarks.rollout_real import answers
from benchmarks.skills import game as text_game

GROUP = 8  # of long games


@dataclass(frozen=True)
class Batch:
    """What is gathered from which base model, the training settings, and stock TRL's batch sizes to choose from.

    tolerance: by how much gradient norms may differ; in bfloat16 padded rows round otherwise than a tree.
    """

    base: str
    config: art.TrainConfig
    batch_sizes: tuple[int, ...]
    tolerance: float = 0.01


def batch(name: str) -> Batch:
    """One of NAMES."""
    rate = {"learning_rate": 1e-4}
    if name == "2048":
        return Batch(str(BASE), art.TrainConfig(**rate, turn_discount=0.5), (16, 64, 256))
    if name == "email":
        return Batch(str(EMAIL_BASE), art.TrainConfig(**rate), (2, 4, 8))
    if name == "answers":
        return Batch(smollm2(), art.TrainConfig(**rate), (8, 16, 32), 0.1)
    if name == "tools":
        return Batch(smollm2(), art.TrainConfig(**rate), (2, 4, 8), 0.1)
    return Batch(str(BASE), art.TrainConfig(**rate), (8, 16, 64))


NAMES = ("games", "2048", "email", "answers", "tools")


async def gathered(model: art.TrainableModel, name: str, **fewer: int) -> list[art.TrajectoryGroup]:
    """The groups of a batch. fewer: arguments of the function below that makes it, for a quick look."""
    makers = {"games": long_games, "2048": text_games, "email": searches, "answers": short_answers, "tools": tool_calls}
    made = makers[name](model, **fewer)
    return await art.gather_trajectory_groups(made, pbar_desc=None)


def long_games(model: art.TrainableModel, count: int = 64, shortest: int = 5, longest: int = 60) -> list:
    """`count` games by tool calls, of lengths spread evenly from `shortest` to `longest` turns."""
    lengths = [shortest + i * (longest - shortest) // (count - 1) for i in range(count)]
    groups = count // GROUP
    return [art.TrajectoryGroup(cut_play(model, g, turns) for turns in lengths[g::groups]) for g in range(groups)]


async def cut_play(model: art.TrainableModel, seed: int, turns: int) -> art.Trajectory:
    """A game, as one sequence."""
    return cut(await play(model, seed, turns))


def cut(trajectory: art.Trajectory) -> art.Trajectory:
    """The trajectory up to the first prompt that does not go on from the tokens so far.

    A malformed answer may read differently when it is sent back. We would train on two sequences then; TRL can't.
    """
    seen: list[int] = []
    for i, item in enumerate(trajectory.messages_and_choices):
        if isinstance(item, Choice):
            if item.prompt_token_ids[: len(seen)] != seen:
                del trajectory.messages_and_choices[i:]
                break
            seen = item.prompt_token_ids + item.token_ids
    return trajectory


def text_games(model: art.TrainableModel, groups: int = 4, size: int = 16) -> list:
    """A step of notebook 02: each turn reads the board alone and has a reward of its own."""
    return [
        art.TrajectoryGroup(text_game(model, seed, by_tool=False) for _ in range(size)) for seed in games("train", groups)
    ]


def searches(model: art.TrainableModel, groups: int = 16, size: int = 8) -> list:
    """A step of notebook 03."""
    return [
        art.TrajectoryGroup(paid(model, question, "simple") for _ in range(size)) for question in questions("train", groups)
    ]


def short_answers(model: art.TrainableModel, groups: int = 8, size: int = 8) -> list:
    """A step of notebook 05, by the real model."""
    return [every_other_paid(group) for group in answers(model, groups, size)]


def tool_calls(model: art.TrainableModel, groups: int = 2, size: int = 8, turns: int = 4) -> list:
    """Searches of the mailbox, of at most `turns` calls, by the real model. It was never taught the form of a call, and is
    held to it."""

    async def searched(question: Scenario) -> art.Trajectory:
        return cut(await search(model, question, turns, tools=narrow(TOOLS), tool_choice="required", max_tokens=96))

    return [every_other_paid([searched(question) for _ in range(size)]) for question in questions("train", groups)]


def narrow(tools: list[dict]) -> list[dict]:
    """The same functions; arguments that they lack are forbidden, and long texts: a call fits into an answer."""
    found = copy.deepcopy(tools)
    for parameters in (tool["function"]["parameters"] for tool in found):
        parameters["additionalProperties"] = False
        for argument in parameters["properties"].values():
            argument |= {"string": {"maxLength": 16}, "array": {"maxItems": 1}}.get(argument["type"], {})
    return found


def every_other_paid(group: Iterable[Coroutine]) -> art.TrajectoryGroup:
    """Groups without a signal are not trained on, and untrained the real model is hardly ever right."""

    async def paid(index: int, answering: Coroutine) -> art.Trajectory:
        trajectory = await answering
        trajectory.reward = float(index % 2)
        return trajectory

    return art.TrajectoryGroup(paid(index, answering) for index, answering in enumerate(group))
