"""A customer service world: a database of users and what they bought, and the tools that read and change it.

The tools' names, arguments, answers and the data's shape are those of tau-bench (Yao et al., tau-bench: A Benchmark for
Tool-Agent-User Interaction in Real-World Domains, 2024), so its folders of data load unchanged. With a copy of the
original, tests/test_service_original.py compares. It knows nothing about customers, policies and rewards.
"""

from __future__ import annotations

import hashlib
import json
from collections import ChainMap
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from art_nb.tasks.customer_service.airline import TOOLS as AIRLINE
from art_nb.tasks.customer_service.retail import TOOLS as RETAIL
from art_nb.tasks.customer_service.schemas import SCHEMAS
from art_nb.tasks.customer_service.tool import Draft, copied

DOMAINS = {"retail": RETAIL, "airline": AIRLINE}
TABLES = {"retail": ("orders", "products", "users"), "airline": ("flights", "reservations", "users")}


class World:
    """One episode's copy of a database, and the tools on it.

    All copies share the records they have not changed, so `fork` and `reset` cost next to nothing.

    Fields: domain ("retail" or "airline"), tools (the schemas, to pass to a model as `tools=world.tools`).
    """

    def __init__(self, domain: str, data: dict):
        """data: tables by name, each a dict of records by id, as in tau-bench; it must not be changed afterwards.

        Raises: ValueError for another domain or data that lacks a table.
        """
        if domain not in DOMAINS:
            raise ValueError(f"there is no domain {domain!r}: choose one of {', '.join(DOMAINS)}")
        for table in TABLES[domain]:
            if not isinstance(data.get(table), dict):
                raise ValueError(f"data of {domain} hold {', '.join(TABLES[domain])}, each by id; {table} is missing")
        self.domain, self.tools = domain, SCHEMAS[domain]
        self._shared = _Shared({table: data[table] for table in TABLES[domain]})
        self.reset()

    @classmethod
    def load(cls, domain: str, folder: str | Path) -> World:
        """The world whose data lie in a folder of tau-bench (a file for each table) or of tau2 (one `db.json`).

        Raises: FileNotFoundError or ValueError, naming the file.
        """
        if domain not in DOMAINS:
            raise ValueError(f"there is no domain {domain!r}: choose one of {', '.join(DOMAINS)}")
        whole = Path(folder) / "db.json"
        if whole.exists():
            return cls(domain, _read(whole))
        return cls(domain, {table: _read(Path(folder) / f"{table}.json") for table in TABLES[domain]})

    def call(self, name: str, arguments: str | dict) -> str:
        """Makes one tool call. Whatever is wrong with it is said in the answer, which then starts with `Error: `.

        A call that is refused changes nothing. The answers are tau-bench's, those to missing, unknown and ill-typed
        arguments too, which are Python's own messages there. What makes tau-bench itself fail (arguments that are no JSON
        object, a fourth certificate for one user) is refused in words.

        arguments: JSON as a model writes it, or the object it stands for.
        """
        if not isinstance(name, str) or name not in DOMAINS[self.domain]:
            return f"Unknown action {name}"
        try:
            given = json.loads(arguments if isinstance(arguments, str) else json.dumps(arguments))
        except (TypeError, ValueError, RecursionError) as error:
            return f"Error: the arguments are not JSON: {error}"
        if not isinstance(given, dict):
            return f"Error: the arguments must be a JSON object, not {json.dumps(given)[:40]}"
        draft = Draft(self._tables)
        try:
            answer = DOMAINS[self.domain][name](data=draft, **given)
            said = answer if isinstance(answer, str) else json.dumps(answer)
        except Exception as error:  # as tau-bench's environment does, which shows the agent what went wrong
            return f"Error: {error}"
        draft.keep()
        return said

    def records(self, table: str) -> Mapping[str, dict]:
        """A table's records by id as they are now, to be read only."""
        return self._tables[table]

    def reset(self) -> None:
        """Undoes all calls."""
        self._tables = {table: ChainMap({}, records) for table, records in self._shared.tables.items()}

    def fork(self) -> World:
        """A world in the same state, whose further calls leave this one alone."""
        other = object.__new__(World)
        other.domain, other.tools, other._shared = self.domain, self.tools, self._shared
        # Records are replaced, never changed, once a call is over: the same ones serve both worlds.
        other._tables = {
            table: ChainMap(dict(records.maps[0]), *records.maps[1:]) for table, records in self._tables.items()
        }
        return other

    def changes(self) -> dict[str, dict[str, tuple[dict | None, dict]]]:
        """What calls have changed: table, id, (the record at first or None where it is new, the record now)."""
        return {
            table: {
                key: (before, record)
                for key, record in records.maps[0].items()
                if (before := self._shared.tables[table].get(key)) != record
            }
            for table, records in self._tables.items()
        }

    def differences(self) -> list[str]:
        """What calls have changed, a line for each field: `orders #W1 status: "pending" -> "cancelled"`."""
        return [
            line
            for table, rows in self.changes().items()
            for key, (before, now) in rows.items()
            for line in _differences(f"{table} {key}", before, now)
        ]

    def data(self) -> dict:
        """A copy of the whole database in tau-bench's shape: tables, records by id."""
        return {table: copied(dict(records)) for table, records in self._tables.items()}

    def digest(self) -> str:
        """SHA-256 of the database, in hexadecimal: equal databases have equal digests.

        It is the one that tau-bench compares at the end of a task (`Env.get_data_hash`).
        """
        return self._shared.digest({table: records.maps[0] for table, records in self._tables.items()})


class _Shared:
    """The records that all copies of a world start from, by table and id, and what is known of them."""

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
        was, is_ = ("nothing" if value is None else json.dumps(value) for value in (before, now))
        yield f"{place}: {was} -> {is_}"


def _text(key: str, record: Any) -> str:
    return str((key, _ordered(record)))


def _ordered(value: Any) -> Any:
    """A value as tuples, those of an object sorted by key."""
    if isinstance(value, dict):
        return tuple((key, _ordered(value[key])) for key in sorted(value))
    return tuple(map(_ordered, value)) if isinstance(value, list) else value


def _tuple(texts: list[str]) -> str:
    """Python's text of a tuple of values with these texts."""
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def _read(path: Path) -> dict:
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}: expected is a folder of tau-bench's data, or of tau2's with a db.json")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold records by id, not a {type(found).__name__}")
    return found
