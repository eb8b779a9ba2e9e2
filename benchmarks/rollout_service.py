"""Throughput of customer service conversations, compared with stock TRL with environment_factory.

`python -m benchmarks.rollout --task retail` prints one JSON line. `ratio`: sampled tokens per second of 128 conversations
at the shop's front desk (`customer_service.front_desk`), 8 for each of the first 16 training tasks, over those of stock
TRL's generation phase, as in benchmarks/rollout_email.py: same base model and adapter, prompts, tool schemas, token limit
per answer, temperature 1, at most 14 answers. Our conversations end when the customer leaves or with a malformed call;
TRL's loop requests one more answer. `turns`, `tokens` and `left` (the share of conversations that the customer ended)
show the difference.
"""

from __future__ import annotations

import art_nb as art
from art_nb.environments import rollout as play_episode
from benchmarks.gathering import BASE, RolloutTask, compare_sides
from customer_service import Task, course_tasks, course_world
from customer_service.desk import DESK_TURNS, Desk
from customer_service.front_desk import FrontDesk, FrontDeskEnvironment

SERVICE_BASE = BASE.with_name("nano_service")
MAX_TOKENS = 16  # of one answer; a call takes 4 to 10


async def rollout(
    model: art.TrainableModel,
    task: Task,
    *,
    temperature: float = 1.0,
    max_turns: int = DESK_TURNS,
    desk_type: type[Desk] = FrontDesk,
) -> tuple[art.Trajectory, Desk]:
    """Have the model work on one task at a desk."""
    desk = desk_type(course_world(desk_type.domain), task, max_turns=max_turns)
    trajectory = await play_episode(
        model.openai_client(), desk, model=model.get_inference_name(), metadata={"task": task.id}, max_tokens=MAX_TOKENS,
        temperature=temperature,
    )  # fmt: skip
    return trajectory, desk


async def task_trajectory(model: art.TrainableModel, task: Task, max_turns: int) -> art.Trajectory:
    """Return one conversation with the task's reward."""
    return (await rollout(model, task, max_turns=max_turns))[0]


def left(conversations: list[art.Trajectory]) -> float:
    """Return the share of conversations that the customer ended."""
    return 1 - sum(t.metrics["malformed"] + t.metrics["out_of_turns"] for t in conversations) / len(conversations)


TASK = RolloutTask(
    column="task", rollout=task_trajectory, environment=FrontDeskEnvironment, max_turns=DESK_TURNS,
    max_tokens=MAX_TOKENS, metric="left", ours=left, noun="conversations",
    stock=lambda desks: sum(desk.ended_by == "customer" for desk in desks) / len(desks),
)  # fmt: skip


def measure(base: str, groups: int, size: int) -> dict:
    """Compare both sides."""
    return compare_sides(TASK, base, course_tasks("retail", "train", groups), size)
