"""The course's worlds and tasks: loads and saves the files in the folder `data` of this package."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path

from art_nb.storage.checkpoints import write_file
from customer_service.tasks import Action, Task
from customer_service.world import DOMAINS, World

DATA = Path(__file__).resolve().parent / "data"
SPLITS = ("train", "val", "test")


@cache
def _loaded(path: Path) -> World:
    return World(path.stem, json.loads(path.read_text(encoding="utf-8")))


def course_world(domain: str, data: Path = DATA) -> World:
    """Return a new copy of the course's shop ("retail") or airline ("airline").

    Raises: ValueError for an unknown domain.
    """
    if domain not in DOMAINS:
        raise ValueError(f"there is no domain {domain!r}; choose one of {', '.join(DOMAINS)}")
    return _loaded(data / f"{domain}.json").fork()


@cache
def _tasks(path: Path) -> tuple[Task, ...]:
    rows = map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
    return tuple(
        Task(**row | {"actions": tuple(Action(*action) for action in row["actions"]), "outputs": tuple(row["outputs"])})
        for row in rows
    )


def course_tasks(domain: str, split: str, n: int | None = None, data: Path = DATA) -> list[Task]:
    """Return the first n (None: all) of the course's tasks in a split: train, val or test.

    Raises: ValueError for an unknown domain or split, or if the split has fewer than n tasks.
    """
    if domain not in DOMAINS or split not in SPLITS:
        options = f"a domain from {', '.join(DOMAINS)} and a split from {', '.join(SPLITS)}"
        raise ValueError(f"there are no tasks for {domain!r}, {split!r}; choose {options}")
    found = [task for task in _tasks(data / f"{domain}_tasks.jsonl.gz") if task.split == split]
    if n is not None and not 0 <= n <= len(found):
        raise ValueError(f"n must be 0 to {len(found)}, the number of {domain} tasks in {split}, not {n}")
    return found[:n]


def save_world(path: Path, data: dict) -> None:
    """Write a world's data as JSON, one record per line."""
    tables = []
    for table, rows in data.items():
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(record)}" for key, record in rows.items())
        tables.append(f"{json.dumps(table)}: {{\n{lines}\n}}")
    write_file(path, ("{" + ",\n".join(tables) + "}\n").encode())


def save_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks as gzipped JSON lines. Equal tasks give identical files."""
    lines = "".join(json.dumps(asdict(task)) + "\n" for task in tasks)
    write_file(path, gzip.compress(lines.encode(), mtime=0))
