"""Agents without a model that repair code: by trying small changes, by answering the examples, by knowing the bug."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from art_nb.tasks.code_repair.environment import CodeRepair, first_message
from art_nb.tasks.code_repair.mutations import Mutation, mutations
from art_nb.tasks.code_repair.problems import Check, Problem
from art_nb.tasks.code_repair.source import common_ends, definitions, parse, walk, words_of
from art_nb.trajectories import Trajectory

Player = Callable[[CodeRepair], None]


def play(player: Player, repair: CodeRepair) -> CodeRepair:
    """Lets a player repair; returns the repair, over or given up."""
    player(repair)
    return repair


class RecordedRepair(CodeRepair):
    """A repair that keeps its calls and results, as the conversation with a model that made them."""

    def __init__(self, problem: Problem, **options: Any):
        super().__init__(problem, **options)
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": first_message(problem)}]

    def call(self, name: str | None, arguments: str | dict | None) -> str:
        result = super().call(name, arguments)
        if name:
            said = arguments if isinstance(arguments, str) else json.dumps(arguments)
            call = {"id": f"call_{self.turns}", "type": "function", "function": {"name": name, "arguments": said}}
            self.messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        else:
            self.messages.append({"role": "assistant", "content": "I give up."})
        return result

    def trajectory(self) -> Trajectory:
        """What was said, and how it came out."""
        bug = self.problem.bug
        return Trajectory(
            messages_and_choices=self.messages, tools=self.tools, reward=self.reward(), metrics=self.metrics(),
            metadata={"problem": self.problem.id, "family": self.problem.family, "bug": bug.kind if bug else ""},
        )  # fmt: skip


def candidates(repair: CodeRepair) -> Iterator[tuple[str, Mutation]]:
    """(file, change) of every small change of the code as it stands, file by file, in the order of the text."""
    return ((file, change) for file, text in repair.files.items() for change in mutations(text))


def mutation_player(seed: int | None = None, most: int | None = None) -> Player:
    """Tries every small change, runs the examples on each, and submits the first with which all pass.

    The trials are made beside the repair, not by its tools: its limit of turns does not hold, `repair.runs` counts them.
    seed: draws the order; None keeps the text's. most: trials after which it gives up.
    """

    def player(repair: CodeRepair) -> None:
        tries = list(candidates(repair))
        if seed is not None:
            random.Random(f"{seed} {repair.problem.id}").shuffle(tries)
        for file, change in islice(tries, most):
            if repair.visible(repair.files | {file: change.text}).passed:
                _write(repair, file, change.text)
                break
        repair.call("submit", {})

    return player


def guessing_player(seed: int) -> Player:
    """Makes small changes drawn at random, one after the other by its tools, and submits when the examples pass."""

    def player(repair: CodeRepair) -> None:
        rng = random.Random(f"{seed} {repair.problem.id}")
        tries = list(candidates(repair))
        rng.shuffle(tries)
        for file, change in tries:
            if repair.turns > repair.max_turns - 4:
                break
            _write(repair, file, change.text)
            repair.call("run_tests", {})
            if repair.seen:
                break
            repair.call("undo", {})
        repair.call("submit", {})

    return player


def special_case_player(repair: CodeRepair) -> None:
    """Answers each failing example by an `if` at the function's start, and repairs nothing."""
    verdict = repair.visible()
    failing = [test for test, passes in zip(verdict.tests, verdict.passes, strict=True) if not passes]
    file = repair.file_named("")
    text = repair.files[file]
    _write(repair, file, special_cased(text, repair.problem.entry, failing))
    repair.call("submit", {})


def special_cased(text: str, entry: str, tests: list[Check]) -> str:
    """The source with an `if` for each test at the start of the function's body, which returns what the test should give."""
    place = next(found for found in definitions(text) if found.name == entry)
    lines = text.splitlines()
    header = lines[place.first - 1]
    names = [part.split("=")[0].strip() for part in header[header.index("(") + 1 : header.rindex(")")].split(",")]
    docstring = 1 if lines[place.first].lstrip().startswith('"""') else 0
    cases = []
    for test in tests:
        values = _arguments(test.call)
        condition = " and ".join(f"{name} == {value}" for name, value in zip(names, values, strict=False))
        cases += [f"    if {condition}:", f"        return {test.gives}"]
    return "\n".join([*lines[: place.first + docstring], *cases, *lines[place.first + docstring :]]) + "\n"


def _arguments(call: str) -> list[str]:
    """The arguments of a call as they are written."""
    found = next(node for node in walk(parse(call)) if node.type == "argument_list")
    return [words_of(node) for node in found.named_children]


def knowing_player(repair: CodeRepair) -> None:
    """Puts back what the bug took out: what can be reached at most."""
    bug = repair.problem.bug
    if bug is None:
        raise ValueError(f"the bug of problem {repair.problem.id} is not known")
    _write(repair, bug.file, bug.repair(repair.files)[bug.file])
    repair.call("run_tests", {})
    repair.call("submit", {})


def _write(repair: CodeRepair, file: str, text: str) -> str:
    """Replaces the lines in which a file differs from `text`."""
    old, new = repair.files[file].splitlines(), text.splitlines()
    start, tail = common_ends(old, new)
    start = max(0, min(start, len(old) - tail - 1))  # a line at least: what is only added goes with the line before
    code = "\n".join(new[start : len(new) - tail])
    return repair.call("replace_lines", {"first": start + 1, "last": len(old) - tail, "code": code, "file": file})
