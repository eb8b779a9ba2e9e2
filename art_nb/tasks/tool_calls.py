"""What tool calls are to every task: how they are answered, and what makes a call one of the task's own, its name and its
arguments held against the schemas of the task's tools.

It knows nothing about what the tools do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

_TYPES = {"string": (str, "a string"), "integer": (int, "an integer"), "array": (list, "a list of strings")}


class ByToolCalls:
    """Something that an agent does by calls of tools until it is over. ended_by: None until then."""

    ended_by: str | None = None

    @property
    def over(self) -> bool:
        return self.ended_by is not None

    def call(self, name: str | None, arguments: str | dict | None) -> str:
        """Makes one tool call and returns what the agent reads next.

        A call of an unknown tool, or whose arguments are not this tool's, is malformed and ends it; so does
        `call(None, None)`, which stands for an answer without a call. Arguments that fit but make no sense are refused in
        words: the agent may try again.

        arguments: JSON as a model writes it, or the object it stands for.
        """
        raise NotImplementedError


def malformed(
    tools: Iterable[dict], name: str | None, arguments: str | dict | None
) -> tuple[tuple[str, str] | None, dict]:
    """What makes this no call of one of the tools, as (kind of fault, in words), or None; and its arguments.

    tools: OpenAI's schemas. arguments: JSON as a model writes it, or the object it stands for; for a tool without parameters
    they may be left out.
    """
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if not name:
        return ("no call", "every turn must call a tool"), {}
    if name not in schemas:
        return ("unknown tool", f"there is no tool {quoted(name)}; the tools are {', '.join(schemas)}"), {}
    properties = schemas[name]["properties"]
    if not arguments and not properties:
        return None, {}
    try:
        given: Any = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return ("bad arguments", "the arguments are not JSON"), {}
    if not isinstance(given, dict):
        return ("bad arguments", "the arguments must be a JSON object"), {}
    for parameter, value in given.items():
        if parameter not in properties:
            return ("bad arguments", f"{name} has no argument {quoted(parameter)}"), {}
        kind, described = _TYPES[properties[parameter]["type"]]
        if type(value) is not kind or (isinstance(value, list) and any(type(item) is not str for item in value)):
            return ("bad arguments", f"{parameter} must be {described}"), {}
    if missing := [parameter for parameter in schemas[name].get("required", ()) if parameter not in given]:
        return ("bad arguments", f"{name} needs {' and '.join(missing)}"), {}
    return None, given


def quoted(text: str) -> str:
    """A short piece of what the agent wrote, on one line and fit for JSON."""
    text = text.encode("utf-8", "replace").decode()
    return json.dumps(text if len(text) <= 40 else f"{text[:40]}...", ensure_ascii=False)
