"""`format_message`: a chat message as readable text."""

from typing import Any

from art_nb.types import Message


def format_message(message: Message) -> str:
    """Return a message's role, content and tool calls as text."""
    fields: Any = message
    calls = [call["function"] for call in fields.get("tool_calls") or () if "function" in call]
    lines = [str(fields.get("content") or ""), *(f"{function['name']}({function['arguments']})" for function in calls)]
    return "\n".join([f"{fields['role'].capitalize()}:", *filter(None, lines)])
