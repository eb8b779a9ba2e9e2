"""What the tools of both worlds are made of: a draft of the database that one call writes, and a list of the tools."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from typing import Any

from art_nb.tasks.customer_service.calculator import value_of


class Refused(Exception):
    """A call that can't be carried out; its text is what the agent reads after `Error: `."""


class Draft(dict):
    """The tables as one call sees them. What it edits is kept when the call succeeds, and forgotten otherwise."""

    def __init__(self, tables: dict[str, ChainMap]):
        super().__init__({table: records.new_child() for table, records in tables.items()})

    def edit(self, table: str, key: str) -> Any:
        """This call's own copy of a record, to be changed."""
        own = self[table].maps[0]
        if key not in own:
            own[key] = copied(self[table][key])
        return own[key]

    def keep(self) -> None:
        for records in self.values():
            records.maps[1].update(records.maps[0])


def copied(value: Any) -> Any:
    """A copy of what JSON can hold."""
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return [copied(part) for part in value] if isinstance(value, list) else value


class Tools(dict[str, Callable[..., Any]]):
    """The tools of a world by name. A tool takes the draft as `data`, then its arguments; it returns text or an object."""

    def __init__(self, domain: str):
        super().__init__()
        self.domain = domain

        @self.add
        def calculate(data, expression):
            return value_of(expression)

        @self.add
        def think(data, thought):
            return ""

        @self.add
        def transfer_to_human_agents(data, summary):
            return "Transfer successful"

    def add(self, tool: Callable) -> Callable:
        """Adds a function under its name.

        Python names a function in its message about missing or unknown arguments. It gets the name that it has in
        tau-bench, so that the messages are the same.
        """
        tool.__qualname__ = "".join(word.capitalize() for word in tool.__name__.split("_")) + ".invoke"
        tool.__module__ = f"tau_bench.envs.{self.domain}.tools.{tool.__name__}"
        self[tool.__name__] = tool
        return tool
