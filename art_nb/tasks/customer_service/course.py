"""The course's own worlds and tasks, as data/customer_service holds them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path

from art_nb.storage.checkpoints import write_file
from art_nb.tasks.customer_service.tasks import Action, Task
from art_nb.tasks.customer_service.world import World

DATA = Path(__file__).resolve().parents[3] / "data" / "customer_service"
SPLITS = ("train", "val", "test")


@cache
def _loaded(path: Path) -> World:
    return World(path.stem, json.loads(path.read_text(encoding="utf-8")))


def course_world(domain: str, data: Path = DATA) -> World:
    """A copy of the course's shop ("retail") or airline ("airline").

    Raises: ValueError for another domain.
    """
    if domain not in ("retail", "airline"):
        raise ValueError(f"there is no domain {domain!r}: choose retail or airline")
    return _loaded(data / f"{domain}.json").fork()


@cache
def _tasks(path: Path) -> tuple[Task, ...]:
    rows = map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
    return tuple(
        Task(**row | {"actions": tuple(Action(*action) for action in row["actions"]), "outputs": tuple(row["outputs"])})
        for row in rows
    )


def course_tasks(domain: str, split: str, n: int | None = None, data: Path = DATA) -> list[Task]:
    """The first n (or all) tasks of the course's world in a split: train, val or test.

    Raises: ValueError for another domain or split, or more than there are.
    """
    if domain not in ("retail", "airline") or split not in SPLITS:
        raise ValueError(f"there are retail and airline, each {', '.join(SPLITS)}; not {domain!r}, {split!r}")
    found = [task for task in _tasks(data / f"{domain}_tasks.jsonl.gz") if task.split == split]
    if n is not None and not 0 <= n <= len(found):
        raise ValueError(f"the {split} split of {domain} has {len(found):,} tasks; {n:,} were asked for")
    return found[:n]


def save_world(path: Path, data: dict) -> None:
    """Write a world's data, a record a line."""
    tables = []
    for table, rows in data.items():
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(record)}" for key, record in rows.items())
        tables.append(f"{json.dumps(table)}: {{\n{lines}\n}}")
    write_file(path, ("{" + ",\n".join(tables) + "}\n").encode())


def save_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks as gzipped JSON lines; equal tasks make equal files."""
    lines = "".join(json.dumps(asdict(task)) + "\n" for task in tasks)
    write_file(path, gzip.compress(lines.encode(), mtime=0))
