"""Repairing code in few words: beside each line stand the kinds of small change there are for it, numbered, and the agent
says a number.

It is the task of `environment`, made smaller for a model that can't write code: same problems, same hidden tests, same
reward. What is made smaller: an edit is no text but a kind of small change (`mutations.KINDS`) on a line, every edit starts
again from the code as it was given and is kept if more examples pass than before, and after the last turn the code counts
as handed in. Nothing that is said depends on where the bug is: what the tools tell comes from running the examples.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any

from art_nb.tasks.code_repair.environment import CodeRepair, tool_schema
from art_nb.tasks.code_repair.mutations import Mutation, mutations
from art_nb.tasks.code_repair.players import Player, special_cased
from art_nb.tasks.code_repair.problems import Check, Problem, load_problems
from art_nb.tasks.code_repair.sandbox import Limits, MontySandbox, Sandbox
from art_nb.tasks.code_repair.trials import Verdict, judge

MENDING_TURNS = 8
WRONG = -0.25  # for handing in code that fails a test that pays

MENDING_TOOLS = [
    tool_schema("answer_example", "Write an if that answers an example.", ["example"], example="its number, from 1."),
    tool_schema(
        "mend",
        "Try the small changes of a number on the code as it was given; the best is kept if more examples pass.",
        ["change"], change="its number, from 1.",
    ),
    tool_schema("submit", "Hand in the code as it is. This ends the repair."),
]  # fmt: skip
"""The schemas that TRL derives from `MendingEnvironment`'s tools."""


@cache
def mending_sandbox() -> Sandbox:
    """What most small changes come to is wrong, and some of them never end: a run may take a fifth of a second."""
    return MontySandbox(Limits(seconds=0.2))


def mending_message(problem: Problem, sandbox: Sandbox | None = None) -> str:
    """What the agent is asked: each line with the kinds of small change that there are for it, numbered, as an editor might
    offer them, and the first example that fails.

    The docstring is left out: it is for readers of English.
    """
    text = _source(problem)
    verdict = verdict_of(sandbox or mending_sandbox(), text, problem.visible)
    code = [
        line + _offer(text, number)
        for number, line in enumerate(text.splitlines(), 1) if not line.lstrip().startswith('"""')
    ]  # fmt: skip
    return "\n".join([*code, *verdict.said(most=1).splitlines()])


def _offer(text: str, number: int) -> str:
    kinds = [f"{kind} {change}" for change, (kind, line) in enumerate(places(text), 1) if line == number]
    return f"  # {', '.join(kinds)}" if kinds else ""


class Mending(CodeRepair):
    """One repair by `MENDING_TOOLS`.

    Fields: given (the code as it was given), tried (the kind and line of each `mend` that was carried out), gains (what each
    call earned: 1 if with it all tests that pay pass, less what was earned if they no longer do; the last call -1 if it is
    malformed, `WRONG` if the code is still wrong). So each call is paid for what it did; the sum is 1 for a repair.

    Raises: ValueError for a problem of several files.
    """

    tools = MENDING_TOOLS
    out_of_turns = "submitted"

    def __init__(
        self, problem: Problem, sandbox: Sandbox | None = None, max_turns: int = MENDING_TURNS, paid_by: str = "hidden"
    ):
        self.given = _source(problem)
        super().__init__(problem, sandbox or mending_sandbox(), max_turns, paid_by)
        self.tried: list[tuple[str, int]] = []
        self.gains: list[float] = []

    def call(self, name: str | None, arguments: str | dict | None) -> str:
        """As `CodeRepair.call`."""
        turns, said = self.turns, super().call(name, arguments)
        if self.turns > turns:
            self.gains.append(self._standing() - sum(self.gains))
        return said

    def _standing(self) -> float:
        if self.ended_by == "malformed":
            return -1.0
        paying = self.problem.visible if self.paid_by == "visible" else self.problem.hidden
        return 1.0 if self.judged(self.files, paying).passed else WRONG if self.over else 0.0

    def _mend(self, change: int) -> str:
        offered = places(self.given)
        if not 1 <= change <= len(offered):
            return self._refuse(f"changes are numbered from 1 to {len(offered)}")
        kind, line = offered[change - 1]
        changes = small_changes(self.given, kind, line)
        (file,) = self.files
        self.tried.append((kind, line))
        self.edits += 1
        self.runs += len(changes)
        if not self.found and any(self._is_place(file, change) for change in changes):
            self.found = self.edits
        passing, text = best_change(self.sandbox, self.given, kind, line, self.problem.visible)
        if passing > (standing := self._passing()):
            self.files = {file: text}
        return self._says(max(passing, standing))

    def _is_place(self, file: str, change: Mutation) -> bool:
        lines = self.given.splitlines()[change.first - 1 : change.last]
        return self._touches_bug(file, change.first, change.last, lines, list(change.lines))

    def _answer_example(self, example: int) -> str:
        if not 1 <= example <= len(self.problem.visible):
            return self._refuse(f"examples are counted from 1 to {len(self.problem.visible)}")
        test = self.problem.visible[example - 1]
        if test.gives is None:
            return self._refuse("this example gives no value")
        ((file, text),) = self.files.items()
        self.files = {file: special_cased(text, self.problem.entry, [test])}
        self.edits += 1
        return self._says(self._passing())

    def judged(self, files: dict[str, str], tests: tuple[Check, ...]) -> Verdict:
        (text,) = files.values()
        return verdict_of(self.sandbox, text, tests)

    def _passing(self) -> int:
        return sum(self.judged(self.files, self.problem.visible).passes)

    def _says(self, passing: int) -> str:
        self.seen = passing == len(self.problem.visible)
        return f"{passing} of {len(self.problem.visible)} examples pass."


