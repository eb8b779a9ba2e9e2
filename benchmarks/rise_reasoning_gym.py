"""SmolLM2 on generated tasks of reasoning-gym: a table of the untrained model's accuracy, and the rise from several seeds.

`python -m benchmarks.rise_reasoning_gym` prints for each of TASKS the percentage of 50 validation questions that the
untrained model answers correctly, greedy and at the temperatures 0.3, 0.5 and 1, pass@8 at temperature 1, and the
rule: the answer that is most frequent in training (number_format: the first of the two numbers). Five tasks have
a second row, with four worked examples in the prompt. With `--task word_sequence_reversal --examples 4 --seeds 0 1 2`
it trains as notebook 13 does, but for 24 steps instead of 12, and prints the columns that all learning
benchmarks share (`rising.before_and_after`), measured on 200 held-out questions. Needs the extra `reasoning-gym`.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import art_nb as art
from art_nb.environments import rollout_environment
from art_nb.environments.adapters.reasoning_gym import ReasoningGymEnvironment
from benchmarks.gathering import registered
from benchmarks.result import print_result, say
from benchmarks.rising import before_and_after, decayed_rate, run_seeds
from course import comparison
from course.generated_tasks import Row, distinct_rows, most_frequent_answer, played_by_rule
from course.real_model import smollm2

GROUPS, SIZE, STEPS = 8, 8, 24
VALIDATION, TEST, TABLE, TRIES = 40, 200, 50, 8  # numbers of questions, and of tries for pass@k
EXAMPLES = 4  # in the prompt of the table's second row of a task with worked examples


@dataclass(frozen=True)
class GeneratedTask:
    """A dataset of reasoning-gym. asks_for: in the system message. config: keeps the answers short.

    rule: a function of reasoning-gym's item; by default the answer that is most frequent in training.
    worked: the answer of an example in the prompt, a function of reasoning-gym's item. learning_rate: of the first step.
    scale_rewards: see `art_nb.TrainConfig`.
    """

    config: dict[str, Any]
    asks_for: str = "a number"
    parser: str = "last_number"
    max_tokens: int = 12
    rule: Callable[[dict], str] | None = None
    worked: Callable[[dict], str] | None = None
    learning_rate: float = 3e-4
    scale_rewards: Literal["group", "batch"] = "group"


def equation(item: dict) -> str:
    """Return question and answer of arithmetic as an equation: "15 - 43 = -28"."""
    asked = item["question"].partition(": ")[2].partition(". ")[0]
    return f"{asked.removesuffix(' =')} = {item['answer']}"


def answer_alone(item: dict) -> str:
    return str(item["answer"])


TASKS = {
    "chain_sum": GeneratedTask(
        {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, worked=equation, max_tokens=16
    ),
    "products": GeneratedTask(
        {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, worked=equation, max_tokens=16
    ),
    "gcd": GeneratedTask({"min_value": 2, "max_value": 99}),
    "lcm": GeneratedTask({"min_value": 2, "max_value": 50}),
    "simple_equations": GeneratedTask({"min_terms": 2, "max_terms": 2, "min_value": 1, "max_value": 10}),
    "letter_counting": GeneratedTask({"min_words": 1, "max_words": 3}),
    "leg_counting": GeneratedTask({"min_animals": 1, "max_animals": 2, "min_instances": 1, "max_instances": 3}),
    "count_bits": GeneratedTask({"min_n": 1, "max_n": 1000}),
    "number_format": GeneratedTask(
        {"min_num_candidates": 2, "max_num_candidates": 2, "min_n": 10, "max_n": 1000},
        max_tokens=16,
        rule=lambda item: str(item["metadata"]["candidates"][0]),
    ),
    "decimal_chain_sum": GeneratedTask(
        {
            "min_terms": 2,
            "max_terms": 2,
            "min_digits": 1,
            "max_digits": 1,
            "min_decimal_places": 1,
            "max_decimal_places": 1,
        },
        worked=equation,
        max_tokens=16,
    ),
    "word_sequence_reversal": GeneratedTask(
        {"min_words": 3, "max_words": 3}, "a list of words", "last_line", max_tokens=24, worked=answer_alone,
        learning_rate=5e-4, scale_rewards="batch",
    ),  # fmt: skip
    "needle_haystack": GeneratedTask(
        {"min_num_statements": 4, "max_num_statements": 6}, "a name", "last_line", max_tokens=16, worked=answer_alone
    ),
    "spell_backward": GeneratedTask({"min_word_len": 3, "max_word_len": 4}, "a word", "last_line"),
}


def environment(name: str) -> ReasoningGymEnvironment:
    task = TASKS[name]
    return ReasoningGymEnvironment(name, parser=task.parser, instruction="", size=5000, **task.config)


def by_rule(name: str, train: list[Row], held_out: list[Row]) -> list[bool]:
    """Return whether the task's rule answers each held-out question correctly."""
    asked = environment(name)
    constant = most_frequent_answer(asked, train)
    return played_by_rule(asked, held_out, TASKS[name].rule or (lambda item: constant))


