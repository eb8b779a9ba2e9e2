"""Exercises that check themselves: an answer is compared with the right one and with common mistakes.

A notebook has three cells for each: a stub, `check("name", answer)`, and a folded solution. `check` returns a
verdict: right, not attempted, or wrong. Where the answer equals that of a common mistake, the verdict names the mistake.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

TOLERANCE = 1e-3


@dataclass(frozen=True)
class CheckResult:
    """The result of `check`; a notebook displays its text."""

    status: Literal["not attempted", "wrong", "right"]
    text: str

    def __repr__(self) -> str:
        return {"not attempted": "○ ", "wrong": "✗ ", "right": "✓ "}[self.status] + self.text

    def __str__(self) -> str:
        """Return the text for `print`: "?" for characters that the output cannot encode, as a pipe on Windows."""
        encoding = sys.stdout.encoding or "utf-8"
        return repr(self).encode(encoding, "replace").decode(encoding)


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    right: the right answer: a function, or a plain value.
    cases: returns new inputs for the function at each call; a stub returns None or ... for all of them.
    mistakes: hint -> the answer of a learner who makes this mistake.
    observe: returns the value to compare: (function, inputs) -> numbers, tensors, strings, or lists of them. By default the
      function's result; another one may include a gradient.
    accept: (answer) -> what is wrong with it, or None. Replaces the comparison where many answers are right.
    """

    right: Any
    cases: Callable[[], list[tuple]] = lambda: [()]
    mistakes: dict[str, Any] | None = None
    observe: Callable[[Callable, tuple], Any] = lambda function, inputs: function(*inputs)
    accept: Callable[[Any], str | None] | None = None

    def seen(self, answer: Any) -> list:
        """Return what `observe` gives for an answer on each case."""
        if not callable(answer):
            return [answer]
        return [self.observe(answer, inputs) for inputs in self.cases()]

    def check(self, answer: Any) -> CheckResult:
        """Return the verdict on an answer. An answer that raises is wrong, and the verdict names the exception."""
        try:
            if answer is None or answer is ... or callable(answer) and all(_empty(answer(*case)) for case in self.cases()):
                return CheckResult("not attempted", "Not attempted yet.")
            seen = self.seen(answer)
            hint = self.accept(answer) if self.accept else None
        except Exception as error:  # the learner's code may raise anything
            return CheckResult("wrong", f"Your answer raised {type(error).__name__}: {error}")
        if not self.accept and callable(answer) != callable(self.right):
            wanted = "a function" if callable(self.right) else f"a value like {type(self.right).__name__}"
            hint = f"Expected {wanted}, got {type(answer).__name__}."
        elif not self.accept:
            hint = self._hint(seen)
        return CheckResult("wrong", f"Not yet. {hint}") if hint else CheckResult("right", "Right.")

    def _hint(self, seen: list) -> str | None:
        wanted = self.seen(self.right)
        if same(seen, wanted):
            return None
        for hint, mistake in (self.mistakes or {}).items():
            if same(seen, self.seen(mistake)):
                return hint
        if not callable(self.right):
            return f"{seen[0]!r} is not the right value."
        i = next(i for i in range(len(seen)) if not same(seen[i], wanted[i]))
        return f"For the input\n{show(self.cases()[i])}\nexpected {show(wanted[i])}, got {show(seen[i])}."


def _empty(value: Any) -> bool:
    return value is None or value is ...


def checker(exercises: dict[str, Exercise]) -> Callable[[str, Any], CheckResult]:
    """Return the function `check` of one notebook."""

    def check(name: str, answer: Any) -> CheckResult:
        """Return the verdict on an answer. Raises: KeyError when no exercise has this name."""
        if name not in exercises:
            raise KeyError(f"no exercise is called {name!r}; there are {', '.join(exercises)}")
        return exercises[name].check(answer)

    return check


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal, numbers within 0.1%. Tensors and tuples compare as lists, and NaN equals NaN."""
    a, b = (x.tolist() if hasattr(x, "tolist") else x for x in (a, b))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (a != a and b != b)
    return type(a) is type(b) and a == b


def show(value: Any) -> str:
    """Format a value briefly: numbers with four digits, tensors as lists, a game as its board."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(show, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    text = value.render() if hasattr(value, "render") else repr(value)
    return text if len(text) < 400 else text[:400] + " ..."
