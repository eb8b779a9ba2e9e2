"""Train data/real_email_trained, the adapter of data/real_email after GRPO: `python -m data real_email_trained`.

benchmarks/rise_real_email.py runs the same training with other seeds, and measures before and after it.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import fmean

import torch

import art_nb as art
from art_nb.environments import rollout
from art_nb.local import LocalBackend
from art_nb.training.policy import Policy
from course.real_model import smollm2
from data.item import write_described
from data.real_email.maker import save
from email_search import EmailSearch, Scenario, course_mailbox, scenarios

ADAPTER = Path(__file__).resolve().parent.parent / "real_email"
STEPS, GROUPS, SIZE = 14, 8, 4  # groups a step, searches in a group
LEARNING_RATE, LAST_SHARE = 8e-4, 0.1  # of the first step; it falls linearly to this share of it
MAX_TOKENS = 96  # of one answer; a call takes 25 to 60 tokens of SmolLM2's tokenizer
SLOTS = 20  # concurrent searches; each needs about 70 MB for keys and values
SHOWN = "correct", "wrong", "gave_up", "malformed", "found_right", "read_right", "turns"  # printed after each step


def build(folder: Path, *, base: str = "", steps: int = STEPS, seed: int = 0) -> dict:
    """Train the adapter and write it to `folder`, whole or not at all. Returns the facts of the card and training.json.

    base: by default SmolLM2 with the adapter of data/real_email.
    """
    with tempfile.TemporaryDirectory() as files:
        policy, seconds = asyncio.run(_trained(files, base, steps, seed))
    facts = {
        "seed": seed, "steps": steps, "searches": GROUPS * SIZE, "group": SIZE, "learning_rate": LEARNING_RATE,
        "minutes": round(seconds / 60, 1),
        "device": f"{policy.device.type}, {torch.get_num_threads()} threads", "torch": torch.__version__,
    }  # fmt: skip
    write_described(folder, partial(save, policy), facts, MODEL_CARD)
    return facts


async def _trained(files: str, base: str, steps: int, seed: int) -> tuple[Policy, float]:
    model = await registered(files, seed, base)
    seconds = await train(model, steps)
    return model.backend().loaded(model).learner.policy, seconds


async def registered(folder: str, seed: int, base: str = "") -> art.TrainableModel:
    """Return the model before training. base: by default SmolLM2 with the adapter of data/real_email."""
    base = base or smollm2(adapter=ADAPTER)
    model = art.TrainableModel(name=f"seed-{seed}", project="real_email", base_model=base)
    await model.register(LocalBackend(path=folder, seed=seed, engine="transformers", slots=SLOTS))
    return model


async def search(model: art.TrainableModel, scenario: Scenario, temperature: float = 1.0) -> art.Trajectory:
    """Return one search, rewarded by `EmailSearch.turn_rewards`, a reward for each call."""
    episode = EmailSearch(course_mailbox(), scenario)
    trajectory = await rollout(
        model.openai_client(), episode, model=model.get_inference_name(), metadata={"scenario": scenario.id},
        turn_rewards=True, max_tokens=MAX_TOKENS, temperature=temperature,
    )  # fmt: skip
    trajectory.reward = sum(trajectory.turn_rewards or ())
    return trajectory


async def train(model: art.TrainableModel, steps: int) -> float:
    """Train on the course's training questions, each once. Returns the seconds."""
    questions, started = scenarios("train", steps * GROUPS), time.perf_counter()
    for step in range(steps):
        chosen = questions[step * GROUPS :][:GROUPS]
        groups = [art.TrajectoryGroup(search(model, question) for _ in range(SIZE)) for question in chosen]
        searched = await art.gather_trajectory_groups(groups, pbar_desc=None)
        rate = LEARNING_RATE * (1 - (1 - LAST_SHARE) * step / max(1, steps - 1))
        config = art.TrainConfig(learning_rate=rate, turn_discount=0.0, scale_rewards="batch")
        await model.train(searched, config)
        metrics = [trajectory.metrics for group in searched for trajectory in group]
        means = ", ".join(f"{name} {fmean(m[name] for m in metrics):.2f}" for name in SHOWN)
        print(f"step {step + 1} of {steps}: {means}, {time.perf_counter() - started:.0f} s", flush=True)
    return time.perf_counter() - started


MODEL_CARD = """\
---
license: apache-2.0
library_name: peft
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
# SmolLM2 trained with GRPO to search a mailbox

The adapter of data/real_email after {steps} steps of GRPO with {searches} searches each, in groups of {group}, on the training questions
of the course's mailbox. Each call has its own reward, see `EmailSearch.progress` in environments/email_search. The adapter is for
SmolLM2-135M-Instruct as `course.real_model.smollm2()` makes it; `smollm2(adapter=...)` with this folder returns a folder for
`base_model=`. `python -m benchmarks.rise_real_email --stored` measures how many questions it and data/real_email answer.

Made by `python -m data real_email_trained` (data/real_email_trained/maker.py) in {minutes} minutes on {device}, torch {torch}, seed {seed}.

| | |
| --- | --- |
| learning rate | {learning_rate}, falling linearly to a tenth of it |

training.json has these figures, SHA256SUMS the files' hashes. Licence: Apache-2.0, like the project and the base model.
"""  # noqa: E501 - a sentence with a command in it is one line