def player(
    model: art.TrainableModel, name: str, examples: list[Row] | None = None
) -> Callable[[Row, float], Awaitable[art.Trajectory]]:
    """Return the function that plays a row. examples: rows whose worked answers precede each question."""
    task, shown = TASKS[name], environment(name)
    prompt = [{"role": "system", "content": f"You answer with {task.asks_for} and nothing else."}]
    for row in examples or []:
        assert task.worked, f"{name} has no worked examples"
        prompt.append({"role": "user", "content": shown.reset(**row)})
        prompt.append({"role": "assistant", "content": task.worked(shown.item)})

    async def play(row: Row, temperature: float) -> art.Trajectory:
        return await rollout_environment(
            model.openai_client(), lambda: environment(name), model=model.get_inference_name(), row=row, tools=None,
            prompt=[*prompt, {"role": "user", "content": ""}], max_tokens=task.max_tokens, temperature=temperature,
            timeout=None,
        )  # fmt: skip

    return play


async def untrained(folder: str, base: str, names: list[str], count: int) -> dict[str, dict[str, float]]:
    """Return for each task the percentage of correct answers at each temperature, and pass@8, without training."""
    model = await registered(folder, base, "untrained", engine="transformers", slots=64)
    found: dict[str, dict[str, float]] = {}
    prompts = [(name, examples) for name in names for examples in (0, EXAMPLES) if TASKS[name].worked or not examples]
    for name, examples in prompts:
        rows = distinct_rows(environment(name), val=count, train=GROUPS * STEPS)
        play = player(model, name, rows["train"][:examples])
        label = f"{name}, {examples} examples" if examples else name

        async def right(row: Row, temperature: float, play: Callable[..., Awaitable[art.Trajectory]] = play) -> bool:
            return (await play(row, temperature)).metrics["correct"] == 1

        found[label] = {
            f"T = {t:g}": 100 * fmean(await asyncio.gather(*(right(row, t) for row in rows["val"])))
            for t in comparison.TEMPERATURES
        }
        found[label]["pass@8"] = 100 * comparison.pass_at_k(await comparison.tries_at(right, rows["val"], TRIES), TRIES)
        found[label]["rule"] = 100 * fmean(by_rule(name, rows["train"], rows["val"]))
        say(f"{label}: {found[label]}")
    return found


async def measure_seed(
    folder: str, seed: int, name: str, base: str, examples: int = 0, steps: int = STEPS, test: int = TEST
) -> dict[str, Any]:
    """Train from one seed, and evaluate before and after, with the first `examples` training questions in the prompt."""
    rows = distinct_rows(environment(name), test=test, val=min(test, VALIDATION), train=steps * GROUPS)
    model = await registered(folder, base, f"rise-{seed}", seed=seed, engine="transformers", slots=64)
    task = TASKS[name]
    rates = [decayed_rate(step, steps, task.learning_rate) for step in range(steps)]
    configs = [art.TrainConfig(learning_rate=rate, scale_rewards=task.scale_rewards) for rate in rates]
    play = player(model, name, rows["train"][:examples])
    columns, _, _ = await before_and_after(
        model, play, "correct", rows["test"], rows["val"], rows["train"], configs, GROUPS, SIZE,
        ["correct", "parsed"], by_rule(name, rows["train"], rows["test"]),
    )  # fmt: skip
    return {"seed": seed, **columns}


def measure(seeds: list[int], name: str, base: str = "", examples: int = 0, **overrides: int) -> dict[str, Any]:
    """base: by default SmolLM2. overrides: `steps` and `test` (questions) for a quick run."""
    found = run_seeds(measure_seed, seeds, name, base or smollm2(), examples, **overrides)
    return {"task": name, "examples": examples, **found}


def table(base: str = "", names: list[str] | None = None, count: int = TABLE) -> dict[str, Any]:
    """Return the untrained model's percentage correct per task. base: see `measure`. count: questions per task."""
    with tempfile.TemporaryDirectory() as folder:
        return {"tasks": asyncio.run(untrained(folder, base or smollm2(), names or list(TASKS), count))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=TASKS, help="to train; by default all are measured without training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the backend, one run for each")
    parser.add_argument("--examples", type=int, default=0, help="number of worked examples in the prompt")
    a = parser.parse_args()
    run = table if a.task is None else lambda: measure(a.seeds, a.task, examples=a.examples)
    print_result("rise_reasoning_gym", run)
