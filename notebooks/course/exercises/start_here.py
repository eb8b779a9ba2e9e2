"""The exercises of notebook 00, Start here."""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from numbers import Integral
from statistics import fmean
from typing import TYPE_CHECKING

from course.exercises import Exercise, checker, is_number
from course.exercises.training import draw, draws, gather, with_new_model

if TYPE_CHECKING:
    from art_nb import TrainableModel

WORDS = ("left", "right", "up", "down")
GROUPS = [
    ([0, 0, 0, 1],), ([1, 1, 1, 1],), ([-1, -2, -3, -4],), ([-1, 1, -1, 1],), ([0, 0, 0],), ([-2, -2],), ([1, 0, 1, 1],),
]  # fmt: skip

HAS_SIGNAL = Exercise(
    right=lambda rewards: max(rewards) != min(rewards),
    cases=lambda: GROUPS,
    mistakes={
        "High rewards alone carry no signal: in [1, 1, 1, 1] no answer is better than another.":
            lambda rewards: max(rewards) > 0,
        "Negative rewards carry a signal as well: in [-1, -2, -3, -4] the first is the best.":
            lambda rewards: max(rewards) > 0 and max(rewards) != min(rewards),
        "The mean does not measure differences: [-1, 1, -1, 1] has mean zero and a strong signal.":
            lambda rewards: fmean(rewards) != 0,
        "Inverted: return True where the group carries a signal.": lambda rewards: max(rewards) == min(rewards),
        "Not all rewards need to differ; it is enough that two do.":
            lambda rewards: len(set(rewards)) == len(rewards),
    },
)  # fmt: skip


def _what_is_wrong(reward) -> str | None:
    worth = {word: reward(word) for word in WORDS}
    for word, value in worth.items():
        if not (is_number(value) or isinstance(value, bool)):
            return f"A reward is a finite number; for {word!r} it is {value!r}."
    best = max(worth, key=worth.__getitem__)
    if len(set(worth.values())) == 1:
        return "Every word has the same reward, so no answer is better than another: there is no signal."
    if worth["up"] == min(worth.values()):
        return "The sign: 'up' has the lowest reward of all, so the policy will avoid it."
    if worth["up"] < worth[best]:
        return f"{best!r} has a higher reward than 'up', so the policy will learn to say that."
    tied = [word for word in WORDS if word != "up" and worth[word] == worth["up"]]
    return f"{tied[0]!r} has the same reward as 'up', so the policy cannot learn to prefer 'up'." if tied else None


REWARD = Exercise(right=lambda word: float(word == "up"), cases=lambda: [(word,) for word in WORDS], accept=_what_is_wrong)

CALLS, SEEDS, ENOUGH = 10, (0, 1), 8  # ENOUGH: calls of `train` without an update, of all runs
SIZE = 16  # of the groups in the notebook
BOARD = ". . . .\n. 4 2 .\n. 2 4 .\n. . . ."


def ten_calls(size: int, seed: int) -> tuple[list[float], int]:
    """Repeat the notebook's loop with groups of `size`.

    Returns the probability of "left" after each call of `train`, and the number of calls that found no signal.
    """
    from openai.types.chat import ChatCompletionUserMessageParam

    import art_nb as art

    prompt: ChatCompletionUserMessageParam = {"role": "user", "content": BOARD}

    async def use(model: TrainableModel) -> tuple[list[float], int]:
        create, curve = model.openai_client().chat.completions.create, []

        async def rollout() -> art.Trajectory:
            completion = await create(model=model.get_inference_name(), messages=[prompt], max_tokens=4)
            answer = completion.choices[0]
            return art.Trajectory(messages_and_choices=[prompt, answer], reward=float(answer.message.content == "left"))

        async def probability() -> float:
            completion = await create(
                model=model.get_inference_name(), messages=[prompt], max_tokens=1, logprobs=True, top_logprobs=10
            )
            logprobs = completion.choices[0].logprobs
            assert logprobs and logprobs.content
            likely = {option.token: exp(option.logprob) for option in logprobs.content[0].top_logprobs}
            return likely.get("left", 0.0)

        for _ in range(CALLS):
            await model.train(await gather([[rollout() for _ in range(size)]]), art.TrainConfig())
            curve.append(await probability())
        rows = model.history().query("split == 'train'")
        return curve, int(rows.groups_without_signal.sum())

    return with_new_model("nano", use, seed)


def _why_few_skipped(answer: Callable[[], int]) -> str | None:
    size = answer()
    if not is_number(size, Integral):
        return f"Expected a whole number, got {size!r}."
    if size == 1:
        return "A group of one has no other answer to compare with: every update is skipped, and the model never changes."
    if not 1 < size <= 64:
        return f"Expected a size from 2 to 64, got {size}."
    runs = [ten_calls(size, seed) for seed in SEEDS]
    skipped, possible = sum(count for _, count in runs), CALLS * len(SEEDS)
    if draws() and size != SIZE:
        usual = [ten_calls(SIZE, seed) for seed in SEEDS]
        curves = {f"groups of {SIZE}": [curve for curve, _ in usual], f"groups of {size}": [curve for curve, _ in runs]}
        draw({'probability of "left"': curves}, dict(zip(curves, ("trained", "failed"), strict=True)), "call of train")
    if skipped >= ENOUGH:
        return None
    return f"With groups of {size}, {skipped} of {possible} calls made no update. When are all rewards of a group equal?"


GROUP_SIZE = Exercise(right=lambda: 2, accept=_why_few_skipped)

EXERCISES = {"has_signal": HAS_SIGNAL, "reward": REWARD, "group_size": GROUP_SIZE}

check = checker(EXERCISES)
