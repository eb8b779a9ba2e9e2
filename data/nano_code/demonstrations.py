"""Demonstrations of mutation repair for the nano base model, by a mediocre player.

The player tries random mutations without regard to what the code should do, none twice; sometimes it special-cases an
example with an `if`; and it submits after a try or two, repaired or not. It works on the course's training functions with
their names exchanged. The training target is the player's distribution over calls, not the call that was drawn.
Conversations are longer than the player would make them, and some numbers are out of range, so that the model also learns
the format of a late turn and of a turn after a refusal.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterable

from code_repair.mutation_repair import MUTATION_TOOLS, MutationRepair, mutation_message, mutation_sites
from code_repair.problems import Problem, problems
from data.demonstration import Demonstration, Recorder

Shares = dict[str, float]

# The start of each call. The player's probability of making it: on the first turn, after an edit that did not help, and when
# all examples pass; and the probability with which the demonstrations show it.
MEND = '{"name": "mend", "arguments": {"change": '
ANSWER = '{"name": "answer_example", "arguments": {"example": '
SUBMIT = '{"name": "submit", "arguments": {'
FIRST = {MEND: 0.8, ANSWER: 0.1, SUBMIT: 0.1}
LATER = {MEND: 0.45, ANSWER: 0.12, SUBMIT: 0.43}
PASSING = {MEND: 0.15, ANSWER: 0.05, SUBMIT: 0.8}
SHOWN = {MEND: 0.84, ANSWER: 0.11, SUBMIT: 0.05}
SHOWN_PASSING = {MEND: 0.3, ANSWER: 0.1, SUBMIT: 0.6}
OUT_OF_RANGE = 0.03  # share of numbers that are shown out of range; they are never a target
TURNS = 8  # at most, of one conversation
SYLLABLES = [a + b for a in "bcdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "in", "ot", "us")]


class DemonstrationsCode:
    """Draw repairs of a split's functions. offered: the number of mutations offered in the last repair."""

    def __init__(self, rng: random.Random, split: str = "train"):
        self.rng, self.problems = rng, problems(split)
        self.offered = 0
        self.words = sorted({name for problem in self.problems for name in names(problem)})

    def __call__(self, turns: int = TURNS) -> Demonstration:
        """Return one repair of at most `turns` turns."""
        problem = self.rng.choice(self.problems)
        repair = MutationRepair(problem, max_turns=turns)
        self.offered = len(mutation_sites(repair.given))
        recorder = Recorder(self.renamed(problem, mutation_message(problem)))
        while not repair.over:
            name, arguments, shares = mediocre_repairer(self.rng, repair)
            recorder.call(name, arguments, repair.call(name, arguments), shares)
        return recorder.demonstration(self.rng, MUTATION_TOOLS)

    def renamed(self, problem: Problem, text: str) -> str:
        """Return the text with new names for the function and its variables: names from other functions, or invented."""
        new = self.rng.sample(self.words, len(own := names(problem)))
        for i in range(len(new)):
            if self.rng.random() < 0.4:
                new[i] = "_".join("".join(self.rng.choices(SYLLABLES, k=2)) for _ in range(self.rng.choice((1, 1, 1, 2))))
        exchanged = dict(zip(own, new, strict=True))
        return re.sub(r"[A-Za-z_]\w*", lambda found: exchanged.get(found[0], found[0]), text)


def names(problem: Problem) -> list[str]:
    """Return the names of the functions and variables in a problem's code, each once."""
    nodes = [node for text in problem.files.values() for node in ast.walk(ast.parse(text))]
    stored = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    given = [node.arg for node in nodes if isinstance(node, ast.arg)]
    return list(dict.fromkeys([node.name for node in nodes if isinstance(node, ast.FunctionDef)] + given + stored))


def mediocre_repairer(
    rng: random.Random, repair: MutationRepair, patient: bool = True
) -> tuple[str, dict, tuple[Shares, ...]]:
    """Return (tool, arguments, the target distributions of the words of the call).

    patient: continue for longer than the player would.
    """
    left = [change for change, place in enumerate(mutation_sites(repair.given), 1) if place not in repair.tried]
    wanted = PASSING if repair.seen else LATER if repair.turns else FIRST
    name = _draw(rng, wanted if not patient else SHOWN_PASSING if repair.seen else SHOWN)
    if name == SUBMIT or (name == MEND and not left):
        return "submit", {}, (wanted,)
    if name == ANSWER:
        count = len(repair.problem.visible)
        example, examples = _numbered(rng, range(1, count + 1), count)
        return "answer_example", {"example": example}, (wanted, examples)
    change, changes = _numbered(rng, left, len(mutation_sites(repair.given)))
    return "mend", {"change": change}, (wanted, changes)


def _numbered(rng: random.Random, left: Iterable[int], count: int) -> tuple[int, Shares]:
    """Return (a number of those left, rarely one greater than `count`; the uniform distribution over those left)."""
    shares = _uniform(map(str, left))
    if rng.random() >= OUT_OF_RANGE:
        return int(_draw(rng, shares)), shares
    number = rng.randint(count + 1, 99)
    return number, shares | {str(number): 0.0}


def _uniform(words: Iterable[str]) -> Shares:
    """Return the uniform distribution over the words."""
    known = list(words)
    return dict.fromkeys(known, 1 / len(known))


def _draw(rng: random.Random, shares: Shares) -> str:
    return rng.choices(list(shares), list(shares.values()))[0]
