"""A customer service world: a database of users and their orders or reservations, and the tools that read and change it.

The tools' names, arguments and answers and the format of the data are those of tau-bench (Yao et al., tau-bench: A Benchmark
for Tool-Agent-User Interaction in Real-World Domains, 2024), so its data folders load unchanged. test_service_original.py
compares this world with tau-bench itself where that is installed. Independent of customers, policies and rewards.
"""

from __future__ import annotations

import hashlib
import json
from collections import ChainMap
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from customer_service.airline import TOOLS as AIRLINE
from customer_service.retail import TOOLS as RETAIL
from customer_service.transaction import Transaction, copy_json

DOMAINS = {"retail": RETAIL, "airline": AIRLINE}
SCHEMAS = {domain: tools.schemas() for domain, tools in DOMAINS.items()}
"""The OpenAI schemas of each domain's tools."""
MAX_DEPTH = 50  # levels of nesting in a call's arguments; well below what Python's recursion limit (1,000 frames) allows
TABLES = {"retail": ("orders", "products", "users"), "airline": ("flights", "reservations", "users")}


class World:
    """One episode's copy of a database, and the tools that act on it.

    Copies share unchanged records, so `fork` and `reset` take microseconds.

    Attributes: domain ("retail" or "airline"), tools (OpenAI schemas, for `tools=world.tools`).
    """

    def __init__(self, domain: str, data: dict):
        """data: tables by name, each a dict of records by id, as in tau-bench. Must not be changed afterwards.

        Raises: ValueError for an unknown domain or a missing table.
        """
        _check_domain(domain)
        for table in TABLES[domain]:
            if not isinstance(data.get(table), dict):
                tables = ", ".join(TABLES[domain])
                raise ValueError(f"table {table} is missing; the data of {domain} need {tables}, each with records by id")
        self.domain, self.tools = domain, SCHEMAS[domain]
        self._initial = _InitialRecords({table: data[table] for table in TABLES[domain]})
        self.reset()

    @classmethod
    def load(cls, domain: str, folder: str | Path) -> World:
        """Load the data folder of tau-bench (one file per table) or of tau2 (one `db.json`).

        Raises: FileNotFoundError or ValueError with the path of a missing or invalid file; ValueError as `World()`.
        """
        _check_domain(domain)
        whole = Path(folder) / "db.json"
        if whole.exists():
            return cls(domain, _read(whole))
        return cls(domain, {table: _read(Path(folder) / f"{table}.json") for table in TABLES[domain]})

    def call(self, name: str, arguments: str | dict) -> str:
        """Make one tool call and return the tool's answer. Never raises; see `is_error`.

        A call that fails changes nothing. The answers are tau-bench's, including those to missing, unknown and ill-typed
        arguments, which are Python's own messages. Where tau-bench itself crashes (arguments that are not a JSON object or
        are deeply nested, a fourth certificate for one user), the answer is an error message.

        arguments: the JSON text that a model wrote, or the parsed object.
        """
        if not isinstance(name, str) or name not in DOMAINS[self.domain]:
            return f"Unknown action {name}"
        try:
            given = json.loads(arguments if isinstance(arguments, str) else json.dumps(arguments))
        except (TypeError, ValueError, RecursionError) as error:
            return f"Error: the arguments are not JSON: {error}"
        if _deeper_than(MAX_DEPTH, given):
            return f"Error: the arguments are nested more than {MAX_DEPTH} levels deep"
        if not isinstance(given, dict):
            return f"Error: the arguments must be a JSON object, not {json.dumps(given)[:40]}"
        transaction = Transaction(self._tables)
        try:
            result = DOMAINS[self.domain][name](data=transaction, **given)
            answer = result if isinstance(result, str) else json.dumps(result)
        except Exception as error:  # as in tau-bench, where the agent reads the message of any exception
            return f"Error: {error}"
        transaction.commit()
        return answer

    def records(self, table: str) -> Mapping[str, dict]:
        """Return a table's current records by id; do not modify them."""
        return self._tables[table]

    def reset(self) -> None:
        """Undo all calls."""
        self._tables = {table: ChainMap({}, records) for table, records in self._initial.tables.items()}

    def fork(self) -> World:
        """Return an independent world in the same state."""
        other = object.__new__(World)
        other.domain, other.tools, other._initial = self.domain, self.tools, self._initial
        # A committed record is replaced, never modified, so both worlds can share it.
        other._tables = {
            table: ChainMap(dict(records.maps[0]), *records.maps[1:]) for table, records in self._tables.items()
        }
        return other

    def changes(self) -> dict[str, dict[str, tuple[dict | None, dict]]]:
        """Return the changed records: table -> id -> (the initial record, or None if it is new; the current record)."""
        return {
            table: {
                key: (before, record)
                for key, record in records.maps[0].items()
                if (before := self._initial.tables[table].get(key)) != record
            }
            for table, records in self._tables.items()
        }

    def differences(self) -> list[str]:
        """Return the changed fields, one line each, such as `orders #W1 status: "pending" -> "cancelled"`."""
        return [
            line
            for table, rows in self.changes().items()
            for key, (before, now) in rows.items()
            for line in _differences(f"{table} {key}", before, now)
        ]

    def data(self) -> dict:
        """Return a copy of the whole database in tau-bench's format: tables, records by id."""
        return {table: copy_json(dict(records)) for table, records in self._tables.items()}

    def digest(self) -> str:
        """Return the SHA-256 of the database in hexadecimal, equal to tau-bench's `Env.get_data_hash`."""
        return self._initial.digest({table: records.maps[0] for table, records in self._tables.items()})

    def equals(self, other: World) -> bool:
        """Return whether both worlds have the same `digest`, without hashing them. They must have the same initial data."""
        return self._changed_texts() == other._changed_texts()

    def _changed_texts(self) -> dict[tuple[str, str], str]:
        texts = {(table, k): _text(k, r) for table, records in self._tables.items() for k, r in records.maps[0].items()}
        return {(table, k): text for (table, k), text in texts.items() if text != self._initial.texts[table].get(k)}


