"""The batches of benchmarks.learner: steps as in the notebooks, and long games."""

from __future__ import annotations

import copy
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, replace

from openai.types.chat.chat_completion import Choice

import art_nb as art
from benchmarks.gathering import BASE
from benchmarks.rise_email import play_with_reward
from benchmarks.rollout import play
from benchmarks.rollout_email import EMAIL_BASE
from benchmarks.rollout_email import rollout as search
from benchmarks.rollout_real import answers
from benchmarks.skills import game as text_game
from course.real_model import smollm2
from email_search import TOOLS, Scenario
from email_search import scenarios as questions
from game_2048 import scenarios as games

GROUP = 8  # long games per group


@dataclass(frozen=True)
class Batch:
    """The base model, the training settings, and the candidate batch sizes of stock TRL.

    tolerance: relative difference allowed between gradient norms; padded rows and trees round differently in bfloat16.
    """

    base: str
    config: art.TrainConfig
    batch_sizes: tuple[int, ...]
    tolerance: float = 0.01


def batch(name: str, base: str = "") -> Batch:
    """Return the batch of one of NAMES. base: another base model, for which gradients are compared as for bfloat16."""
    if base:
        return replace(batch(name), base=base, tolerance=0.1)
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


async def gathered(model: art.TrainableModel, name: str, **overrides: int) -> list[art.TrajectoryGroup]:
    """Gather the groups of a batch. overrides: arguments of its function below, for a quick run."""
    makers = {"games": long_games, "2048": text_games, "email": searches, "answers": short_answers, "tools": tool_calls}
    made = makers[name](model, **overrides)
    return await art.gather_trajectory_groups(made, pbar_desc=None)


def long_games(model: art.TrainableModel, count: int = 64, shortest: int = 5, longest: int = 60) -> list:
    """Return `count` games by tool calls, in groups, with evenly spaced lengths from `shortest` to `longest` turns."""
    lengths = [shortest + i * (longest - shortest) // (count - 1) for i in range(count)]
    groups = count // GROUP
    return [art.TrajectoryGroup(cut_play(model, g, turns) for turns in lengths[g::groups]) for g in range(groups)]


async def cut_play(model: art.TrainableModel, seed: int, turns: int) -> art.Trajectory:
    """Play a game that is one training sequence."""
    return cut(await play(model, seed, turns))


def cut(trajectory: art.Trajectory) -> art.Trajectory:
    """Truncate the trajectory before the first prompt that does not extend the previous tokens.

    A malformed answer may be tokenized differently when it is sent back. We would train on two sequences then; TRL cannot.
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
    """Return games up to the 128 tile, with the prompts of notebook 02 (the current board), and a reward for each turn."""
    return [
        art.TrajectoryGroup(text_game(model, seed, by_tool=False) for _ in range(size)) for seed in games("train", groups)
    ]


def searches(model: art.TrainableModel, groups: int = 16, size: int = 8) -> list:
    """Return a step of notebook 04, with one reward for each search."""
    return [
        art.TrajectoryGroup(play_with_reward(model, question, "simple") for _ in range(size))
        for question in questions("train", groups)
    ]


def short_answers(model: art.TrainableModel, groups: int = 8, size: int = 8) -> list:
    """Return a step of notebook 06 with the real model."""
    return [alternating_rewards(group) for group in answers(model, groups, size)]


def tool_calls(model: art.TrainableModel, groups: int = 2, size: int = 8, turns: int = 4) -> list:
    """Return searches by the real model, of at most `turns` calls. Decoding is constrained to well-formed calls."""

    async def searched(question: Scenario) -> art.Trajectory:
        return cut(await search(model, question, turns, tools=narrow(TOOLS), tool_choice="required", max_tokens=96))

    return [alternating_rewards([searched(question) for _ in range(size)]) for question in questions("train", groups)]


def narrow(tools: list[dict]) -> list[dict]:
    """Return the tools with limits on unknown and long arguments, so that a call fits into an answer."""
    found = copy.deepcopy(tools)
    for parameters in (tool["function"]["parameters"] for tool in found):
        parameters["additionalProperties"] = False
        for argument in parameters["properties"].values():
            argument |= {"string": {"maxLength": 16}, "array": {"maxItems": 1}}.get(argument["type"], {})
    return found


def alternating_rewards(group: Iterable[Coroutine]) -> art.TrajectoryGroup:
    """Return a group with alternating rewards 0 and 1, because groups with equal rewards are not trained on."""

    async def rewarded(index: int, answering: Coroutine) -> art.Trajectory:
        trajectory = await answering
        trajectory.reward = float(index % 2)
        return trajectory

    return art.TrajectoryGroup(rewarded(index, answering) for index, answering in enumerate(group))
