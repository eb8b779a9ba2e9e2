"""Throughput of searches in the email task, compared with stock TRL with environment_factory.

`python -m benchmarks.rollout --task email` prints one JSON line. `ratio`: sampled tokens per second of 128 searches, 8 for
each of the first 16 training questions (a step of notebook 04), over those of stock TRL's generation phase, as in
benchmarks/rollout.py: same base model and adapter, prompts, tool schemas, token limit per answer, temperature 1. Both
sides use the same mailbox and tools, with at most 10 answers.

Our searches end with the final answer or a malformed call, as in notebook 04. TRL's loop ends when the model answers without
a call; after a final answer, or a call that cannot be made, it requests one more answer. `turns` (answers per search),
`tokens` and `answered` (the share of searches with a final answer) show the difference.
"""

from __future__ import annotations

from typing import Any

import art_nb as art
from art_nb import environments
from benchmarks.gathering import BASE, RolloutTask, compare_sides
from email_search.environment import (
    MAX_TURNS,
    EmailSearch,
    EmailSearchEnvironment,
    Scenario,
    course_mailbox,
    scenarios,
)

EMAIL_BASE = BASE.with_name("nano_email")
MAX_TOKENS = 48  # of one answer; a call takes 10 to 35


async def rollout(
    model: art.TrainableModel, scenario: Scenario, max_turns: int = MAX_TURNS, **request: Any
) -> art.Trajectory:
    """Search with the model as in notebook 04. request: see `play`."""
    return await play(model, EmailSearch(course_mailbox(), scenario, max_turns), **request)


async def play(model: art.TrainableModel, search: EmailSearch, client: Any = None, **request: Any) -> art.Trajectory:
    """Run one search with the model. client: by default the model's. request: overrides the parameters of its requests."""
    request = {"model": model.get_inference_name(), "max_tokens": MAX_TOKENS, "temperature": 1.0} | request
    metadata = {"scenario": search.scenario.id}
    return await environments.rollout(client or model.openai_client(), search, metadata=metadata, **request)


def answered(searches: list[art.Trajectory]) -> float:
    """Return the share of searches with a final answer other than "I don't know"."""
    return sum(t.metrics["correct"] + t.metrics["wrong"] for t in searches) / len(searches)


TASK = RolloutTask(
    column="scenario", rollout=rollout, environment=EmailSearchEnvironment, max_turns=MAX_TURNS, max_tokens=MAX_TOKENS,
    metric="answered", ours=answered, noun="searches",
    stock=lambda searches: sum(search.ended_by == "answered" for search in searches) / len(searches),
)  # fmt: skip


def measure(base: str, groups: int, size: int) -> dict:
    """Compare both sides."""
    return compare_sides(TASK, base, scenarios("train", groups), size)
