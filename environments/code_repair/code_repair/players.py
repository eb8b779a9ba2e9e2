"""Players that repair code without a model: by trying mutations, special-casing the examples, or undoing the known bug."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice

from art_nb.environments import play
from code_repair.environment import CodeRepair
from code_repair.mutations import Mutation, mutations
from code_repair.problems import Check
from code_repair.source import common_ends, last_line, node_text, parse, walk

__all__ = [
    "Player", "candidates", "guessing_player", "knowing_player", "mutation_player", "play", "special_case_player",
    "special_cased",
]  # fmt: skip

Player = Callable[[CodeRepair], None]


def candidates(repair: CodeRepair) -> Iterator[tuple[str, Mutation]]:
    """Yield (file, mutation) for every mutation of the current code, file by file, in the order of the text."""
    return ((file, mutation) for file, text in repair.files.items() for mutation in mutations(text))


def mutation_player(seed: int | None = None, most: int | None = None) -> Player:
    """Return a player that tries one mutation after another and submits the first with which all examples pass.

    It runs the examples without a tool call: the runs count in `repair.runs`, not as turns.
    seed: shuffles the order; None keeps the order of the text. most: mutations to try before it submits the given code.
    """

    def player(repair: CodeRepair) -> None:
        tries = list(candidates(repair))
        if seed is not None:
            random.Random(f"{seed} {repair.problem.id}").shuffle(tries)
        for file, change in islice(tries, most):
            if repair.visible(repair.files | {file: change.text}).passed:
                _write(repair, file, change.text)
                break
        repair.submit()

    return player


def guessing_player(seed: int) -> Player:
    """Return a player that tries single random mutations with the tools until one passes or turns run low, then submits."""

    def player(repair: CodeRepair) -> None:
        rng = random.Random(f"{seed} {repair.problem.id}")
        tries = list(candidates(repair))
        rng.shuffle(tries)
        for file, change in tries:
            if repair.turns > repair.max_turns - 4:
                break
            _write(repair, file, change.text)
            repair.run_tests()
            if repair.seen:
                break
            repair.undo()
        repair.submit()

    return player


def special_case_player(repair: CodeRepair) -> None:
    """Answer each failing example with an `if` at the start of the function; repair nothing."""
    verdict = repair.visible()
    failing = [test for test, passes in zip(verdict.tests, verdict.passes, strict=True) if not passes]
    file = repair.file_named("")
    text = repair.files[file]
    _write(repair, file, special_cased(text, repair.problem.entry, failing))
    repair.submit()


def special_cased(text: str, entry: str, tests: list[Check]) -> str:
    """Return the source with, at the start of the function, an `if` for each test that returns the test's expected value."""
    functions = (node for node in walk(parse(text)) if node.type == "function_definition")
    function = next(node for node in functions if node_text(node.child_by_field_name("name")) == entry)
    parameters = function.child_by_field_name("parameters").named_children
    names = [name for each in parameters for name in [node_text(n) for n in walk(each) if n.type == "identifier"][:1]]
    first = function.child_by_field_name("body").named_children[0]
    start = last_line(first) if node_text(first).startswith(('"""', "'''")) else first.start_point[0]
    cases = []
    for test in tests:
        condition = " and ".join(f"{name} == {value}" for name, value in _arguments(test.call, names)) or "True"
        cases += [f"    if {condition}:", f"        return {test.gives}"]
    lines = text.splitlines()
    return "\n".join([*lines[:start], *cases, *lines[start:]]) + "\n"


def _arguments(call: str, names: list[str]) -> list[tuple[str, str]]:
    """Return (parameter, source text) of each argument of a call. names: of the parameters."""
    found = next(node for node in walk(parse(call)) if node.type == "argument_list").named_children
    keywords = [node.child_by_field_name("name") if node.type == "keyword_argument" else None for node in found]
    return [
        (node_text(keyword), node_text(node.child_by_field_name("value"))) if keyword else (name, node_text(node))
        for name, keyword, node in zip(names, keywords, found, strict=False)
    ]


def knowing_player(repair: CodeRepair) -> None:
    """Undo the bug: the best possible repair. Raises: ValueError for a problem whose bug is not known."""
    bug = repair.problem.bug
    if bug is None:
        raise ValueError(f"the bug of problem {repair.problem.id} is not known; choose a problem with `bug`")
    _write(repair, bug.file, bug.repair(repair.files)[bug.file])
    repair.run_tests()
    repair.submit()


def _write(repair: CodeRepair, file: str, text: str) -> str:
    """Replace the lines in which a file differs from `text`, in one tool call."""
    old, new = repair.files[file].splitlines(), text.splitlines()
    start, tail = common_ends(old, new)
    start = max(0, min(start, len(old) - tail - 1))  # at least one line: an insertion also replaces the line before it
    code = "\n".join(new[start : len(new) - tail])
    return repair.replace_lines(first=start + 1, last=len(old) - tail, code=code, file=file)