def is_error(answer: str) -> bool:
    """Return whether a tool's answer reports that the call failed and changed nothing."""
    return answer.startswith(("Error: ", "Unknown action "))


def _deeper_than(levels: int, value: Any) -> bool:
    """Return whether a JSON value has more than this number of nested objects and lists."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return parts is not None and (levels == 0 or any(_deeper_than(levels - 1, part) for part in parts))


def _check_domain(domain: str) -> None:
    if domain not in DOMAINS:
        raise ValueError(f"there is no domain {domain!r}; choose one of {', '.join(DOMAINS)}")


class _InitialRecords:
    """The initial records of a world and its forks, by table and id; the text to hash is computed once per record."""

    def __init__(self, tables: dict[str, dict[str, Any]]):
        self.tables = tables

    @cached_property
    def texts(self) -> dict[str, dict[str, str]]:
        return {table: {key: _text(key, record) for key, record in rows.items()} for table, rows in self.tables.items()}

    def digest(self, changed: dict[str, Any]) -> str:
        rows = {table: texts | {k: _text(k, r) for k, r in changed[table].items()} for table, texts in self.texts.items()}
        tables = [f"({table!r}, {_tuple([texts[key] for key in sorted(texts)])})" for table, texts in sorted(rows.items())]
        return hashlib.sha256(_tuple(tables).encode()).hexdigest()


def _differences(place: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(key for key in now if key not in before)]:
            yield from _differences(f"{place} {key}", before.get(key), now.get(key))
    elif isinstance(before, list) and isinstance(now, list) and len(before) <= len(now):
        for number, part in enumerate(now):
            yield from _differences(f"{place} {number + 1}", before[number] if number < len(before) else None, part)
    elif before != now:
        old, new = ("nothing" if value is None else json.dumps(value) for value in (before, now))
        yield f"{place}: {old} -> {new}"


def _text(key: str, record: Any) -> str:
    return str((key, _ordered(record)))


def _ordered(value: Any) -> Any:
    """Return a JSON value as nested tuples, objects sorted by key."""
    if isinstance(value, dict):
        return tuple((key, _ordered(value[key])) for key in sorted(value))
    return tuple(map(_ordered, value)) if isinstance(value, list) else value


def _tuple(texts: list[str]) -> str:
    """Return the `repr` of a tuple whose elements have these texts."""
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def _read(path: Path) -> dict:
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}; give a data folder of tau-bench, or one of tau2 with a db.json")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must contain an object of records by id, not a {type(found).__name__}")
    return found
