"""Throughput of the real model with default settings, compared with float32: `python -m benchmarks.rollout --model real`.

64 conversations at a time: 8 answers, of up to 16 tokens, to each of 8 emails of notebook 06. `ratio`: tokens sampled
per second by the model with its default dtype, over those of the same model in float32. `ratio_under_load`: the same
while another process keeps one core busy. The two sides alternate; the median of their rounds counts.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from random import Random
from statistics import median

import art_nb as art
from benchmarks.gathering import gather, registered
from benchmarks.result import say
from course.real_model import smollm2

SYSTEM = {"role": "system", "content": "You answer with a number and nothing else."}
THINGS = {
    "train": "lamp chair table sofa carpet mirror shelf desk clock vase",
    "val": "kettle radio bicycle tent printer",
    "test": "piano camera guitar helmet ladder",
}
PEOPLE = {"train": "Anna Ben Carla David Emma Felix", "val": "Grace Henry", "test": "Irene Jonas Karla Leo"}
MAX_TOKENS = 7


def scenario(split: str, number: int) -> tuple[str, int]:
    """Return an email with a question, and the correct price, as in notebook 06."""
    draw = Random(f"{split} {number}")
    (a, b), (x, y) = draw.sample(THINGS[split].split(), 2), draw.sample(range(11, 200), 2)
    person = draw.choice(PEOPLE[split].split())
    mail = f"{person} writes: the {a} costs {x} dollars, the {b} {y} dollars. Both can come on May {draw.randint(2, 28)}."
    thing, price = draw.choice([(a, x), (b, y)])
    return f"{mail}\nWhat does the {thing} cost?", price


def prompt(text: str) -> list[dict]:
    return [SYSTEM, {"role": "user", "content": text}]


def names_price(answer: str, price: int) -> bool:
    """Return whether the last number of the answer is the price."""
    return re.findall(r"\d+", answer)[-1:] == [str(price)]


async def rollout(
    model: art.TrainableModel, split: str, number: int, max_tokens: int = MAX_TOKENS
) -> art.Trajectory:
    """Return one answer with the reward of notebook 06."""
    text, price = scenario(split, number)
    messages = prompt(text)
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=messages, max_tokens=max_tokens
    )
    choice = completion.choices[0]
    return art.Trajectory(messages_and_choices=[*messages, choice], reward=float(names_price(choice.message.content, price)))


def answers(model: art.TrainableModel, groups: int, size: int, max_tokens: int = MAX_TOKENS) -> list:
    """Return groups of rollouts to gather."""
    return [[rollout(model, "train", g, max_tokens) for _ in range(size)] for g in range(groups)]


@contextmanager
def another_process() -> Iterator[None]:
    """Keep one core busy with another process."""
    run = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        run.kill()
        run.wait()


async def speeds(models: dict[str, art.TrainableModel], groups: int, size: int, rounds: int) -> dict[str, float]:
    """Return tokens per second of each model, the median of its rounds after a warm-up."""
    found: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(1 + rounds):
        for name, model in models.items():
            measured = await gather(answers(model, groups, size, max_tokens=16))
            found[name].append(measured["tokens"] / measured["seconds"])
    return {name: median(each[1:]) for name, each in found.items()}


async def compare(folder: str, base: str, groups: int, size: int, rounds: int) -> dict:
    models = {
        "ours": await registered(folder, base, "ours", engine="transformers"),
        "float32": await registered(folder, base, "float32", engine="transformers", dtype="float32"),
    }
    found: dict[str, float] = {}
    for label, beside in (("", nullcontext()), ("_under_load", another_process())):
        say(f"{groups * size} conversations{label.replace('_', ' ')}")
        with beside:
            rates = await speeds(models, groups, size, rounds)
        found[f"ratio{label}"] = rates["ours"] / rates["float32"]
        found |= {f"{name}{label}_tokens_per_s": rate for name, rate in rates.items()}
    return found


def measure(base: str = "", groups: int = 8, size: int = 8, rounds: int = 3) -> dict:
    """base: by default SmolLM2."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(compare(folder, base or smollm2(), groups, size, rounds))
