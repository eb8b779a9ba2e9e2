"""How fast repairs are gathered, against stock TRL with environment_factory.

`python -m benchmarks.rollout --task code` prints one JSON line. `ratio`: sampled tokens a second of 128 repairs by the tools
of `art_nb.tasks.code_repair.mending`, 8 of each of the first 16 training problems, over those of
stock TRL's generation phase, as in benchmarks/rollout_email.py: same base model and adapter, prompts, tool schemas, limit of
tokens per answer, temperature 1, at most 8 answers. A repair of ours ends by `submit` or a malformed call; TRL's loop asks
the model once more after that. `turns`, `tokens` and `submitted` (the share of repairs that were handed in) say by how much
the sides differ. What the code's small changes come to is known before either side is timed (`try_all`): the tools run
nothing twice, and the first side would else pay for both.
"""

from __future__ import annotations

import asyncio
import tempfile

import art_nb as art
from art_nb.tasks.code_repair import Problem, problems
from art_nb.tasks.code_repair.mending import (
    MENDING_TOOLS,
    MENDING_TURNS,
    Mending,
    MendingEnvironment,
    best_change,
    mending_message,
    mending_sandbox,
    places,
)
from benchmarks.gathering import BASE, compared, gather, registered, stock_generation
from benchmarks.result import say

CODE_BASE = BASE.with_name("nano_code")
MAX_TOKENS = 16  # of one answer; a call takes 5 to 8


async def rollout(
    model: art.TrainableModel, problem: Problem, max_turns: int = MENDING_TURNS, temperature: float = 1.0,
    paid_by: str = "hidden",
) -> tuple[art.Trajectory, Mending]:
    """One repair by the model."""
    repair, client = Mending(problem, max_turns=max_turns, paid_by=paid_by), model.openai_client()
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": mending_message(problem)}],
        tools=MENDING_TOOLS,
        metadata={"problem": problem.id},
    )
    while not repair.over:
        completion = await client.chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages(), tools=MENDING_TOOLS, max_tokens=MAX_TOKENS,
            temperature=temperature,
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        if not choice.message.tool_calls:
            repair.call(None, None)
        for call in choice.message.tool_calls or []:
            said = repair.call(call.function.name, call.function.arguments)
            trajectory.messages_and_choices.append({"role": "tool", "tool_call_id": call.id, "content": said})
    trajectory.reward, trajectory.metrics = repair.reward(), repair.metrics()
    return trajectory, repair


async def repaired(model: art.TrainableModel, problem: Problem, max_turns: int) -> art.Trajectory:
    """One repair, rewarded as the task rewards it."""
    return (await rollout(model, problem, max_turns))[0]


async def measure_ours(folder: str, base: str, chosen: list[Problem], size: int, max_turns: int = MENDING_TURNS) -> dict:
    """The repairs with nothing cached, after short ones of another model have warmed torch up."""
    for name, turns in (("warm-up", 2), ("model", max_turns)):
        model = await registered(folder, base, name)
        measured = await gather([[repaired(model, problem, turns) for _ in range(size)] for problem in chosen])
    repairs = measured["trajectories"]
    over = [t.metrics["malformed"] + t.metrics["out_of_turns"] for t in repairs]
    return measured | {"submitted": 1 - sum(over) / len(repairs)}


def measure_stock(folder: str, base: str, chosen: list[Problem], size: int, max_turns: int = MENDING_TURNS) -> dict:
    """The same repairs by stock TRL."""
    columns = [{"problem": problem.id} for problem in chosen]
    measured = stock_generation(folder, base, columns, size, MendingEnvironment, max_turns, MAX_TOKENS)
    repairs = [environment.repair for environment in measured["environments"]]
    return measured | {"submitted": sum(repair.ended_by == "submitted" for repair in repairs) / len(repairs)}


def try_all(chosen: list[Problem]) -> None:
    """Runs every small change of the problems' code on its examples."""
    for problem in chosen:
        (text,) = problem.files.values()
        for kind, line in places(text):
            best_change(mending_sandbox(), text, kind, line, problem.visible)


def measure(base: str, groups: int, size: int) -> dict:
    chosen = problems("train", groups)
    try_all(chosen)
    with tempfile.TemporaryDirectory() as folder:
        say(f"ours: {groups * size} repairs")
        ours = asyncio.run(measure_ours(folder, base, chosen, size))
        say(f"stock TRL: {groups * size} repairs")
        stock = measure_stock(folder, base, chosen, size)
    shares = {f"{side}_submitted": numbers["submitted"] for side, numbers in (("ours", ours), ("stock", stock))}
    return compared(ours, stock) | shares
