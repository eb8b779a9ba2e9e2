"""Validation of a request's messages: dicts with a known role and text as content."""

import json
from typing import Any

from art_nb.inference.chat import RequestError

ROLES = ("system", "developer", "user", "assistant", "tool")


def normalize(messages: Any) -> list[dict]:
    """Return the messages as dicts with text as content. Those that have this form already are not copied.

    Raises: RequestError when there are none, or one is malformed or has an unknown role.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise RequestError(f"messages is {messages!r}: expected a list with at least one message")
    return [m if _is_normal(m) else _normalize_one(m, f"messages[{i}]") for i, m in enumerate(messages)]


def _is_normal(message: Any) -> bool:
    if type(message) is not dict or message.get("role") not in ROLES or type(message.get("content")) is not str:
        return False
    calls = message.get("tool_calls", [])  # None in openai's `model_dump()`
    return type(calls) is list and all(map(_is_call, calls))


def _is_call(call: Any) -> bool:
    function = call.get("function", call) if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _normalize_one(message: Any, where: str) -> dict:
    message = message.model_dump(exclude_none=True) if hasattr(message, "model_dump") else message
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError(f"{where} is {message!r}: expected a dict with a role")
    if message["role"] not in ROLES:
        raise RequestError(f"{where}: role is {message['role']!r}: expected one of {', '.join(ROLES)}")
    content, calls = message.get("content") or "", message.get("tool_calls") or []
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise RequestError(f"{where}: content is {content!r}: expected a string or a list of text parts")
    if isinstance(calls, list | tuple):
        calls = [call.model_dump() if hasattr(call, "model_dump") else call for call in calls]
    if not isinstance(calls, list) or not all(map(_is_call, calls)):
        raise RequestError(f"{where}: tool_calls is {calls!r}: expected a list of dicts with a function's name")
    message = {**message, "content": content, "tool_calls": calls}
    return message if calls else {k: v for k, v in message.items() if k != "tool_calls"}


def with_parsed_arguments(message: dict) -> dict:
    """Copy a message, with its tool calls' arguments parsed from JSON strings to objects, as chat templates expect."""
    calls = []
    for call in message.get("tool_calls") or []:
        function = dict(call.get("function", call))
        try:
            function["arguments"] = json.loads(function["arguments"])
        except (TypeError, ValueError, KeyError):
            pass  # an object already, missing or invalid
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls} if calls else dict(message)
