"""Throughput of code repairs, compared with stock TRL with environment_factory.

`python -m benchmarks.rollout --task code` prints one JSON line. `ratio`: sampled tokens per second of 128 repairs with
the tools of `code_repair.mutation_repair`, 8 for each of the first 16 training problems, over those of stock TRL's
generation phase, as in benchmarks/rollout_email.py: same base model and adapter, prompts, tool schemas, token limit per
answer, temperature 1, at most 8 answers. Our repairs end with `submit` or a malformed call; TRL's loop requests one more
answer. `turns`, `tokens` and `submitted` (the share of submitted repairs) show the difference. The results of all
mutations are cached before either side is timed (`try_all`); otherwise the first side would run them for both.
"""

from __future__ import annotations

import art_nb as art
from art_nb import environments
from benchmarks.gathering import BASE, RolloutTask, compare_sides
from code_repair import Problem, problems
from code_repair.mutation_repair import (
    MUTATION_TURNS,
    MutationRepair,
    MutationRepairEnvironment,
    best_mutation,
    cached_verdict,
    mutation_sandbox,
    mutation_sites,
)

CODE_BASE = BASE.with_name("nano_code")
MAX_TOKENS = 16  # of one answer; a call takes 5 to 8


async def rollout(
    model: art.TrainableModel, problem: Problem, max_turns: int = MUTATION_TURNS, temperature: float = 1.0,
    paid_by: str = "hidden",
) -> tuple[art.Trajectory, MutationRepair]:
    """Have the model repair one problem."""
    repair = MutationRepair(problem, max_turns=max_turns, paid_by=paid_by)
    trajectory = await environments.rollout(
        model.openai_client(), repair, model=model.get_inference_name(), metadata={"problem": problem.id},
        max_tokens=MAX_TOKENS, temperature=temperature,
    )  # fmt: skip
    return trajectory, repair


async def repaired(model: art.TrainableModel, problem: Problem, max_turns: int) -> art.Trajectory:
    """Return one repair with the task's reward."""
    return (await rollout(model, problem, max_turns))[0]


def submitted(repairs: list[art.Trajectory]) -> float:
    """Return the share of repairs that were submitted."""
    return 1 - sum(t.metrics["malformed"] + t.metrics["out_of_turns"] for t in repairs) / len(repairs)


TASK = RolloutTask(
    column="problem", rollout=repaired, environment=MutationRepairEnvironment, max_turns=MUTATION_TURNS,
    max_tokens=MAX_TOKENS, metric="submitted", ours=submitted, noun="repairs",
    stock=lambda repairs: sum(repair.ended_by == "submitted" for repair in repairs) / len(repairs),
)  # fmt: skip


def try_all(chosen: list[Problem]) -> None:
    """Run every mutation of the problems' code on its examples."""
    for problem in chosen:
        (text,) = problem.files.values()
        for kind, line in mutation_sites(text):
            _, best = best_mutation(mutation_sandbox(), text, kind, line, problem.visible)
            cached_verdict(mutation_sandbox(), best, problem.hidden)  # `progress` runs the hidden tests after each call


def measure(base: str, groups: int, size: int) -> dict:
    """Compare both sides."""
    chosen = problems("train", groups)
    try_all(chosen)
    return compare_sides(TASK, base, chosen, size)
