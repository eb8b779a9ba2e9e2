"""Tasks: a customer's wishes, the tool calls that fulfil them, and tau-bench's reward."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from customer_service.world import World


class Action(NamedTuple):
    """A tool call. arguments: the object, not its JSON text."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """One task of an agent: a conversation with a customer.

    user_id: the customer's id, "" if unknown. instruction: the customer's knowledge and wishes, for the model or
    person in this role. actions: tool calls that solve the task. outputs: texts that the agent's messages must contain.
    digest: `World.digest` after the actions; empty where it was not computed.
    wants: the customer's script for `customer.RuleCustomer`; empty in tau-bench's tasks.
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
    """Load a task file: tau-bench's `tasks_test.py` or a similar one, or tau2's `tasks.json`.

    tau-bench's files are Python. They are parsed and never executed; only literals and keyword calls work.

    Raises: FileNotFoundError; ValueError with the file's path for another format.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        return _parse_tau_bench(text) if path.suffix == ".py" else _parse_tau2(json.loads(text))
    except (SyntaxError, LookupError, TypeError, AttributeError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{path} is not a task file of tau-bench or tau2: {type(error).__name__}: {error}") from None


def _parse_tau_bench(source: str) -> list[Task]:
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
    """Return the value of an expression; a call with keyword arguments becomes a dict of them."""
    match node:
        case ast.List(elts=parts):
            return [_literal(part) for part in parts]
        case ast.Call(args=[], keywords=keywords):
            return {str(keyword.arg): _literal(keyword.value) for keyword in keywords}
    return ast.literal_eval(node)


def _parse_tau2(rows: list[dict]) -> list[Task]:
    tasks = []
    for row in rows:
        script, criteria = row["user_scenario"]["instructions"], row["evaluation_criteria"] or {}
        parts = (script["reason_for_call"], script["known_info"], script["unknown_info"], script["task_instructions"])
        actions = tuple(Action(action["name"], action["arguments"]) for action in criteria.get("actions") or ())
        user_id = next((str(a.arguments["user_id"]) for a in actions if "user_id" in a.arguments), "")
        outputs = tuple(criteria.get("communicate_info") or ())
        tasks.append(Task(str(row["id"]), user_id, " ".join(filter(None, parts)), actions, outputs))
    return tasks


def goal_state(world: World, task: Task) -> World:
    """Return a copy of the world after the task's actions. world: the state at the start of the task."""
    goal = world.fork()
    for action in task.actions:
        goal.call(*action)
    return goal


def communicated(outputs: Iterable[str], agent_messages: Sequence[str]) -> dict[str, bool]:
    """Return for each output whether one of the agent's messages contains it, ignoring case and the message's commas."""
    messages = [message.lower().replace(",", "") for message in agent_messages]
    return {output: any(output.lower() in message for message in messages) for output in outputs}


def reward(world: World, task: Task, agent_messages: Sequence[str]) -> float:
    """Return 1 if the database equals the task's goal state and all outputs were communicated, else 0.

    world: at the end of the conversation; `World.reset` must restore the start of the task.
    Source: `Env.calculate_reward` of tau-bench.
    """
    start = world.fork()
    start.reset()
    reached = world.equals(goal_state(start, task))
    return float(reached and all(communicated(task.outputs, agent_messages).values()))
