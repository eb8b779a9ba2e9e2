"""Messages as a request gives them, checked: dicts with a role that exists and text as content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from art_nb.inference.chat import RequestError

ROLES = ("system", "developer", "user", "assistant", "tool")


def plain(messages: Any) -> list[dict]:
    """The messages as dicts with text as content.

    Raises:
        RequestError: there is none, or one is no message or has no role that exists; it says which.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise RequestError(f"messages is {messages!r}: expected a list with at least one message")
    return [m if _is_plain(m) else _plain(m, i) for i, m in enumerate(messages)]


def _is_plain(message: Any) -> bool:
    if type(message) is not dict or message.get("role") not in ROLES or type(message.get("content")) is not str:
        return False
    calls = message.get("tool_calls", ())  # None in what openai's `model_dump()` gives
    return calls is not None and all(type(call) is dict for call in calls)


def _plain(message: Any, index: int) -> dict:
    message = message.model_dump(exclude_none=True) if hasattr(message, "model_dump") else message
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError(f"messages[{index}] is {message!r}: expected a dict with a role")
    if message["role"] not in ROLES:
        raise RequestError(f"messages[{index}]: role is {message['role']!r}: expected one of {', '.join(ROLES)}")
    content, calls = message.get("content") or "", message.get("tool_calls") or []
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise RequestError(f"messages[{index}]: content is {content!r}: expected a string or a list of text parts")
    calls = [call.model_dump() if hasattr(call, "model_dump") else call for call in calls]
    if not all(isinstance(call, dict) for call in calls):
        raise RequestError(f"messages[{index}]: tool_calls is {calls!r}: expected a list of dicts")
    message = {**message, "content": content, "tool_calls": calls}
    return message if calls else {k: v for k, v in message.items() if k != "tool_calls"}


def for_template(message: dict) -> dict:
    """A copy whose tool calls have their arguments as an object, as templates expect them; the API has them as a string."""
    return {**message, "tool_calls": _parsed(message["tool_calls"])} if message.get("tool_calls") else dict(message)


def _parsed(calls: list[dict]) -> list[dict]:
    result = []
    for call in calls:
        function = dict(call.get("function", call))
        try:
            function["arguments"] = json.loads(function["arguments"])
        except (TypeError, ValueError, KeyError):
            pass  # an object already, or nothing that could be one
        result.append({**call, "function": function})
    return result


def half_pair(messages: list[dict], **others: Any) -> str:
    """Says where a request holds half of a surrogate pair, which no tokenizer can read; others: its parts by name."""
    for where, text in _strings({"messages": list(map(for_template, messages)), **others}, ""):
        for i, character in enumerate(text):
            if "\ud800" <= character <= "\udfff":
                return f"{where} holds {character!a} at {i}, half of a surrogate pair: replace it, it is no text"
    return "messages hold half of a surrogate pair, which is no text"


def _strings(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _strings(key, f"a key of {where}")
            yield from _strings(each, f"{where}.{key}".removeprefix("."))
    elif isinstance(value, list | tuple):
        for i, each in enumerate(value):
            yield from _strings(each, f"{where}[{i}]")
