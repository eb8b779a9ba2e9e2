"""Shared by the benchmarks of gathering: rollouts through the public API, and stock TRL's generation phase."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import art_nb as art
from benchmarks.result import say
from benchmarks.stock_trl import GRPOTrainer, stock_policy, stock_trainer

BASE = Path(__file__).resolve().parent.parent / "data" / "nano"


async def registered(
    folder: str, base: str, name: str, seed: int = 0, engine: str = "auto", slots: int = 128, **init_args: str
) -> art.TrainableModel:
    """Return a registered model that keeps its files in `folder`."""
    from art_nb.local import LocalBackend

    settings: dict = {"init_args": init_args}
    model = art.TrainableModel(name=name, project="benchmarks", base_model=str(base), _internal_config=settings)
    await model.register(LocalBackend(path=folder, seed=seed, engine=engine, slots=slots))
    return model


async def gather(groups: Iterable[Iterable[Coroutine]]) -> dict:
    """Run the rollouts of all groups. Returns tokens, seconds, mean turns, first prompts and the trajectories."""
    started = time.perf_counter()
    gathered = await art.gather_trajectory_groups([art.TrajectoryGroup(group) for group in groups], pbar_desc=None)
    seconds = time.perf_counter() - started
    trajectories = [trajectory for group in gathered for trajectory in group]
    answers = [trajectory.choices() for trajectory in trajectories]
    return {
        "tokens": sum(len(choice.token_ids) for rollout in answers for choice in rollout),
        "seconds": seconds,
        "turns": sum(map(len, answers)) / len(answers),
        "prompts": [rollout[0].prompt_token_ids for rollout in answers],
        "trajectories": trajectories,
    }


class TimedTrainer(GRPOTrainer):
    """Stock TRL that records the time and the results of its generation phase."""

    def _generate(self, prompts: list) -> tuple:
        started = time.perf_counter()
        generated = super()._generate(prompts)
        seconds = time.perf_counter() - started
        prompt_ids, completion_ids, sampled, messages = generated[:4]
        answers = [sum(message["role"] == "assistant" for message in game) for game in messages]
        self.measured = {
            "tokens": sum(map(sum, sampled)),
            "seconds": seconds,
            "turns": sum(answers) / len(answers),
            "prompts": prompt_ids,
            "games": [a + b for a, b in zip(prompt_ids, completion_ids, strict=True)],
            "messages": messages,
        }
        return generated


def stock_generation(
    folder: str, base: str, columns: list[dict], size: int, environment: Callable, turns: int, max_tokens: int
) -> dict:
    """Measure stock TRL's generation phase, after a short warm-up. Returns what `TimedTrainer` records.

    columns: one dict per group, the arguments of its environments' `reset`. turns: limit on the answers per rollout.
    """
    policy = stock_policy(base, seed=0)
    rows = [{"prompt": [{"role": "user", "content": ""}], **column} for column in columns]
    trainer = stock_trainer(
        policy, folder, rows, trainer_class=TimedTrainer, environment=environment,
        per_device_train_batch_size=len(rows) * size, num_generations=size,
        # TRL limits the whole rollout, here to the context length; `generation_kwargs` limit each turn.
        max_completion_length=policy.model.config.max_position_embeddings,
        generation_kwargs={"max_new_tokens": max_tokens},
    )  # fmt: skip
    trainer.model.train()
    for length in (2, turns):
        trainer.max_tool_calling_iterations = length - 1
        trainer._generate_and_score_completions([row for row in rows for _ in range(size)])
    return trainer.measured | {"environments": trainer.environments}


@dataclass(frozen=True)
class RolloutTask:
    """A task of tool-calling episodes that both sides run.

    column: the argument of the environment's `reset` that takes a scenario's id. rollout: (model, scenario,
    maximum number of turns) -> trajectory. metric: a name, with the functions that compute it from our trajectories and from
    the episodes of stock TRL's environments. noun: the plural for rollouts in progress messages.
    """

    column: str
    rollout: Callable[[art.TrainableModel, Any, int], Coroutine]
    environment: Callable
    max_turns: int
    max_tokens: int
    metric: str
    ours: Callable[[list[art.Trajectory]], float]
    stock: Callable[[list[Any]], float]
    noun: str


async def measure_ours(task: RolloutTask, folder: str, base: str, scenarios: list[Any], size: int) -> dict:
    """Gather the rollouts with an empty cache, after a warm-up with another model."""
    for name, turns in (("warm-up", 2), ("model", task.max_turns)):
        model = await registered(folder, base, name, engine="transformers")  # as for stock TRL
        measured = await gather([[task.rollout(model, scenario, turns) for _ in range(size)] for scenario in scenarios])
    return measured | {task.metric: task.ours(measured["trajectories"])}


def measure_stock(task: RolloutTask, folder: str, base: str, scenarios: list[Any], size: int) -> dict:
    """Generate the same rollouts with stock TRL."""
    columns = [{task.column: scenario.id} for scenario in scenarios]
    measured = stock_generation(folder, base, columns, size, task.environment, task.max_turns, task.max_tokens)
    return measured | {task.metric: task.stock([environment.episode for environment in measured["environments"]])}


def compare_sides(task: RolloutTask, base: str, scenarios: list[Any], size: int) -> dict:
    """Run both sides. Returns `compared`, and the task's metric of each side."""
    rollouts = f"{len(scenarios) * size} {task.noun}"
    with tempfile.TemporaryDirectory() as folder:
        say(f"ours: {rollouts}")
        ours = asyncio.run(measure_ours(task, folder, base, scenarios, size))
        say(f"stock TRL: {rollouts}")
        stock = measure_stock(task, folder, base, scenarios, size)
    shares = {f"{side}_{task.metric}": numbers[task.metric] for side, numbers in (("ours", ours), ("stock", stock))}
    return compared(ours, stock) | shares


def compared(ours: dict, stock: dict) -> dict:
    """Return the ratio of speeds, and each side's numbers. Raises: SystemExit if their first prompts differ."""
    if ours["prompts"] != stock["prompts"]:
        raise SystemExit("the two sides had different first prompts, so their speeds are not comparable")
    speeds = {"ours": ours["tokens"] / ours["seconds"], "stock": stock["tokens"] / stock["seconds"]}
    result = {"ratio": speeds["ours"] / speeds["stock"]}
    for side, numbers in (("ours", ours), ("stock", stock)):
        result[f"{side}_tokens_per_s"] = speeds[side]
        result |= {f"{side}_{key}": numbers[key] for key in ("tokens", "seconds", "turns")}
    return result
