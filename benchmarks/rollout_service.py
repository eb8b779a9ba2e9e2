"""How fast customers are served, against stock TRL with environment_factory.

`python -m benchmarks.rollout --task retail` prints one JSON line. `ratio`: sampled tokens a second of 128 conversations at
the shop's front desk (`art_nb.tasks.customer_service.front_desk`), 8 of each of the first 16 training tasks, over those of
stock TRL's generation phase, as in benchmarks/rollout_email.py: same base model and adapter, prompts, tool schemas, limit of
tokens per answer, temperature 1, at most 14 answers. A conversation of ours ends when the customer leaves or by a malformed
call; TRL's loop asks the model once more after that. `turns`, `tokens` and `left` (the share of conversations that the
customer ended) say by how much the sides differ.
"""

from __future__ import annotations

import asyncio
import tempfile

import art_nb as art
from art_nb.tasks.customer_service import Task, course_tasks, course_world
from art_nb.tasks.customer_service.desk import DESK_TURNS, Desk
from art_nb.tasks.customer_service.front_desk import FrontDesk, FrontDeskEnvironment
from benchmarks.gathering import BASE, compared, gather, registered, stock_generation
from benchmarks.result import say

SERVICE_BASE = BASE.with_name("nano_service")
MAX_TOKENS = 16  # of one answer; a call takes 4 to 10


async def rollout(
    model: art.TrainableModel,
    task: Task,
    *,
    temperature: float = 1.0,
    max_turns: int = DESK_TURNS,
    at: type[Desk] = FrontDesk,
) -> tuple[art.Trajectory, Desk]:
    """One conversation by the model at a desk."""
    desk, client = at(course_world(at.domain), task, max_turns=max_turns), model.openai_client()
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": desk.talk.opening}], tools=at.tools, metadata={"task": task.id}
    )
    while not desk.over:
        completion = await client.chat.completions.create(
            model=model.get_inference_name(),
            messages=trajectory.messages(),
            tools=at.tools,
            max_tokens=MAX_TOKENS,
            temperature=temperature,
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        if not choice.message.tool_calls:
            desk.call(None, None)
        for call in choice.message.tool_calls or []:
            said = desk.call(call.function.name, call.function.arguments)
            trajectory.messages_and_choices.append({"role": "tool", "tool_call_id": call.id, "content": said})
    trajectory.reward, trajectory.metrics = desk.reward(), desk.metrics()
    return trajectory, desk


async def served(model: art.TrainableModel, task: Task, max_turns: int) -> art.Trajectory:
    """One conversation, rewarded as the task rewards it."""
    return (await rollout(model, task, max_turns=max_turns))[0]


async def measure_ours(folder: str, base: str, chosen: list[Task], size: int, max_turns: int = DESK_TURNS) -> dict:
    """The conversations with nothing cached, after short ones of another model have warmed torch up."""
    for name, turns in (("warm-up", 2), ("model", max_turns)):
        model = await registered(folder, base, name)
        measured = await gather([[served(model, task, turns) for _ in range(size)] for task in chosen])
    talks = measured["trajectories"]
    over = [t.metrics["malformed"] + t.metrics["out_of_turns"] for t in talks]
    return measured | {"left": 1 - sum(over) / len(talks)}


def measure_stock(folder: str, base: str, chosen: list[Task], size: int, max_turns: int = DESK_TURNS) -> dict:
    """The same conversations by stock TRL."""
    columns = [{"task": task.id} for task in chosen]
    measured = stock_generation(folder, base, columns, size, FrontDeskEnvironment, max_turns, MAX_TOKENS)
    desks = [environment.desk for environment in measured["environments"]]
    return measured | {"left": sum(desk.ended_by == "customer" for desk in desks) / len(desks)}


def measure(base: str, groups: int, size: int) -> dict:
    chosen = course_tasks("retail", "train", groups)
    with tempfile.TemporaryDirectory() as folder:
        say(f"ours: {groups * size} conversations")
        ours = asyncio.run(measure_ours(folder, base, chosen, size))
        say(f"stock TRL: {groups * size} conversations")
        stock = measure_stock(folder, base, chosen, size)
    shares = {f"{side}_left": numbers["left"] for side, numbers in (("ours", ours), ("stock", stock))}
    return compared(ours, stock) | shares
