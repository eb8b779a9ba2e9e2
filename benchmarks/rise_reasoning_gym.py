"""What SmolLM2 learns of generated tasks of reasoning-gym: a table of ten tasks, untrained, and the rise from several seeds.

`python -m benchmarks.rise_reasoning_gym` prints for each of TASKS the percent of 50 validation questions that the untrained
model answers right, greedy and at the temperatures 0.3, 0.5 and 1, pass@8 at temperature 1, and the
rule: the answer that is most frequent in training. With
`--task chain_sum --seeds 0 1 2` it trains as notebook 13 does and prints the columns of all benchmarks of learning
(`rising.before_and_after`) on 200 held-out questions. The extra `reasoning-gym` is needed.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import art_nb as art
from art_nb.environments import rollout_environment
from art_nb.environments.adapters.reasoning_gym import ReasoningGymEnvironment
from benchmarks.gathering import registered
from benchmarks.result import print_result, say
from benchmarks.rising import before_and_after, decayed_rate, ratio_of_means
from course import comparison
from course.generated_tasks import Row, distinct_rows, most_frequent_answer
from course.real_model import smollm2

GROUPS, SIZE, STEPS = 8, 8, 24
LEARNING_RATE = 3e-4
VALIDATION, TEST, TABLE, TRIES = 40, 200, 50, 8  # questions; of the table; tries for pass@k


@dataclass(frozen=True)
class GeneratedTask:
    """A dataset of reasoning-gym. asks_for: in the system message. config: keeps the answers short."""

    config: dict[str, Any]
    asks_for: str = "a number"
    parser: str = "last_number"
    max_tokens: int = 12


TASKS = {
    "chain_sum": GeneratedTask({"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}),
    "products": GeneratedTask({"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}),
    "gcd": GeneratedTask({"min_value": 2, "max_value": 99}),
    "lcm": GeneratedTask({"min_value": 2, "max_value": 50}),
    "simple_equations": GeneratedTask({"min_terms": 2, "max_terms": 2, "min_value": 1, "max_value": 10}),
    "letter_counting": GeneratedTask({"min_words": 1, "max_words": 3}),
    "leg_counting": GeneratedTask({"min_animals": 1, "max_animals": 2, "min_instances": 1, "max_instances": 3}),
    "count_bits": GeneratedTask({"min_n": 1, "max_n": 1000}),
    "number_format": GeneratedTask(
        {"min_num_candidates": 2, "max_num_candidates": 2, "min_n": 10, "max_n": 1000}, max_tokens=16
    ),
    "spell_backward": GeneratedTask({"min_word_len": 3, "max_word_len": 4}, "a word", "last_line"),
}


def environment(name: str) -> ReasoningGymEnvironment:
    task = TASKS[name]
    return ReasoningGymEnvironment(name, parser=task.parser, instruction="", size=5000, **task.config)


def player(model: art.TrainableModel, name: str) -> Callable[[Row, float], Awaitable[art.Trajectory]]:
    task = TASKS[name]
    system = {"role": "system", "content": f"You answer with {task.asks_for} and nothing else."}

    async def play(row: Row, temperature: float) -> art.Trajectory:
        return await rollout_environment(
            model.openai_client(), lambda: environment(name), model=model.get_inference_name(), row=row, tools=None,
            prompt=[system, {"role": "user", "content": ""}], max_tokens=task.max_tokens, temperature=temperature,
            timeout=None,
        )  # fmt: skip

    return play


async def untrained(folder: str, base: str, names: list[str], count: int) -> dict[str, dict[str, float]]:
    """Return for each task the percent of right answers at each temperature, and pass@8, without training."""
    model = await registered(folder, base, "untrained", engine="transformers", slots=64)
    found: dict[str, dict[str, float]] = {}
    for name in names:
        rows = distinct_rows(environment(name), val=count, train=GROUPS * STEPS)
        play = player(model, name)

        async def right(row: Row, temperature: float, play: Callable[..., Awaitable[art.Trajectory]] = play) -> bool:
            return (await play(row, temperature)).metrics["correct"] == 1

        found[name] = {
            f"T = {t:g}": 100 * fmean(await asyncio.gather(*(right(row, t) for row in rows["val"])))
            for t in comparison.TEMPERATURES
        }
        found[name]["pass@8"] = 100 * comparison.pass_at_k(await comparison.tries_at(right, rows["val"], TRIES), TRIES)
        found[name]["rule"] = 100 * fmean(most_frequent_answer(environment(name), rows["train"], rows["val"]))
        say(f"{name}: {found[name]}")
    return found


async def measure_seed(folder: str, base: str, seed: int, name: str, steps: int = STEPS, test: int = TEST) -> dict[str, Any]:
    """Train from one seed, and evaluate before and after."""
    rows = distinct_rows(environment(name), test=test, val=min(test, VALIDATION), train=steps * GROUPS)
    model = await registered(folder, base, f"rise-{seed}", seed=seed, engine="transformers", slots=64)
    configs = [art.TrainConfig(learning_rate=decayed_rate(step, steps, LEARNING_RATE)) for step in range(steps)]
    columns, _, _ = await before_and_after(
        model, player(model, name), "correct", rows["test"], rows["val"], rows["train"], configs, GROUPS, SIZE,
        ["correct", "parsed"], most_frequent_answer(environment(name), rows["train"], rows["test"]),
    )  # fmt: skip
    return {"seed": seed, **columns}


def measure(seeds: list[int], name: str, base: str = "", **fewer: int) -> dict[str, Any]:
    """base: by default SmolLM2. fewer: `steps` and `test` (questions) for a quick run."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [asyncio.run(measure_seed(folder, base or smollm2(), seed, name, **fewer)) for seed in seeds]
    pairs = [{"before": run["untrained_best"], "after": run["trained_best"]} for run in runs]
    return {"task": name, "runs": runs, "ratio": ratio_of_means(pairs)}


def table(base: str = "", names: list[str] | None = None, count: int = TABLE) -> dict[str, Any]:
    """Return what the untrained model answers right of each task. base, names, count: see `measure`."""
    with tempfile.TemporaryDirectory() as folder:
        return {"tasks": asyncio.run(untrained(folder, base or smollm2(), names or list(TASKS), count))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=TASKS, help="to train; by default all are measured without training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the backend, one run for each")
    arguments = parser.parse_args()
    print_result("rise_reasoning_gym", lambda: measure(arguments.seeds, arguments.task) if arguments.task else table())
