"""How far the real model rises at searching mails, from what supervised training on demonstrations left it at.

`python -m benchmarks.rise_real_email --seeds 0 1 2` prints one JSON line: for each seed of the backend (every draw; all
begin with the adapter of data/real_email) for the first 200 test questions, before and after training: `correct`,
`sources_right`, `read_right` (the right mail was opened), `gave_up`, `wrong` and `malformed` in percent, and `turns`, the
mean calls of a search; the rise of each with its 95% interval (question by question, paired), `kinds`, see
`rise_email.by_kind`, and the seconds of training. Both are measured at temperature 1, as in training. Each call is paid
for what it did, see `rise_email.gains`. `--split val` is for choosing settings: test questions stay unseen.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import fmean

import art_nb as art
from art_nb.real_model import smollm2
from art_nb.tasks.email_search import Scenario, scenarios
from benchmarks.gathering import registered
from benchmarks.result import print_result, say
from benchmarks.rise_email import QUESTIONS, by_kind, config, paid
from benchmarks.rising import rises, train_step

ADAPTER = Path(__file__).resolve().parent.parent / "data" / "real_email"
STEPS, GROUPS, SIZE = 14, 8, 4  # groups a step, searches in a group
LEARNING_RATE = 8e-4
MAX_TOKENS = 96  # of one answer: this tokenizer was not made for calls, and takes 25 to 60 for one
AT_ONCE = 20  # searches: each holds some 70 MB of keys and values
SHARES = "correct", "sources_right", "read_right", "gave_up", "wrong", "malformed"
MEASURED = dict.fromkeys(SHARES, 100) | {"turns": 1}  # 100: in percent
SHOWN = "correct", "wrong", "gave_up", "malformed", "found_right", "read_right", "turns"  # on the way


async def play(model: art.TrainableModel, scenario: Scenario, temperature: float = 1.0) -> art.Trajectory:
    """One search, each of its calls paid for what it did."""
    return await paid(model, scenario, "calls", max_tokens=MAX_TOKENS, temperature=temperature)


async def ready(folder: str, seed: int, base: str = "") -> art.TrainableModel:
    """The model as training begins. base: by default SmolLM2 with the adapter."""
    base = base or smollm2(adapter=ADAPTER)
    return await registered(folder, base, f"seed-{seed}", seed=seed, engine="transformers", slots=AT_ONCE)


async def ask(model: art.TrainableModel, questions: list[Scenario]) -> list[dict[str, float]]:
    """The metrics of one search for each question."""
    searches = await art.gather_trajectories([play(model, question) for question in questions], pbar_desc=None)
    found = [search.metrics for search in searches]
    say(f"{model.name}: " + ", ".join(f"{name} {fmean(metrics[name] for metrics in found):.3f}" for name in MEASURED))
    return found


async def train(model: art.TrainableModel, steps: int) -> float:
    """Seconds of gathering and updating."""
    questions, started = scenarios("train", steps * GROUPS), time.perf_counter()
    for step in range(steps):
        chosen = questions[step * GROUPS :][:GROUPS]
        settings = config(step, steps, "calls", LEARNING_RATE)
        said = await train_step(model, partial(play, model), chosen, SIZE, settings, SHOWN)
        say(f"step {step + 1} of {steps}: {said}")
    return time.perf_counter() - started


async def measure_seeds(folder: str, base: str, seeds: list[int], questions: list[Scenario], steps: int) -> list[dict]:
    """One training from each seed."""
    runs: list[dict] = []
    for seed in seeds:
        model = await ready(folder, seed, base)
        before, seconds, after = await ask(model, questions), await train(model, steps), await ask(model, questions)
        kinds = {"before": by_kind(questions, before), "after": by_kind(questions, after)}
        runs.append({"seed": seed, **rises(before, after, MEASURED), "kinds": kinds, "seconds": seconds})
    return runs


def measure(seeds: list[int], split: str, base: str = "", steps: int = STEPS, count: int = 0) -> dict:
    """base: by default SmolLM2 with the adapter. steps, count (of questions): fewer for a quick look."""
    questions = scenarios(split, count or QUESTIONS[split])
    with tempfile.TemporaryDirectory() as folder:
        runs = asyncio.run(measure_seeds(folder, base, seeds, questions, steps))
    before, after = (fmean(run["correct"][when] for run in runs) for when in ("before", "after"))
    return {"split": split, "runs": runs, "ratio": after / before if before else None}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--split", choices=list(QUESTIONS), default="test", help="whose questions are asked")
    arguments = parser.parse_args()
    print_result("rise_real_email", lambda: measure(arguments.seeds, arguments.split))
