"""Problems: a few files with one bug, visible examples, and hidden tests.

A test is a call and its expected value. Expected values never enter the sandbox: they are compared outside, so that code
cannot look them up. The functions are made by environments/code_repair/maker/maker.py.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from art_nb.storage.checkpoints import read_jsonl

DATA = Path(__file__).resolve().parent / "data"
SPLITS = ("train", "val", "test")
SIZES = ("function", "module")


@dataclass(frozen=True)
class Check:
    """call: Python. gives: the `repr` of the expected value; None if the call passes unless it raises.

    tolerance: None: equal values and types. A number: values that are equal by `==`, or numbers within this tolerance.
    """

    call: str
    gives: str | None = None
    tolerance: float | None = None

    @property
    def snippet(self) -> str:
        """The expression to evaluate."""
        return self.call if self.gives is None else f"repr({self.call})"


@dataclass(frozen=True)
class Bug:
    """The change that broke the code. For rewards and measurements, never for the agent.

    kind: one of `mutations.KINDS`. line: the first line, counted from 1. was, now: the correct and the broken lines.
    """

    kind: str
    file: str
    line: int
    was: tuple[str, ...]
    now: tuple[str, ...]

    def put(self, files: dict[str, str]) -> dict[str, str]:
        """Return the correct files with the bug inserted."""
        return self._exchange(files, self.was, self.now)

    def repair(self, files: dict[str, str]) -> dict[str, str]:
        """Return files that contain the bug with it removed."""
        return self._exchange(files, self.now, self.was)

    def _exchange(self, files: dict[str, str], old: tuple[str, ...], new: tuple[str, ...]) -> dict[str, str]:
        lines = files[self.file].splitlines()
        place = slice(self.line - 1, self.line - 1 + len(old))
        if tuple(lines[place]) != old:
            raise ValueError(f"{self.file}, line {self.line}: expected {old}, found {tuple(lines[place])}")
        lines[place] = new
        return files | {self.file: "\n".join(lines) + "\n"}


@dataclass(frozen=True)
class Problem:
    """Code to repair.

    size: "function" (one file) or "module" (several). entry: the function that the tests call. task: what it should do, if
    there is no docstring. files: name -> source, with the bug. family: functions written in the same way share it.
    bug: None if unknown, as in published sets.
    """

    id: str
    split: str
    size: str
    family: str
    entry: str
    files: dict[str, str]
    visible: tuple[Check, ...]
    hidden: tuple[Check, ...]
    bug: Bug | None = None
    task: str = ""


@cache
def load_problems(path: Path = DATA / "functions.jsonl") -> tuple[Problem, ...]:
    """Load the problems in a file of functions, one per line with all its bugs."""
    return tuple(problem for row in read_jsonl(path) for problem in _problems_of(row))


def _problems_of(row: dict[str, Any]) -> list[Problem]:
    tests = {name: tuple(Check(*test) for test in row[name]) for name in ("visible", "hidden")}
    same = {name: row[name] for name in ("split", "size", "family", "entry")} | tests
    bugs = [Bug(b["kind"], b["file"], b["line"], tuple(b["was"]), tuple(b["now"])) for b in row["bugs"]]
    return [Problem(f"{row['id']}-{n}", files=bug.put(row["files"]), bug=bug, **same) for n, bug in enumerate(bugs)]


def problems(split: str, n: int | None = None, size: str = "function") -> list[Problem]:
    """Return the first n (or all) problems of a split, train, val or test: every function's first bug, then the second ones.

    size: "function", or "module" for three files where the bug is not in the file whose function fails.

    Raises: ValueError for another split or size, or if n is larger than the split.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(SIZES)}, not {size!r}")
    found = [problem for problem in load_problems() if (problem.split, problem.size) == (split, size)]
    found.sort(key=lambda problem: int(problem.id.rpartition("-")[2]))  # each function's first bug, then the second ones
    if n is not None and not 0 <= n <= len(found):
        raise ValueError(f"n must be 0 to {len(found):,}, the {split} problems of this size, not {n:,}")
    return found[:n]


def same_value(answer: str, truth: str, tolerance: float | None = None) -> bool:
    """Return whether two values, given by their `repr`, are equal and of the same types: True is not 1, (1,) is not [1].

    Text that is not a literal (an object, nan) equals nothing. tolerance: see `Check`.
    """
    try:
        ours, theirs = _literal(answer), _literal(truth)
        if tolerance and isinstance(ours, int | float) and isinstance(theirs, int | float):
            return abs(ours - theirs) <= tolerance
        return _same(ours, theirs) if tolerance is None else ours == theirs
    except (ValueError, SyntaxError, TypeError, OverflowError, MemoryError, RecursionError):
        return False


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except SystemError:  # CPython gh-106905: garbage was collected meanwhile, and its finalizer parsed code
        return ast.literal_eval(text)


def _same(ours: Any, theirs: Any) -> bool:
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if isinstance(ours, dict):
        return _same(sorted(ours, key=repr), sorted(theirs, key=repr)) and all(_same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, set):
        return _same(sorted(ours, key=repr), sorted(theirs, key=repr))
    return ours == theirs


def joined(files: dict[str, str]) -> str:
    """Join files into one source for a sandbox without files: each before those that import from it, without the imports.

    All files share one namespace. In an import cycle, the file that is reached first comes last. Only imports of the form
    `from module import name`, unindented and on one line, are recognised.
    """
    if len(files) == 1:
        return next(iter(files.values()))
    modules = {name.removesuffix(".py"): name for name in files}
    done: list[str] = []

    def add(name: str, waiting: tuple[str, ...]) -> None:
        for module in imported(files[name]):
            if (other := modules.get(module)) and other not in (*done, *waiting):
                add(other, (*waiting, other))
        done.append(name)

    for name in files:
        if name not in done:
            add(name, (name,))
    return "\n".join(_without_imports(files[name], modules) for name in done)


def imported(text: str) -> list[str]:
    """Return the modules of lines of the form `from module import name`, in order."""
    return [line.split()[1] for line in text.splitlines() if line.startswith("from ") and len(line.split()) > 3]


def _without_imports(text: str, modules: Sequence[str] | dict[str, str]) -> str:
    lines = text.splitlines()
    ours = [line.startswith("from ") and len(line.split()) > 3 and line.split()[1] in modules for line in lines]
    return "\n".join("" if is_ours else line for line, is_ours in zip(lines, ours, strict=True))
