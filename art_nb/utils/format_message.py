"""`format_message`: a chat message as readable text."""

from typing import Any

from art_nb.trajectories.records import call_of, content_text
from art_nb.types import Message


def format_message(message: Message) -> str:
    """Return a message's role, content and tool calls as text."""
    fields: Any = message
    calls = map(call_of, fields.get("tool_calls") or ())
    lines = [content_text(fields.get("content")), *(f"{call['name']}({call['arguments']})" for call in calls)]
    return "\n".join([f"{fields['role'].capitalize()}:", *filter(None, lines)])
