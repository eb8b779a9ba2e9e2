"""The exercises of notebook 07, Code repair."""

from __future__ import annotations

import ast
import itertools
import re

from code_repair.problems import same_value
from course.exercises import Exercise, call, checker, is_number, show

ANSWERS = [
    ("3", "3"), ("3", "4"), ("True", "1"), ("1.0", "1"), ("[1, 2]", "[1,2]"), ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}"),
    ("'3'", "3"), ("<object>", "3"), ("(", "3"), ("[1]", "(1)"), ("None", "None"), ("2 + 1", "3"), ("{[]: 1}", "3"),
    ("<object>", "<object>"), ("3", "<object>"),
]  # fmt: skip
COMPARISON = r"(?<![-<>=])[<>]=?(?![<>=])"  # `->`, `<<` and `>>` are not comparisons
EXCHANGED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


def _plain_equal(answer: str, truth: str) -> bool:
    try:
        return ast.literal_eval(answer) == ast.literal_eval(truth)
    except (ValueError, SyntaxError, TypeError):
        return False


def _moved(line: str, comparison: str = COMPARISON) -> list[str]:
    return [line[: m.start()] + EXCHANGED[m[0]] + line[m.end() :] for m in re.finditer(comparison, line)]


def _all_at_once(line: str, comparison: str) -> list[str]:
    return [re.sub(comparison, lambda m: EXCHANGED[m[0]], line)] if re.search(comparison, line) else []


def _with_an_equals_sign(line: str, comparison: str) -> list[str]:
    return [f"{line[: m.start()]}{m[0]}={line[m.end() :]}" for m in re.finditer(comparison, line)]


def _pays(hidden: list[bool], examples: list[bool], lines: int) -> float:
    return 2.0 if all(hidden) and lines == 1 else 1.5 if all(hidden) else sum(hidden) / len(hidden)


def _wrong_pay(answer) -> str | None:
    def pay(hidden: list[bool], examples: list[bool], lines: int):
        return call(answer, ([*hidden], [*examples], lines))  # copies: the answer may change them

    repaired, bent = [True] * 4, [True, False, True, False]
    results = [*([True] * n + [False] * (4 - n) for n in range(5)), bent]
    for case in itertools.product(results, ([True, True], [False, True], [False, False]), (0, 1, 2, 4, 8, 9, 40)):
        if (case[2] or case[0] != repaired) and not is_number(value := pay(*case)):  # a repair changes at least one line
            return f"Expected a number. For the input\n{show(case)}\nit is {value!r}."
    special = max(pay(bent, [True, True], lines) for lines in (1, 2, 4, 8))
    idle = pay(bent, [False, True], 0)
    nearly = max(pay([True, True, True, False], [True, True], lines) for lines in (0, 1))
    if special > idle + 1e-9:
        return "Answering the examples without repairing anything earns more than doing nothing: the agent will learn it."
    if pay(repaired, [True, True], 1) <= max(special, idle):
        return "A repair must earn more than anything else."
    longest = min((9, 40), key=lambda lines: pay(repaired, [True, True], lines))
    least, most = pay(repaired, [True, True], longest), max(special, idle, nearly)
    if least <= most:
        return (f"A repair must earn more than any code that fails a hidden test: one of {longest} lines earns "
                f"{float(least):.4g}, such code up to {float(most):.4g}.")  # fmt: skip
    if pay(repaired, [True, True], 1) <= pay(repaired, [True, True], 9):
        return "The smaller of two repairs should earn more."
    steps = [pay([True] * n + [False] * (4 - n), [False, False], 1) for n in range(4)]
    if any(a >= b for a, b in itertools.pairwise(steps)):
        return "Early tries pass some tests, not all: pay for each test, or the first steps of training have no signal."
    return None


VALUES = Exercise(
    right=same_value,
    cases=lambda: ANSWERS,
    mistakes={
        "`True == 1` in Python, and `1.0 == 1`: compare the types as well.": _plain_equal,
        "Comparing text is not enough: `[1, 2]` and `[1,2]` are the same list.": lambda answer, truth: answer == truth,
    },
)
BOUNDS = Exercise(
    right=_moved,
    cases=lambda: [
        ("while low < high:",), ("if a <= b and b > c:",), ("return n",), ("if x >= 0:",),
        ("def f(n) -> int:",), ("half = n >> 1",), ("if n << 1 <= high:",), ("    if low<mid and mid < high:",),
    ],
    mistakes={
        "One change at a time: a mutant has one bug.": lambda line: _all_at_once(line, COMPARISON),
        "One change at a time; and `->`, `<<`, `>>` are not comparisons.": lambda line: _all_at_once(line, "<=|>=|<|>"),
        "`->`, `<<` and `>>` are not comparisons.": lambda line: _moved(line, "<=|>=|<|>"),
        "This turns `<=` into `<==`: match the longer operator first.":
            lambda line: _with_an_equals_sign(line, r"(?<![-<>=])[<>](?![<>])"),
        "This turns `<=` into `<==`; and `->`, `<<` and `>>` are not comparisons.":
            lambda line: _with_an_equals_sign(line, "[<>]"),
    },
)  # fmt: skip
PAY = Exercise(right=_pays, cases=lambda: [([True, True], [True], 1)], accept=_wrong_pay)

EXERCISES = {"same": VALUES, "bounds": BOUNDS, "pay": PAY}

check = checker(EXERCISES)
