"""What a customer wants, what an agent should have done about it, and how a conversation is judged: tau-bench's reward."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from art_nb.tasks.customer_service.world import World


class Action(NamedTuple):
    """A tool call; arguments are an object, not its text."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """One conversation to be had.

    user_id: whose it is. instruction: what the customer knows and wants, for whoever plays them, in words.
    actions: calls that solve it. outputs: what the customer must be told, as a piece of a message.
    digest: of the database as the actions leave it (`World.digest`); empty where nobody has worked it out.
    wants: the same as instruction for a customer by rule (`customer.RuleCustomer`); empty in tasks from elsewhere.
    """

    id: str
    user_id: str
    instruction: str
    actions: tuple[Action, ...]
    outputs: tuple[str, ...] = ()
    split: str = "test"
    digest: str = ""
    wants: dict[str, Any] = field(default_factory=dict)


def load_tasks(path: str | Path) -> list[Task]:
    """The tasks of a file: `tasks_test.py` and its like of tau-bench, `tasks.json` of tau2.

    tau-bench's are Python. They are read as text and never run, so they may only hold values.

    Raises: FileNotFoundError; ValueError, naming the file, for one of another form.
    """
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    try:
        return _of_tau_bench(text) if path.suffix == ".py" else _of_tau2(json.loads(text))
    except (SyntaxError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no tasks of tau-bench or tau2: {type(error).__name__}: {error}") from None


def _of_tau_bench(source: str) -> list[Task]:
    assigned = [node.value for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    lists = [value for value in assigned if isinstance(value, ast.List)]
    if not lists:
        raise ValueError("no list of tasks")
    return [
        Task(
            str(number), row["user_id"], row["instruction"],
            tuple(Action(action["name"], action["kwargs"]) for action in row["actions"]), tuple(row["outputs"]),
        )
        for number, row in enumerate(_literal(lists[0]))
    ]  # fmt: skip


def _literal(node: ast.expr) -> Any:
    """The value of an expression; a call with named arguments stands for an object."""
    match node:
        case ast.List(elts=parts):
            return [_literal(part) for part in parts]
        case ast.Call(args=[], keywords=keywords):
            return {str(keyword.arg): _literal(keyword.value) for keyword in keywords}
    return ast.literal_eval(node)


def _of_tau2(rows: list[dict]) -> list[Task]:
    tasks = []
    for row in rows:
        told, due = row["user_scenario"]["instructions"], row["evaluation_criteria"] or {}
        parts = (told["reason_for_call"], told["known_info"], told["unknown_info"], told["task_instructions"])
        actions = tuple(Action(action["name"], action["arguments"]) for action in due.get("actions") or ())
        user_id = next((str(a.arguments["user_id"]) for a in actions if "user_id" in a.arguments), "")
        outputs = tuple(due.get("communicate_info") or ())
        tasks.append(Task(str(row["id"]), user_id, " ".join(filter(None, parts)), actions, outputs))
    return tasks


def expected(world: World, task: Task) -> World:
    """The world as the task's own actions leave it. world: as the task finds it; it is left alone."""
    ideal = world.fork()
    for action in task.actions:
        ideal.call(*action)
    return ideal


def told(outputs: Iterable[str], said: Sequence[str]) -> dict[str, bool]:
    """Which outputs stand in one of the agent's messages, whatever its case and commas."""
    messages = [message.lower().replace(",", "") for message in said]
    return {output: any(output.lower() in message for message in messages) for output in outputs}


def reward(world: World, task: Task, said: Sequence[str]) -> float:
    """1 if the database is as it should be and the customer was told all outputs, else 0.

    world: at the end of the conversation; the task found it as `World.reset` makes it.
    said: the agent's messages to the customer.
    Source: `Env.calculate_reward` of tau-bench.
    """
    first = world.fork()
    first.reset()
    return float(world.digest() == expected(first, task).digest() and all(told(task.outputs, said).values()))
