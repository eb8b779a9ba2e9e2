"""What the nano base model is taught about repairing code: the tools of `mending`, by a mediocre mender.

It tries a change that is offered, drawn without regard to what the code should do; tries nothing twice; now and then
answers an example by an `if`; and hands in what it has after a try or two, repaired or not. It works on the course's
training functions, their names exchanged. The target is what it might do (a distribution), not what was drawn:
conversations go on for longer than it would, and now and then a number is past the end, so that the model also knows how a
late turn is written, and one after a refusal.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterable

from art_nb.tasks.code_repair.mending import MENDING_TOOLS, Mending, mending_message, places
from art_nb.tasks.code_repair.problems import Problem, problems
from data.demonstration import Demonstration, Recorder

Shares = dict[str, float]

# How each call begins, and how likely the mender is to make it: at first, after a try that did not help, and when all
# examples pass; and how likely a call is to be shown.
MEND = '{"name": "mend", "arguments": {"change": '
ANSWER = '{"name": "answer_example", "arguments": {"example": '
SUBMIT = '{"name": "submit", "arguments": {'
FIRST = {MEND: 0.8, ANSWER: 0.1, SUBMIT: 0.1}
LATER = {MEND: 0.45, ANSWER: 0.12, SUBMIT: 0.43}
PASSING = {MEND: 0.15, ANSWER: 0.05, SUBMIT: 0.8}
SHOWN = {MEND: 0.84, ANSWER: 0.11, SUBMIT: 0.05}
SHOWN_PASSING = {MEND: 0.3, ANSWER: 0.1, SUBMIT: 0.6}
PAST_END = 0.03  # the share of numbers that are shown past the end, and never a target
TURNS = 8  # of a conversation that is shown, at most
SYLLABLES = [a + b for a in "bcdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "in", "ot", "us")]


class DemonstrationsCode:
    """Repairs of a split's functions. `offered`: how many changes were offered in the last one."""

    def __init__(self, rng: random.Random, split: str = "train"):
        self.rng, self.problems = rng, problems(split)
        self.offered = 0
        self.words = sorted({name for problem in self.problems for name in names(problem)})

    def __call__(self, turns: int = TURNS) -> Demonstration:
        """One repair, of `turns` turns at most."""
        problem = self.rng.choice(self.problems)
        repair = Mending(problem, max_turns=turns)
        self.offered = len(places(repair.given))
        recorder = Recorder(self.renamed(problem, mending_message(problem)))
        while not repair.over:
            name, arguments, shares = mediocre_mender(self.rng, repair)
            recorder.call(name, arguments, repair.call(name, arguments), shares)
        return recorder.demonstration(self.rng, MENDING_TOOLS)

    def renamed(self, problem: Problem, text: str) -> str:
        """The text with other words for the function and its variables: words of other functions, and invented ones."""
        new = self.rng.sample(self.words, len(own := names(problem)))
        for i in range(len(new)):
            if self.rng.random() < 0.4:
                new[i] = "_".join("".join(self.rng.choices(SYLLABLES, k=2)) for _ in range(self.rng.choice((1, 1, 1, 2))))
        exchanged = dict(zip(own, new, strict=True))
        return re.sub(r"[A-Za-z_]\w*", lambda found: exchanged.get(found[0], found[0]), text)


def names(problem: Problem) -> list[str]:
    """What the code of a problem calls its functions and variables, each once."""
    nodes = [node for text in problem.files.values() for node in ast.walk(ast.parse(text))]
    stored = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    given = [node.arg for node in nodes if isinstance(node, ast.arg)]
    return list(dict.fromkeys([node.name for node in nodes if isinstance(node, ast.FunctionDef)] + given + stored))


def mediocre_mender(rng: random.Random, repair: Mending, patient: bool = True) -> tuple[str, dict, tuple[Shares, ...]]:
    """(a tool, its arguments, the distributions that the words of the call are for the model to learn).

    patient: goes on for longer than the mender would.
    """
    left = [change for change, place in enumerate(places(repair.given), 1) if place not in repair.tried]
    wanted = PASSING if repair.seen else LATER if repair.turns else FIRST
    name = _draw(rng, wanted if not patient else SHOWN_PASSING if repair.seen else SHOWN)
    if name == SUBMIT or (name == MEND and not left):
        return "submit", {}, (wanted,)
    if name == ANSWER:
        count = len(repair.problem.visible)
        example, examples = _numbered(rng, range(1, count + 1), count)
        return "answer_example", {"example": example}, (wanted, examples)
    change, changes = _numbered(rng, left, len(places(repair.given)))
    return "mend", {"change": change}, (wanted, changes)


def _numbered(rng: random.Random, left: Iterable[int], count: int) -> tuple[int, Shares]:
    """(a number of those left, rarely one past the `count` that there are; the even distribution over those left)."""
    shares = _even(map(str, left))
    if rng.random() >= PAST_END:
        return int(_draw(rng, shares)), shares
    number = rng.randint(count + 1, 99)
    return number, shares | {str(number): 0.0}


def _even(words: Iterable[str]) -> Shares:
    """The same share for each word."""
    known = list(words)
    return dict.fromkeys(known, 1 / len(known))


def _draw(rng: random.Random, shares: Shares) -> str:
    return rng.choices(list(shares), list(shares.values()))[0]
