"""Helpers of the adapters: a clear error for a missing extra, and classes whose tools come from JSON schemas."""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from keyword import iskeyword
from typing import Any

from art_nb.environments.tools import resolved

TYPES: dict[str, type] = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict}
RESERVED = ("reset", "get_reward", "over", "metrics", "progress", "plain_tool")


def import_extra(module: str, name: str) -> Any:
    """Import a module that the extra `name` installs. Raises: ImportError, naming the extra if the module is missing."""
    if sys.modules.get(module):  # without touching the warning filters: an environment is made for each rollout
        return importlib.import_module(module)  # waits until another thread has imported it
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # of third-party code, at its first import
            return importlib.import_module(module)
    except ImportError as error:
        if error.name and error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise ImportError(f"{module} is not installed: pip install 'art-nb[{name}]'") from error


async def call_and_await(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function, and await its result if it is async."""
    result = function(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def listed_tools(kind: type, tools: dict[str, dict]) -> list[Any]:
    """Convert OpenAI schemas (see `environment_tools`) to objects of `kind`, a class such as `mcp.types.Tool`."""
    about = [tool["function"] for tool in tools.values()]
    return [kind(name=f["name"], description=f["description"], input_schema=f["parameters"]) for f in about]


class ConnectedEnvironment(AbstractContextManager):
    """An episode whose connections `_stack` closes. over: whether the episode has ended."""

    over = False

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __exit__(self, *error: Any) -> None:
        self._stack.close()


def with_tools(base: type, name: str, tools: Iterable[dict]) -> type:
    """Return a subclass of `base` with a method for each tool, which TRL lists and `rollout_environment` calls.

    tools: OpenAI schemas, whose parameters may refer to their own `$defs`. Each method calls `_call` of `base` with the
    tool's name and the dict of its arguments.

    Raises: ValueError for a reserved or private tool name, an invalid parameter name, or a recursive schema.
    """
    return type(name, (base,), {tool["function"]["name"]: _method(tool["function"]) for tool in tools})


def _method(function: dict) -> Callable[..., Any]:
    name, parameters = function["name"], resolved(function.get("parameters") or {})
    if not name or name.startswith("_") or name in RESERVED:
        raise ValueError(f"a tool cannot be named {name!r} (reserved, or not public): rename or omit it")
    properties, required = parameters.get("properties", {}), parameters.get("required", [])

    def method(self: Any, /, **arguments: Any) -> Any:
        return self._call(name, arguments)

    kind = inspect.Parameter.KEYWORD_ONLY
    hints = {key: _hint(schema) for key, schema in properties.items()}
    if excluded := [key for key in hints if not key.isidentifier() or iskeyword(key) or key == "self"]:
        raise ValueError(f"the tool {name} has the invalid parameter name {excluded[0]!r}: rename it, or omit the tool")
    given = [
        inspect.Parameter(key, kind, annotation=hints[key], default=inspect.Parameter.empty if key in required else None)
        for key in sorted(hints, key=lambda key: key not in required)
    ]
    kept = {"type": "object", "properties": properties} | ({"required": required} if required else {})
    description = " ".join((function.get("description") or name).split())
    texts = {key: schema.get("description") if isinstance(schema, dict) else "" for key, schema in properties.items()}
    about = [f"{key}: {' '.join((text or key).split())}" for key, text in texts.items()]
    method.__name__ = method.__qualname__ = name
    method.__doc__ = "\n    ".join([f"{description}\n\nArgs:", *about]) if about else description
    method.__annotations__ = hints | {"return": str}
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), *given], return_annotation=str
    )
    schema = {"name": name, "description": description, "parameters": kept}
    method.schema = {"type": "function", "function": schema}  # type: ignore[attr-defined]
    return method


def _hint(schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "array":
        return list[_hint(schema.get("items"))]  # type: ignore[misc]  # transformers treats a bare `list` as an object
    return TYPES.get(kind, Any) if isinstance(kind, str) else Any
