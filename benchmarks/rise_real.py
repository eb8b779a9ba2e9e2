"""The rise in the real model's accuracy over the training of notebook 06, from several seeds.

`python -m benchmarks.rise_real --seeds 0 1 2` prints one JSON line; `--task largest` is the notebook's second task.
`runs` has for each seed of the backend (initial adapter and all samples), as percentages of 200 held-out prompts:
`untrained_t1` and `trained_t1` at temperature 1, `untrained_best` and `trained_best` at the temperature with the most
correct answers to validation prompts, `pass_at_8_untrained` (of 25 prompts), `rule` (a regular expression, or the shortcut
`by_tens`), the paired rise and the lead over the rule with 95% intervals, each side at its best temperature, and the
seconds of training. `ratio` is the mean of `trained_best` over that of `untrained_best`. Training is as in the notebook.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

import art_nb as art
from benchmarks import rollout_real
from benchmarks.gathering import registered
from benchmarks.result import print_result, say
from benchmarks.rising import decayed_rate, run_seeds, train
from course import comparison
from course.real_model import smollm2

VALIDATION, TEST, PASSES, TRIES = 40, 200, 25, 8  # validation prompts, held-out prompts, prompts for pass@k, k

Prompt = tuple[str, int]  # split, number


@dataclass(frozen=True)
class PromptTask:
    """A task of notebook 06. scenario: split, number -> prompt, number that answers it. rule: whether it answers correctly.

    groups: per step. size: answers per group. learning_rate: of the first step. scale_rewards: see `art_nb.TrainConfig`.
    """

    scenario: Callable[[str, int], tuple[str, int]]
    rule: Callable[[str, int], bool]
    max_tokens: int
    steps: int
    groups: int
    size: int
    learning_rate: float
    scale_rewards: Literal["group", "batch"]


def numbers(split: str, number: int) -> list[int]:
    """Return four different numbers from 10 to 99, as in notebook 06. No two splits share four numbers, in any order."""
    low, high = {"train": (0.0, 0.8), "val": (0.8, 0.9), "test": (0.9, 1.0)}[split]
    draw = Random(f"{split} {number}")
    while True:
        found = draw.sample(range(10, 100), 4)
        if low <= Random(str(sorted(found))).random() < high:
            return found


def largest(split: str, number: int) -> tuple[str, int]:
    """Return a question and the right number, as in notebook 06."""
    a, b, c, d = numbers(split, number)
    return f"Here are four numbers: {a}, {b}, {c}, {d}. What is the largest number?", max(a, b, c, d)


def by_tens(split: str, number: int) -> bool:
    """Whether the first number with the highest tens digit is the largest of the four."""
    four = numbers(split, number)
    return max(four, key=lambda each: each // 10) == max(four)


def by_expression(split: str, number: int) -> bool:
    """Whether a regular expression finds the right price."""
    text, price = rollout_real.scenario(split, number)
    thing = re.search(r"What does the (\w+) cost", text)[1]
    return re.search(rf"the {thing} (?:costs )?(\d+)", text)[1] == str(price)


TASKS = {
    "prices": PromptTask(
        rollout_real.scenario, by_expression, rollout_real.MAX_TOKENS, steps=12, groups=8, size=8, learning_rate=3e-4,
        scale_rewards="group",
    ),
    "largest": PromptTask(
        largest, by_tens, max_tokens=12, steps=24, groups=16, size=4, learning_rate=1.2e-3, scale_rewards="batch"
    ),
}  # fmt: skip


async def answer(model: art.TrainableModel, task: PromptTask, prompt: Prompt, temperature: float) -> art.Trajectory:
    """Return one answer. Its reward is 1 if its last number is the right one, else 0."""
    text, right = task.scenario(*prompt)
    messages = rollout_real.prompt(text)
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=messages, max_tokens=task.max_tokens, temperature=temperature
    )
    choice = completion.choices[0]
    reward = float(rollout_real.names_price(choice.message.content, right))
    return art.Trajectory(messages_and_choices=[*messages, choice], reward=reward)


async def measure_seed(folder: str, seed: int, base: str, task: PromptTask, count: int | None = None) -> dict:
    """Train from one seed. Returns percentages of held-out prompts, and seconds of gathering and updating."""
    model = await registered(folder, base, f"rise-{seed}", seed=seed, engine="transformers", slots=64)

    async def right(prompt: Prompt, temperature: float) -> bool:
        return (await answer(model, task, prompt, temperature)).reward == 1

    validation, test, few = (
        [(split, i) for i in range(min(size, count or size))]
        for split, size in (("val", VALIDATION), ("test", TEST), ("test", PASSES))
    )
    untrained = await comparison.measure(right, validation, test)
    tries = await comparison.tries_at(right, few, TRIES)
    rates = [decayed_rate(step, task.steps, task.learning_rate) for step in range(task.steps)]
    configs = [art.TrainConfig(learning_rate=rate, scale_rewards=task.scale_rewards) for rate in rates]
    prompts = [("train", i) for i in range(task.steps * task.groups)]
    seconds = await train(model, lambda p, t: answer(model, task, p, t), prompts, configs, task.groups, task.size, [])
    trained = await comparison.measure(right, validation, test)
    found = comparison.compare(untrained, trained, [task.rule(*p) for p in test], "rule", tries)
    say(f"{model.name}: {found.table()}")
    return {"seed": seed, **found.summary(), "seconds": seconds, "validation": found.validation}


def measure(seeds: list[int], task: PromptTask, base: str = "", count: int | None = None) -> dict:
    """Run every seed. base: by default SmolLM2. count: limit on the prompts of each evaluation, not on those of training."""
    return run_seeds(measure_seed, seeds, base or smollm2(), task, count)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the backend, one run for each")
    parser.add_argument("--task", choices=TASKS, default="prices", help="task of notebook 06")
    arguments = parser.parse_args()
    print_result("rise_real", lambda: {"task": arguments.task, **measure(arguments.seeds, TASKS[arguments.task])})
