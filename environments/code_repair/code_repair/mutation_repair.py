"""Code repair by choosing mutations: each line lists the kinds of mutation that apply to it, numbered.

This is the task of `environment`, made easier for a model that cannot write code: the same one-file problems, tests and
reward. A `mend` names a kind of mutation (`mutations.KINDS`) on a line; it starts from the given code and is kept if more
examples pass than before. When the turns run out, the code counts as submitted. No observation depends on where the bug is:
each comes from running the examples.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import Any

from art_nb.environments import RefusedCall, ToolEnvironment, tool
from code_repair.environment import Repair
from code_repair.mutations import Mutation, mutations
from code_repair.players import special_cased
from code_repair.problems import Check, Problem, load_problems
from code_repair.sandbox import Limits, MontySandbox, Sandbox
from code_repair.trials import Verdict, judge

MUTATION_TURNS = 8
WRONG_REWARD = -0.25  # for submitting code that fails a rewarded test


@cache
def mutation_sandbox() -> Sandbox:
    """Return a sandbox with a limit of 0.2 seconds per run: many mutations do not terminate."""
    return MontySandbox(Limits(seconds=0.2))


def mutation_message(problem: Problem, sandbox: Sandbox | None = None) -> str:
    """Return the agent's task: the code, each line with its numbered kinds of mutation, and the first example that fails.

    A docstring of one line is left out: the small models that this task is for do not read English.
    """
    text = _source(problem)
    verdict = cached_verdict(sandbox or mutation_sandbox(), text, problem.visible)
    code = [
        line + _offer(text, number)
        for number, line in enumerate(text.splitlines(), 1) if not line.lstrip().startswith('"""')
    ]  # fmt: skip
    return "\n".join([*code, *verdict.summary(most=1).splitlines()])


def _offer(text: str, number: int) -> str:
    kinds = [f"{kind} {change}" for change, (kind, line) in enumerate(mutation_sites(text), 1) if line == number]
    return f"  # {', '.join(kinds)}" if kinds else ""


class MutationRepair(Repair):
    """One repair by choosing mutations.

    Attributes: those of `Repair`; given (the given code), tried (kind and line of each `mend` call that was carried out).

    Raises: ValueError for a problem with several files.
    """

    def __init__(
        self, problem: Problem, sandbox: Sandbox | None = None, max_turns: int = MUTATION_TURNS, paid_by: str = "hidden"
    ):
        self.given = _source(problem)
        super().__init__(problem, sandbox or mutation_sandbox(), max_turns, paid_by)
        self.tried: list[tuple[str, int]] = []

    def first_message(self) -> str:
        return mutation_message(self.problem, self.sandbox)

    @tool
    def mend(self, change: int) -> str:
        """
        Try the mutations with this number on the original code; keep the best if more examples pass.

        A number that was tried before is replaced by the next untried one, if there is one.

        Args:
            change: its number, from 1.
        """
        sites = mutation_sites(self.given)
        if not 1 <= change <= len(sites):
            raise RefusedCall(f"changes are numbered from 1 to {len(sites)}")
        in_turn = sites[change - 1 :] + sites[: change - 1]
        kind, line = next((site for site in in_turn if site not in self.tried), in_turn[0])
        tried = mutations_at(self.given, kind, line)
        (file,) = self.files
        self.tried.append((kind, line))
        self.edits += 1
        self.runs += len(tried)
        if not self.found and any(self._changes_bug(file, mutation) for mutation in tried):
            self.found = self.edits
        passing, text = best_mutation(self.sandbox, self.given, kind, line, self.problem.visible)
        if passing > (before := self._passing()):
            self.files = {file: text}
        return self._report(max(passing, before))

    @tool
    def answer_example(self, example: int) -> str:
        """
        Write an if that answers an example.

        Args:
            example: its number, from 1.
        """
        if not 1 <= example <= len(self.problem.visible):
            raise RefusedCall(f"examples are counted from 1 to {len(self.problem.visible)}")
        test = self.problem.visible[example - 1]
        if test.gives is None:
            raise RefusedCall("this example gives no value")
        ((file, text),) = self.files.items()
        self.files = {file: special_cased(text, self.problem.entry, [test])}
        self.edits += 1
        return self._report(self._passing())

    def run_out(self, observation: str) -> str:
        observation = super().run_out(observation)
        self.ended_by = "submitted"
        return observation

    def progress(self) -> float:
        """Return a simpler score than `reward`: 1 if the current code passes all rewarded tests, else 0.

        At the end, `WRONG_REWARD` instead of 0, and -1 after a malformed call.
        """
        if self.ended_by == "malformed":
            return -1.0
        rewarded = self.problem.visible if self.paid_by == "visible" else self.problem.hidden
        return 1.0 if self.verdict(self.files, rewarded).passed else WRONG_REWARD if self.over else 0.0

    def _changes_bug(self, file: str, mutation: Mutation) -> bool:
        lines = self.given.splitlines()[mutation.first - 1 : mutation.last]
        return self.touches_bug(file, mutation.first, mutation.last, lines, list(mutation.lines))

    def verdict(self, files: dict[str, str], tests: tuple[Check, ...]) -> Verdict:
        (text,) = files.values()
        return cached_verdict(self.sandbox, text, tests)

    def _passing(self) -> int:
        return sum(self.verdict(self.files, self.problem.visible).passes)

    def _report(self, passing: int) -> str:
        self.seen = passing == len(self.problem.visible)
        return f"{passing} of {len(self.problem.visible)} examples pass."


