"""Email search: answer a question from thousands of emails, with tools to search, read and answer."""

from importlib.util import find_spec
from typing import Any

from email_search.environment import (
    I_DONT_KNOW,
    MAX_TURNS,
    OVER,
    TOOLS,
    EmailSearch,
    EmailSearchEnvironment,
    first_message,
)
from email_search.mailbox import course_mailbox
from email_search.scenarios import Scenario, same_answer, scenarios

__all__ = [
    "I_DONT_KNOW", "MAX_TURNS", "OVER", "TOOLS", "EmailSearch", "EmailSearchEnvironment", "Scenario", "course_mailbox",
    "first_message", "same_answer", "scenarios",
]  # fmt: skip

if find_spec("verifiers"):  # its loader finds the taskset in `__all__`
    __all__ += ["EmailTaskset"]


def __getattr__(name: str) -> Any:
    if name == "EmailTaskset":
        from email_search import taskset

        return taskset.EmailTaskset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
