"""How fast the email task's searches are gathered, against stock TRL with environment_factory.

`python -m benchmarks.rollout --task email` prints one JSON line. `ratio`: sampled tokens a second of 128 searches, 8 for
each of the first 16 training questions (a step of notebook 03), over those of stock TRL's generation phase, as in
benchmarks/rollout.py: same base model and adapter, prompts, tool schemas, limit of tokens per answer, temperature 1. Both
read the same mailbox through the same tools, for at most 10 answers. A search of ours ends as in
notebook 03: by the final answer, or a malformed call.
TRL's loop ends when the model answers without a call; after the final answer, or a call that can't be made, it asks the
model once more. So the sides differ in length: `turns` (answers in a search), `tokens` and `answered` (the share of
searches that ended by a final answer) say by how much. That holds for a model that does not know the task, too: where no
answer holds a call both sides end after one, and where the call is malformed only ours does.
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

import art_nb as art
from art_nb.tasks.email_search.environment import (
    MAX_TURNS,
    TOOLS,
    EmailSearch,
    EmailSearchEnvironment,
    Scenario,
    course_mailbox,
    first_message,
    scenarios,
)
from benchmarks.gathering import BASE, compared, gather, registered, stock_generation
from benchmarks.result import say

EMAIL_BASE = BASE.with_name("nano_email")
MAX_TOKENS = 48  # of one answer; a call takes 10 to 35


async def rollout(model: art.TrainableModel, scenario: Scenario, max_turns: int = MAX_TURNS, **asked: Any) -> art.Trajectory:
    """One search by the model, as notebook 03 makes them. asked: parameters of its requests, to ask differently."""
    search, client = EmailSearch(course_mailbox(), scenario, max_turns), model.openai_client()
    asked = {"tools": TOOLS, "max_tokens": MAX_TOKENS, "temperature": 1.0} | asked
    question = {"role": "user", "content": first_message(scenario)}
    trajectory = art.Trajectory(messages_and_choices=[question], tools=asked["tools"], metadata={"scenario": scenario.id})
    while not search.over:
        completion = await client.chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages(), **asked
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        if not choice.message.tool_calls:
            search.call(None, None)
        for call in choice.message.tool_calls or []:
            said = search.call(call.function.name, call.function.arguments)
            trajectory.messages_and_choices.append({"role": "tool", "tool_call_id": call.id, "content": said})
    trajectory.reward, trajectory.metrics = search.reward(), search.metrics()
    return trajectory


async def measure_ours(folder: str, base: str, questions: list[Scenario], size: int, max_turns: int = MAX_TURNS) -> dict:
    """The searches with nothing cached, after short ones of another model have warmed torch up."""
    for name, turns in (("warm-up", 2), ("model", max_turns)):
        model = await registered(folder, base, name)
        measured = await gather([[rollout(model, question, turns) for _ in range(size)] for question in questions])
    searches = measured["trajectories"]
    return measured | {"answered": sum(t.metrics["correct"] + t.metrics["wrong"] for t in searches) / len(searches)}


def measure_stock(folder: str, base: str, questions: list[Scenario], size: int, max_turns: int = MAX_TURNS) -> dict:
    """The same searches by stock TRL."""
    columns = [{"scenario": question.id} for question in questions]
    measured = stock_generation(folder, base, columns, size, EmailSearchEnvironment, max_turns, MAX_TOKENS)
    searches = [environment.search for environment in measured["environments"]]
    return measured | {"answered": sum(search.ended_by == "answered" for search in searches) / len(searches)}


def measure(base: str, groups: int, size: int) -> dict:
    questions = scenarios("train", groups)
    with tempfile.TemporaryDirectory() as folder:
        say(f"ours: {groups * size} searches")
        ours = asyncio.run(measure_ours(folder, base, questions, size))
        say(f"stock TRL: {groups * size} searches")
        stock = measure_stock(folder, base, questions, size)
    shares = {f"{side}_answered": numbers["answered"] for side, numbers in (("ours", ours), ("stock", stock))}
    return compared(ours, stock) | shares
