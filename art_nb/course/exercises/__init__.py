"""Exercises that check themselves: an answer is compared with the right one, and with mistakes that are often made.

A notebook has three cells for each: a stub, `check("name", answer)`, and a folded solution. `check` says in words
whether the answer is right, not attempted, or wrong; and where it agrees with a known mistake, it names the mistake.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

TOLERANCE = 1e-3


@dataclass(frozen=True)
class Verdict:
    """What `check` found out; a notebook shows its text."""

    status: Literal["not attempted", "wrong", "right"]
    text: str

    def __repr__(self) -> str:
        return {"not attempted": "○ ", "wrong": "✗ ", "right": "✓ "}[self.status] + self.text

    def __str__(self) -> str:
        """For `print`: a sign that the output can't take (a pipe on Windows knows some 250) becomes a question mark."""
        encoding = sys.stdout.encoding or "utf-8"
        return repr(self).encode(encoding, "replace").decode(encoding)


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    right: the right answer: a function, or a plain value.
    cases: makes the inputs to try a function on, anew each time; the first also tells whether there is an answer.
    mistakes: what to say about a mistake -> the answer of someone who makes it.
    observe: what is compared: (function, inputs) -> numbers, tensors, strings, or lists of them. The default is what
      the function returns; another one may look at a gradient as well.
    accept: (answer) -> what is wrong with it, or None. Instead of a comparison, where many answers are right.
    """

    right: Any
    cases: Callable[[], list[tuple]] = lambda: [()]
    mistakes: dict[str, Any] | None = None
    observe: Callable[[Callable, tuple], Any] = lambda function, inputs: function(*inputs)
    accept: Callable[[Any], str | None] | None = None

    def seen(self, answer: Any) -> list:
        """What is observed of an answer on each case."""
        if not callable(answer):
            return [answer]
        return [self.observe(answer, inputs) for inputs in self.cases()]

    def check(self, answer: Any) -> Verdict:
        """The verdict on an answer. An answer that raises is wrong, and the verdict says what it raised."""
        try:
            if answer is None or answer is ... or callable(answer) and answer(*self.cases()[0]) in (None, ...):
                return Verdict("not attempted", "Not attempted yet.")
            seen = self.seen(answer)
        except Exception as error:  # the learner's code: whatever it raises is the news
            return Verdict("wrong", f"Your answer raised {type(error).__name__}: {error}")
        if self.accept:
            hint = self.accept(answer)
        elif callable(answer) != callable(self.right):
            wanted = "a function" if callable(self.right) else f"a value like {type(self.right).__name__}"
            hint = f"Expected {wanted}, got {type(answer).__name__}."
        else:
            hint = self._hint(seen)
        return Verdict("wrong", f"Not yet. {hint}") if hint else Verdict("right", "Right.")

    def _hint(self, seen: list) -> str | None:
        wanted = self.seen(self.right)
        if same(seen, wanted):
            return None
        for hint, mistake in (self.mistakes or {}).items():
            if same(seen, self.seen(mistake)):
                return hint
        if not callable(self.right):
            return f"{seen[0]!r} is not it."
        i = next(i for i in range(len(seen)) if not same(seen[i], wanted[i]))
        return f"For the input\n{show(self.cases()[i])}\nit should give {show(wanted[i])}, and gives {show(seen[i])}."


def checker(exercises: dict[str, Exercise]) -> Callable[[str, Any], Verdict]:
    """The `check` of one notebook."""

    def check(name: str, answer: Any) -> Verdict:
        """Is the answer right? Raises: KeyError when no exercise has this name."""
        if name not in exercises:
            raise KeyError(f"no exercise is called {name!r}; there are {', '.join(exercises)}")
        return exercises[name].check(answer)

    return check


def same(a: Any, b: Any) -> bool:
    """Equal, within 0.1% for numbers; tensors, lists and tuples count as nested lists. NaN equals NaN alone."""
    a, b = (x.tolist() if hasattr(x, "tolist") else x for x in (a, b))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (a != a and b != b)
    return type(a) is type(b) and a == b


def show(value: Any) -> str:
    """A value in few characters: numbers with four digits, tensors as lists, a game as its board."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(show, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    text = value.render() if hasattr(value, "render") else repr(value)
    return text if len(text) < 400 else text[:400] + " ..."
