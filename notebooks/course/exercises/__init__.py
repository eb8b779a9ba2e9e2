"""Self-checking exercises: an answer is compared with the right one and with common mistakes.

In a notebook, three cells follow each task: a stub, `check("name", answer)`, and a folded solution. `check` returns a
verdict: right, not attempted, or wrong. If the answer matches a common mistake, the verdict names the mistake.
"""

from __future__ import annotations

import dis
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

TOLERANCE = 1e-3
IDLE = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}  # the instructions of a stub


@dataclass(frozen=True)
class CheckResult:
    """The result of `check`; a notebook displays its text."""

    status: Literal["not attempted", "wrong", "right"]
    text: str

    def __repr__(self) -> str:
        return {"not attempted": "○ ", "wrong": "✗ ", "right": "✓ "}[self.status] + self.text

    def __str__(self) -> str:
        """Return the text for `print`, with "?" for characters that stdout, such as a Windows pipe, cannot encode."""
        encoding = sys.stdout.encoding or "utf-8"
        return repr(self).encode(encoding, "replace").decode(encoding)


def result(function: Callable, inputs: tuple) -> Any:
    """Return the function's result, as `Exercise.observe` does by default."""
    return function(*inputs)


def collected(kind: Callable = list) -> Callable[[Callable, tuple], Any]:
    """Return an `observe` for a result that may be any iterable: `kind` of it. Another result is shown as it is."""

    def observe(function: Callable, inputs: tuple) -> Any:
        value = result(function, inputs)
        return kind(value) if isinstance(value, Iterable) else value

    return observe


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    right: the right answer: a function, or a plain value.
    cases: returns the function's inputs, one tuple per call; a stub returns None or `...` for all of them.
    mistakes: hint -> the answer of a learner who makes this mistake.
    observe: returns the value to compare: (function, inputs) -> numbers, tensors, strings, or lists of them.
      Default: the function's result. The value may also include a gradient.
    accept: (answer) -> a hint, or None if the answer is right. Replaces the comparison where many answers are right.
    observed: name of the value that `observe` returns, for the hint; "" for the function's result.
    """

    right: Any
    cases: Callable[[], list[tuple]] = lambda: [()]
    mistakes: dict[str, Any] | None = None
    observe: Callable[[Callable, tuple], Any] = result
    accept: Callable[[Any], str | None] | None = None
    observed: str = ""

    def inputs(self) -> list[tuple]:
        """Return fresh copies of the inputs: an answer may change the lists and dicts that it gets."""
        return [tuple(deepcopy(each) if isinstance(each, list | dict) else each for each in case) for case in self.cases()]

    def seen(self, answer: Any) -> list:
        """Return the values to compare, one per case."""
        if not callable(answer):
            return [answer]
        return [call(answer, inputs, self.observe) for inputs in self.inputs()]

    def check(self, answer: Any) -> CheckResult:
        """Return the verdict on an answer. One that raises is wrong; the verdict shows the exception and any known line."""
        if answer is None or answer is ...:
            return CheckResult("not attempted", "Not attempted yet.")
        if callable(answer) != callable(self.right) or inspect.iscoroutinefunction(answer):
            wanted = "a function (`def`)" if callable(self.right) else f"a value like {type(self.right).__name__}"
            wanted = "a class" if isinstance(self.right, type) else wanted
            given = "one that is async" if callable(answer) and callable(self.right) else type(answer).__name__
            return CheckResult("wrong", f"Not yet. Expected {wanted}, got {given}.")
        try:
            if callable(answer) and all(_empty(call(answer, inputs)) for inputs in self.inputs()):
                return _nothing_returned(answer)
            hint = self.accept(answer) if self.accept else self._hint(self.seen(answer))
        except (Exception, NeverEnds) as error:  # the learner's code may raise anything
            notes = (note if note.startswith(", for the input") else f"\n{note}" for note in getattr(error, "__notes__", []))
            text = f"Your answer raised {type(error).__name__}: {error}{_line(error, answer)}{''.join(notes)}"
            return CheckResult("wrong", text)
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
        what = f"{self.observed} " if self.observed else ""
        return f"For the input\n{show(self.inputs()[i])}\nexpected {what}{show(wanted[i])}, got {show(seen[i])}."


class NeverEnds(BaseException):
    """Raised to stop an endless answer. The answer's own `except Exception` clauses do not catch it."""


def call(answer: Callable, inputs: tuple, observe: Callable[[Callable, tuple], Any] = result) -> Any:
    """Call an answer, by `observe`. An exception is re-raised with the input added."""
    shown = show(inputs)  # before the answer changes them
    try:
        return observe(answer, inputs)
    except Exception as error:
        error.add_note(f", for the input\n{shown}")
        raise


def _empty(value: Any) -> bool:
    return value is None or value is ...


def _nothing_returned(answer: Callable) -> CheckResult:
    """Return the verdict on a function that returned nothing: a stub, which computes nothing, or one that lacks a return."""
    code = getattr(inspect.unwrap(answer), "__code__", None)
    if code and {instruction.opname for instruction in dis.get_instructions(code)} - IDLE:
        return CheckResult("wrong", "Your function returned None: is a `return` missing?")
    return CheckResult("not attempted", "Not attempted yet.")


def _line(error: BaseException, answer: Any) -> str:
    """Return " (line n of its cell)" for the answer's last traceback frame, "" if none."""
    file = getattr(getattr(inspect.unwrap(answer), "__code__", None), "co_filename", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" (line {lines[-1]} of its cell)" if lines else ""


def is_number(value: Any, kind: type = Real) -> bool:
    """Return whether a value is a finite number, Python's or numpy's. kind: `numbers.Integral` for an integer."""
    known = isinstance(value, kind) and not isinstance(value, bool)
    return known and (isinstance(value, Integral) or math.isfinite(value))


def checker(exercises: dict[str, Exercise]) -> Callable[[str, Any], CheckResult]:
    """Return the function `check` of one notebook."""

    def check(name: str, answer: Any) -> CheckResult:
        """Return the verdict on an answer. Raises: KeyError when no exercise has this name."""
        if name not in exercises:
            raise KeyError(f"no exercise is called {name!r}; the exercises are {', '.join(exercises)}")
        return exercises[name].check(answer)

    return check


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal: numbers to 0.1% or 0.001, NaN equals NaN, tensors and tuples as lists."""
    a, b = (x.tolist() if hasattr(x, "tolist") else x for x in (a, b))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Real) and isinstance(b, Real):
        return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (a != a and b != b)
    return type(a) is type(b) and a == b


def show(value: Any) -> str:
    """Format a value, cut if it is long: floats with four digits, tensors as lists, a game as its board."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        inner, limit = ", ".join(map(show, value)), 4000
        text = f"[{inner}]" if isinstance(value, list) else f"({inner})"
    else:
        text, limit = value.render() if hasattr(value, "render") else repr(value), 400
    return text if len(text) < limit else text[:limit] + " ..."
