"""`format_message`: a message to read."""

from typing import Any

from art_nb.types import Message


def format_message(message: Message) -> str:
    """A message as text to read: its role, what it says, and the functions that it calls."""
    fields: Any = message
    calls = [call["function"] for call in fields.get("tool_calls") or () if "function" in call]
    said = [str(fields.get("content") or ""), *(f"{function['name']}({function['arguments']})" for function in calls)]
    return "\n".join([f"{fields['role'].capitalize()}:", *filter(None, said)])
