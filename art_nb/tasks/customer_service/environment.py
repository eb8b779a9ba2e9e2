"""The two worlds as tool-calling episodes for TRL's `environment_factory`, and what an agent is told first.

There the model's every turn is a call, so writing to the customer is a tool as well: `respond`, by tau-bench's name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from art_nb.tasks.customer_service.conversation import MAX_TURNS, Conversation
from art_nb.tasks.customer_service.course import SPLITS, course_tasks, course_world
from art_nb.tasks.customer_service.customer import Customer, RuleCustomer
from art_nb.tasks.customer_service.policy import POLICIES
from art_nb.tasks.customer_service.schemas import SCHEMAS
from art_nb.tasks.customer_service.tasks import Task
from art_nb.tasks.customer_service.world import World

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
"""The schema of the tool by which a model writes to the customer, beside those of `World.tools`."""

_TYPES = {"string": str, "integer": int, "number": float}


class ServiceEnvironment:
    """One conversation. Its tools are the methods without an underscore, other than `reset` and `get_reward`.

    Pass the class itself, or `functools.partial(RetailEnvironment, world=..., tasks=...)` for other data. The dataset's rows
    carry the id of a `task`, and a prompt whose last user message the customer's first one is appended to: leave its content
    empty, and put `POLICIES[domain]` into a system message for a model that can read it.
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
        chosen = tasks or [task for split in SPLITS for task in course_tasks(self.domain, split)]
        self._tasks = {task.id: task for task in chosen}
        self._customer, self._max_turns = customer, max_turns
        self.reset(next(iter(self._tasks)))

    def reset(self, task: str = "train-0", **kwargs: Any) -> str:
        """Starts the conversation about this task and returns the customer's first message; other columns are ignored."""
        return self._begin(self._tasks[task])

    def _begin(self, task: Task) -> str:
        self.conversation = Conversation(self._world, task, self._customer(task), self._max_turns)
        return self.conversation.opening

    def _answer(self, name: str, arguments: dict) -> str:
        if name == "respond":
            return self.conversation.say(str(arguments["content"]))
        return self.conversation.call(name, arguments)

    def get_reward(self) -> float:
        """1 for a solved task, else 0; a conversation that was broken off is judged as it stands."""
        return self.conversation.reward()


def method_of(schema: dict) -> Callable[..., str]:
    """A method that TRL makes this schema from: its signature, types and docstring. It calls `_answer(name, arguments)`."""
    function = schema["function"]
    name, properties = function["name"], function["parameters"]["properties"]

    def method(self, **arguments):
        return self._answer(name, arguments)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    hints = {key: _type(about) for key, about in properties.items()}
    parameters = [inspect.Parameter("self", kind)]
    parameters += [inspect.Parameter(key, kind, annotation=hint) for key, hint in hints.items()]
    lines = [f"{key}: {about['description']}" for key, about in properties.items()]
    method.__name__ = method.__qualname__ = name
    method.__signature__ = inspect.Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    method.__annotations__ = hints | {"return": str}
    method.__doc__ = "\n    ".join([f"{function['description']}\n\nArgs:", *lines]) if lines else function["description"]
    return method


def _type(about: dict) -> Any:
    """The Python type of what a schema describes."""
    if about["type"] == "array":
        return list[str] if about["items"]["type"] == "string" else list[dict]
    return _TYPES[about["type"]]


def _tools_of(environment: type[ServiceEnvironment]) -> type[ServiceEnvironment]:
    for schema in [*SCHEMAS[environment.domain], RESPOND]:
        setattr(environment, schema["function"]["name"], method_of(schema))
    return environment


@_tools_of
class RetailEnvironment(ServiceEnvironment):
    __doc__ = ServiceEnvironment.__doc__
    domain = "retail"


@_tools_of
class AirlineEnvironment(ServiceEnvironment):
    __doc__ = ServiceEnvironment.__doc__
    domain = "airline"


def first_messages(conversation: Conversation) -> list[dict[str, str]]:
    """The messages that a model starts from: the policy, and what the customer writes first."""
    return [
        {"role": "system", "content": POLICIES[conversation.world.domain]},
        {"role": "user", "content": conversation.opening},
    ]
