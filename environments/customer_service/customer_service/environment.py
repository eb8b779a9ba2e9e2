"""Both domains as environments for TRL's `environment_factory`, and a model's first messages.

In TRL every turn of the model is a tool call, so writing to the customer is the tool `respond`, as it is named in tau-bench.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from art_nb.environments.adapters.base import with_tools
from customer_service.conversation import MAX_TURNS, Conversation
from customer_service.course import SPLITS, course_tasks, course_world
from customer_service.customer import Customer, RuleCustomer
from customer_service.policy import POLICIES
from customer_service.tasks import Task
from customer_service.world import SCHEMAS, World

RESPOND: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "respond",
        "description": "Write to the customer and read their reply.",
        "parameters": {
            "type": "object",
            "properties": {"content": {"type": "string", "description": "The message."}},
            "required": ["content"],
        },
    },
}
"""The schema of the tool that writes to the customer; those of the other tools are `World.tools`."""


class ServiceEnvironment:
    """One conversation. Its tools are the public methods other than `reset` and `get_reward`.

    Pass the class itself, or `functools.partial(RetailEnvironment, world=..., tasks=...)` for other data. Each row of the
    dataset has the id of a `task` and a prompt whose last user message is empty: TRL appends the customer's first message to
    it. For a model that can read it, put `POLICIES[domain]` into a system message.

    Raises: ValueError if `tasks` is empty.
    """

    domain: str

    def __init__(
        self,
        world: World | None = None,
        tasks: Iterable[Task] | None = None,
        customer: Callable[[Task], Customer] = RuleCustomer,
        max_turns: int = MAX_TURNS,
    ):
        self._world = world or course_world(self.domain)
        chosen = [task for split in SPLITS for task in course_tasks(self.domain, split)] if tasks is None else tasks
        self._tasks = {task.id: task for task in chosen}
        if not self._tasks:
            raise ValueError("tasks is empty: pass at least one task, or None for the course's tasks")
        self._customer, self._max_turns = customer, max_turns
        self.reset(next(iter(self._tasks)))

    def reset(self, task: str = "", **kwargs: Any) -> str:
        """Start the conversation of this task, by default the first, and return the customer's first message.

        Other columns are ignored. Raises: ValueError for an unknown task.
        """
        task = task or next(iter(self._tasks))
        if task not in self._tasks:
            raise ValueError(f"task is {task!r}: expected the id of one of this environment's tasks")
        self.conversation = self._start(self._tasks[task])
        return self.conversation.opening

    def _start(self, task: Task) -> Conversation:
        return Conversation(self._world, task, self._customer(task), self._max_turns)

    def _call(self, name: str, arguments: dict) -> str:
        if name == "respond":
            return self.conversation.say(str(arguments["content"]))
        return self.conversation.call(name, arguments)

    def get_reward(self) -> float:
        """Return 1 if the task is solved, else 0. An unfinished conversation is scored in its current state."""
        return self.conversation.reward()

    @property
    def over(self) -> bool:
        return self.conversation.over


def _with_tools(domain: str) -> Any:
    return with_tools(ServiceEnvironment, f"{domain}_tools", [*SCHEMAS[domain], RESPOND])


class RetailEnvironment(_with_tools("retail")):  # type: ignore[misc]
    """A conversation with a customer of the shop; see `ServiceEnvironment`."""

    domain = "retail"


class AirlineEnvironment(_with_tools("airline")):  # type: ignore[misc]
    """A conversation with a customer of the airline; see `ServiceEnvironment`."""

    domain = "airline"


def first_messages(conversation: Conversation) -> list[dict[str, str]]:
    """Return a model's first messages: the policy, and the customer's opening."""
    return [
        {"role": "system", "content": POLICIES[conversation.world.domain]},
        {"role": "user", "content": conversation.opening},
    ]
