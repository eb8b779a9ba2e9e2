"""One tool call's view of the database: its changes are committed if the call succeeds and dropped if it fails."""

from __future__ import annotations

from collections import ChainMap
from typing import Any


class Transaction(dict[str, Any]):
    """The tables by name, each a mapping of records by id. Tools change only records that `edit` returned."""

    def __init__(self, tables: dict[str, ChainMap]):
        super().__init__({table: records.new_child() for table, records in tables.items()})

    def edit(self, table: str, key: str) -> Any:
        """Return this transaction's own copy of a record, to be modified in place."""
        changed = self[table].maps[0]
        if key not in changed:
            changed[key] = copy_json(self[table][key])
        return changed[key]

    def commit(self) -> None:
        """Write the changed records to the tables."""
        for records in self.values():
            records.maps[1].update(records.maps[0])


def copy_json(value: Any) -> Any:
    """Return a deep copy of a JSON value; several times faster than `copy.deepcopy`."""
    if isinstance(value, dict):
        return {key: copy_json(part) for key, part in value.items()}
    return [copy_json(part) for part in value] if isinstance(value, list) else value
