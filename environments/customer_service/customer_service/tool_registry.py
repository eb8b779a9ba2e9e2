"""The tools of one domain: Python functions, and the OpenAI schemas generated from their signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

from customer_service.calculator import evaluate
from customer_service.transaction import Transaction

_TYPES: dict[Any, str] = {str: "string", int: "integer", float: "number"}


class ToolError(Exception):
    """Raised by a tool that cannot carry out a call; the agent reads `Error: ` and the message."""


class ToolRegistry(dict[str, Callable[..., Any]]):
    """The tools by name. A tool takes a `Transaction` as `data`, then its arguments, and returns text or a JSON value."""

    def __init__(self, domain: str):
        super().__init__()
        self.domain = domain

        @self.register
        def calculate(data: Transaction, expression: Annotated[str, "Numbers, + - * / and parentheses."]) -> str:
            """Evaluate an arithmetic expression."""
            return evaluate(expression)

        @self.register
        def think(data: Transaction, thought: Annotated[str, "The thought."]) -> str:
            """Note a thought. It changes nothing and nobody reads it."""
            return ""

        @self.register
        def transfer_to_human_agents(
            data: Transaction, summary: Annotated[str, "What the customer wants, for the person who takes over."]
        ) -> str:
            """Hand the customer over to a person. Only for what these tools can't do."""
            return "Transfer successful"

    def register(self, tool: Callable) -> Callable:
        """Register a function under its own name and return it.

        Python's messages about missing, unknown and duplicate arguments contain the function's qualified name, some of them
        also its module. Both are set to those of tau-bench, so that the agent reads the same messages.
        """
        tool.__qualname__ = "".join(word.capitalize() for word in tool.__name__.split("_")) + ".invoke"
        tool.__module__ = f"tau_bench.envs.{self.domain}.tools.{tool.__name__}"
        self[tool.__name__] = tool
        return tool

    def schemas(self) -> list[dict]:
        """Return the tools' OpenAI schemas, sorted by name."""
        return [_tool_schema(self[name]) for name in sorted(self)]


def _tool_schema(tool: Callable) -> dict:
    hints = get_type_hints(tool, include_extras=True)
    parameters = {name: hints[name] for name in list(inspect.signature(tool).parameters)[1:]}
    function = {"name": tool.__name__, "description": tool.__doc__, "parameters": _object_schema(parameters)}
    return {"type": "function", "function": function}


def _object_schema(hints: dict[str, Any]) -> dict:
    properties = {name: _schema(hint) for name, hint in hints.items()}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _schema(hint: Any) -> dict:
    """Return the JSON schema of a type; the string in `Annotated[type, string]` becomes its description."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _schema(arguments[0]) | {"description": arguments[1]}
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0])}
    if is_typeddict(hint):
        return _object_schema(get_type_hints(hint, include_extras=True))
    return {"type": _TYPES[hint]}