MUTATION_TOOLS = MutationRepair.tools
"""The tools' OpenAI schemas, sorted by name as TRL lists them."""


class MutationRepairEnvironment(ToolEnvironment, episode=MutationRepair):
    """Repair by choosing mutations, for TRL's `environment_factory`. Used like `CodeRepairEnvironment`."""

    episode: MutationRepair

    def __init__(self, problems: Iterable[Problem] | None = None, **options: Any):
        """problems: by default all with one file. options: of `MutationRepair`. Raises: ValueError if there are none."""
        chosen = [problem for problem in load_problems() if len(problem.files) == 1] if problems is None else problems
        self._problems = {problem.id: problem for problem in chosen}
        if not self._problems:
            raise ValueError("problems is empty: expected at least one; leave it out for all problems")
        self._options = options
        self.reset()

    def reset(self, problem: str = "", **row: Any) -> str:
        """Start the repair of this problem, by default the first. Returns its first message.

        Other columns are ignored. Raises: ValueError for an unknown problem.
        """
        problem = problem or next(iter(self._problems))
        if problem not in self._problems:
            raise ValueError(f"problem is {problem!r}: expected the id of one of this environment's problems")
        self.episode = MutationRepair(self._problems[problem], **self._options)
        return self.episode.first_message()


def frequent_kinds(problems: Iterable[Problem]) -> list[str]:
    """Return the kinds of mutation, sorted by the number of bugs of a kind per line that offers it, highest first."""
    bugs: Counter[str] = Counter()
    offers: Counter[str] = Counter()
    for problem in problems:
        bugs.update([problem.bug.kind] if problem.bug else [])
        offers.update(kind for kind, _ in mutation_sites(_source(problem)))
    return sorted(offers, key=lambda kind: bugs[kind] / offers[kind], reverse=True)


def random_mutation_player(
    rng: random.Random, tries: int, kinds: Sequence[str] = ()
) -> Callable[[MutationRepair], None]:
    """Return a player that tries mutations in random order, none twice, until all examples pass or `tries` are used up.

    tries: capped at the repair's `max_turns`, as for a model. kinds: to try first, in this order.
    """

    def player(repair: MutationRepair) -> None:
        sites = mutation_sites(repair.given)
        drawn = list(range(1, len(sites) + 1))
        rng.shuffle(drawn)
        ranks = {kind: rank for rank, kind in enumerate(kinds)}
        drawn.sort(key=lambda change: ranks.get(sites[change - 1][0], len(ranks)))
        for change in drawn[: min(tries, repair.max_turns)]:
            repair.mend(change)
            if repair.seen:
                break
        repair.submit()

    return player


def _source(problem: Problem) -> str:
    if len(problem.files) != 1:
        raise ValueError(f"problem {problem.id} has {len(problem.files)} files: expected one; use CodeRepair for several")
    return next(iter(problem.files.values()))


@lru_cache(maxsize=8192)
def mutations_at(text: str, kind: str, line: int) -> tuple[Mutation, ...]:
    """Return the mutations of a kind that begin on a line, counted from 1."""
    return tuple(mutation for mutation in _all_mutations(text) if (mutation.kind, mutation.first) == (kind, line))


@lru_cache(maxsize=1024)
def _all_mutations(text: str) -> list[Mutation]:
    return mutations(text)


def mutation_sites(text: str) -> list[tuple[str, int]]:
    """Return each (kind, line) that has a mutation, in the order of the text, as offered to the agent: numbered from 1."""
    return list(dict.fromkeys((mutation.kind, mutation.first) for mutation in _all_mutations(text)))


def best_mutation(sandbox: Sandbox, text: str, kind: str, line: int, tests: tuple[Check, ...]) -> tuple[int, str]:
    """Return (number of tests that pass, code): of the text and its mutations, the first that passes the most tests."""
    sources = [text, *(mutation.text for mutation in mutations_at(text, kind, line))]
    passing = [sum(cached_verdict(sandbox, source, tests).passes) for source in sources]
    best = passing.index(max(passing))
    return passing[best], sources[best]


@lru_cache(maxsize=32_768)
def cached_verdict(sandbox: Sandbox, text: str, tests: tuple[Check, ...]) -> Verdict:
    """Run tests on code, or return the cached verdict: the repairs of a group try the same mutations."""
    return judge(sandbox, {"": text}, tests)