def random_mender(rng: random.Random, tries: int) -> Player:
    """Tries what is offered, drawn blindly, nothing twice; submits when all examples pass, or after so many tries."""

    def player(repair: CodeRepair) -> None:
        (text,) = repair.problem.files.values()
        drawn = list(range(1, len(places(text)) + 1))
        rng.shuffle(drawn)
        for change in drawn[: min(tries, repair.max_turns - 1)]:
            repair.call("mend", {"change": change})
            if repair.seen:
                break
        repair.call("submit", {})

    return player


def _source(problem: Problem) -> str:
    if len(problem.files) != 1:
        raise ValueError(f"only a problem of one file can be mended; {problem.id} has {len(problem.files)}")
    return next(iter(problem.files.values()))


@lru_cache(maxsize=8192)
def small_changes(text: str, kind: str, line: int) -> tuple[Mutation, ...]:
    """The small changes of a kind that begin on a line, counted from 1."""
    return tuple(change for change in _all_changes(text) if (change.kind, change.first) == (kind, line))


@lru_cache(maxsize=1024)
def _all_changes(text: str) -> list[Mutation]:
    return mutations(text)


def places(text: str) -> list[tuple[str, int]]:
    """Each (kind, line) for which there is a small change of the text, in its order: what is offered, numbered from 1."""
    return list(dict.fromkeys((change.kind, change.first) for change in _all_changes(text)))


def best_change(sandbox: Sandbox, text: str, kind: str, line: int, tests: tuple[Check, ...]) -> tuple[int, str]:
    """(how many of the tests pass, the code): of the text and its small changes the first with which most pass."""
    sources = [text, *(change.text for change in small_changes(text, kind, line))]
    passing = [sum(verdict_of(sandbox, source, tests).passes) for source in sources]
    best = passing.index(max(passing))
    return passing[best], sources[best]


@lru_cache(maxsize=32_768)
def verdict_of(sandbox: Sandbox, text: str, tests: tuple[Check, ...]) -> Verdict:
    """How code does on tests. What was run lately is not run again: a group makes the same changes many times."""
    return judge(sandbox, {"": text}, tests)


class MendingEnvironment:
    """The task as a tool-calling episode for TRL's `environment_factory`, as `CodeRepairEnvironment` is the larger one."""

    def __init__(self, problems: Iterable[Problem] | None = None, **options: Any):
        chosen = problems or (problem for problem in load_problems() if len(problem.files) == 1)
        self._problems = {problem.id: problem for problem in chosen}
        self._options = options
        self.reset(next(iter(self._problems)))

    def reset(self, problem: str = "", **kwargs: Any) -> str:
        """Starts the repair of this problem and returns its first message; the row's other columns are ignored."""
        self.repair = Mending(self._problems[problem or next(iter(self._problems))], **self._options)
        return mending_message(self.repair.problem, self.repair.sandbox)

    def answer_example(self, example: int) -> str:
        """
        Write an if that answers an example.

        Args:
            example: its number, from 1.
        """
        return self.repair.call("answer_example", {"example": example})

    def mend(self, change: int) -> str:
        """
        Try the small changes of a number on the code as it was given; the best is kept if more examples pass.

        Args:
            change: its number, from 1.
        """
        return self.repair.call("mend", {"change": change})

    def submit(self) -> str:
        """
        Hand in the code as it is. This ends the repair.
        """
        return self.repair.call("submit", {})

    def get_reward(self) -> float:
        """The repair's reward; one that was broken off counts as one that changed nothing."""
        return self.repair.reward()
