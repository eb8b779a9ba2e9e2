"""The rise of the real model's accuracy in searching emails through GRPO, from several seeds.

`python -m benchmarks.rise_real_email --seeds 0 1 2` prints one JSON line: for each seed of the backend (all samples; the
initial adapter is always data/real_email), over the first 200 test questions, before and after training: `correct`,
`sources_right`, `read_right` (the correct email was read), `gave_up`, `wrong` and `malformed` in percent, and `turns`,
the mean number of calls; each with its rise and a 95% interval (paired by question), `kinds`, see `rise_email.by_kind`,
and the seconds of training. The temperature is 1, as in training. The training is that of
data/real_email_trained/maker.py. Use `--split val` to choose settings, so that the test questions stay unseen.

`python -m benchmarks.rise_real_email --stored` trains nothing: it searches with the two adapters in data, at temperature 1
and greedily. `searches` has for each the METRICS of its searches, a number for each question. It is
data/results/real_email_searches.json, which notebook 06 shows.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from statistics import fmean

import art_nb as art
from benchmarks.result import print_result, say
from benchmarks.rise_email import QUESTIONS, by_kind
from benchmarks.rising import ratio_of_means, rises
from course.real_model import smollm2
from data.real_email_trained.maker import STEPS, registered, search, train
from email_search import Scenario, scenarios

SHARES = "correct", "sources_right", "read_right", "gave_up", "wrong", "malformed"
MEASURED = dict.fromkeys(SHARES, 100) | {"turns": 1}  # 100: percent
STORED = {"demonstrations": "real_email", "GRPO": "real_email_trained"}  # folders of data
METRICS = "correct", "wrong", "gave_up", "out_of_turns", "malformed", "found_right", "read_right", "turns"


async def evaluate(model: art.TrainableModel, questions: list[Scenario], temperature: float = 1) -> list[dict[str, float]]:
    """Return the metrics of one search for each question."""
    playing = [search(model, question, temperature) for question in questions]
    searches = await art.gather_trajectories(playing, pbar_desc=None)
    found = [trajectory.metrics for trajectory in searches]
    say(f"{model.name}: " + ", ".join(f"{name} {fmean(metrics[name] for metrics in found):.3f}" for name in MEASURED))
    return found


async def measure_seeds(folder: str, base: str, seeds: list[int], questions: list[Scenario], steps: int) -> list[dict]:
    """Train from each seed, and evaluate before and after."""
    runs: list[dict] = []
    for seed in seeds:
        model = await registered(folder, seed, base)
        before, seconds = await evaluate(model, questions), await train(model, steps)
        after = await evaluate(model, questions)
        kinds = {"before": by_kind(questions, before), "after": by_kind(questions, after)}
        runs.append({"seed": seed, **rises(before, after, MEASURED), "kinds": kinds, "seconds": seconds})
    return runs


def measure(seeds: list[int], split: str, base: str = "", steps: int = STEPS, count: int = 0) -> dict:
    """base: by default SmolLM2 with the adapter. steps, count (of questions): fewer for a quick run."""
    questions = scenarios(split, count or QUESTIONS[split])
    with tempfile.TemporaryDirectory() as folder:
        runs = asyncio.run(measure_seeds(folder, base, seeds, questions, steps))
    return {"split": split, "runs": runs, "ratio": ratio_of_means([run["correct"] for run in runs])}


async def search_with_stored(bases: dict[str, str], questions: list[Scenario]) -> dict:
    """Return the METRICS of one search for each question, with each base at temperatures 1 and 0. bases: by label."""
    found = {}
    for label, base in bases.items():
        with tempfile.TemporaryDirectory() as folder:
            model = await registered(folder, 0, base)
            for temperature in (1, 0):
                each = await evaluate(model, questions, temperature)
                found[f"{label}, T = {temperature}"] = {name: [round(m[name]) for m in each] for name in METRICS}
    return {"searches": found}


def measure_stored(split: str) -> dict:
    """Search with the adapters in data."""
    data = Path(__file__).resolve().parent.parent / "data"
    bases = {label: smollm2(adapter=data / name) for label, name in STORED.items()}
    return {"split": split, **asyncio.run(search_with_stored(bases, scenarios(split, QUESTIONS[split])))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--split", choices=list(QUESTIONS), default="test", help="of the held-out questions")
    parser.add_argument("--stored", action="store_true", help="search with the adapters in data, and train nothing")
    a = parser.parse_args()
    if a.stored:
        print_result("real_email_searches", lambda: measure_stored(a.split))
    else:
        print_result("rise_real_email", lambda: measure(a.seeds, a.split))
