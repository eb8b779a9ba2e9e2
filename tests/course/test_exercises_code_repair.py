"""The exercises of notebook 07: right answers are accepted in any form, and a mistake gets its hint."""

import ast
import re

import pytest

from course.exercises.code_repair import EXERCISES, check


def same(answer, truth):
    try:
        values = [ast.literal_eval(text) for text in (answer, truth)]
    except Exception:
        return False
    return repr(type(values[0])) == repr(type(values[1])) and not values[0] != values[1]


def compared(answer, truth, errors):
    """Compare as the solution does, with another list of exceptions."""
    try:
        ours, theirs = ast.literal_eval(answer), ast.literal_eval(truth)
    except errors:
        return False
    return type(ours) is type(theirs) and ours == theirs


def bounds(line):
    found = []
    for place, sign in enumerate(line):
        if sign in "<>" and not {line[place - 1 : place], line[place + 1 : place + 2]} & set("-<>"):
            longer = line[place + 1 : place + 2] == "="
            found.append(line[:place] + sign + "=" * (not longer) + line[place + 1 + longer :])
    return found


def pay(hidden, examples, lines):
    return sum(hidden) + (10 - lines / 100 if all(hidden) else 0)


def pay_that_empties_its_lists(hidden, examples, lines):
    passed = [hidden.pop() for _ in range(len(hidden))]
    return pay(passed, examples, lines)


RIGHT = {"same": same, "bounds": bounds, "pay": pay}
WRONG = {
    "same": [
        (lambda answer, truth: eval(answer, {}) == eval(truth, {}), "raised"),
        (lambda answer, truth: answer.replace(" ", "") == truth.replace(" ", ""), "For the input"),
        (lambda answer, truth: compared(answer, truth, (ValueError, SyntaxError)), "raised TypeError"),
        (lambda answer, truth: compared(answer, truth, (SyntaxError, TypeError)), "raised ValueError"),
        (lambda answer, truth: answer == truth, "Comparing text is not enough"),
        (lambda answer, truth: answer == truth or same(answer, truth), "For the input"),
        (lambda answer, truth: type(x := ast.literal_eval(truth)) is type(y := ast.literal_eval(answer)) and x == y if answer not in ("<object>", "(", "2 + 1", "{[]: 1}") else False, "raised"),
        (lambda answer, truth: same(answer, truth) or (same(answer, answer) and same(truth, truth) and ast.literal_eval(answer) == ast.literal_eval(truth)), "compare the types"),
    ],
    "bounds": [
        (lambda line: [line[: m.start()] + {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}[m[0]] + line[m.end() :] for m in re.finditer("<=|>=|<|>", line)], "are not comparisons"),
        (lambda line: [re.sub("<", "<=", line)], "For the input"),
        (lambda line: [line[: m.start()] + m[0] + "=" + line[m.end() :] for m in re.finditer("[<>]", line)], "`<==`; and `->`"),
        (lambda line: [line[: m.start()] + m[0] + "=" + line[m.end() :] for m in re.finditer("(?<![-<>])[<>](?![<>])", line)], "match the longer operator first"),
        (lambda line: [re.sub("(?<![-<>])(<=|>=|<|>)(?![<>])", lambda m: {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}[m[0]], line)] if re.search("(?<![-<>])[<>](?![<>])", line) else [], "a mutant has one bug"),
        (lambda line: [re.sub("<=|>=|<|>", lambda m: {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}[m[0]], line)] if re.search("[<>]", line) else [], "One change at a time; and"),
    ],
    "pay": [
        (lambda hidden, examples, lines: sum(examples) / len(examples) + all(hidden) / max(1, lines), "Answering the examples without repairing"),
        (lambda hidden, examples, lines: 0.0, "earn more than anything else"),
        (lambda hidden, examples, lines: sum(hidden) / len(hidden), "The smaller of two repairs"),
        (lambda hidden, examples, lines: (1 + 1 / max(1, lines)) * all(hidden), "no signal"),
        (lambda hidden, examples, lines: sum(hidden) / len(hidden) - 0.05 * lines, "more than any code that fails a hidden test"),
        (lambda hidden, examples, lines: sum(hidden) / len(hidden) - 0.05 * min(lines, 5), "more than any code that fails a hidden test"),
        (lambda hidden, examples, lines: "much", "Expected a number"),
        (lambda hidden, examples, lines: pay(hidden, examples, lines) if all(hidden) or not any(hidden) else None, "it is None"),
        (lambda hidden, examples, lines: pay(hidden, examples, lines) if all(hidden) or not any(hidden) else float("nan"), "it is nan"),
        (lambda hidden, examples, lines: sum(hidden) / len(hidden) + 0.3 * all(examples) - 0.1 * min(lines, 5) * (not all(hidden)) + all(hidden) * (2 + 0.2 / max(1, lines)), "Answering the examples without repairing"),
        (lambda hidden, examples, lines: sum(hidden) / 4 - lines / 2 + 1, "earns more|long repair|anything else"),
    ],
}  # fmt: skip


def test_there_are_answers_to_every_exercise():
    assert set(RIGHT) == set(WRONG) == set(EXERCISES)


@pytest.mark.parametrize("name", RIGHT)
def test_another_right_answer_is_right(name):
    assert check(name, RIGHT[name]).status == "right", check(name, RIGHT[name])


def test_a_reward_may_change_its_lists():
    assert check("pay", pay_that_empties_its_lists).status == "right"


@pytest.mark.parametrize(("name", "answer", "words"), [(n, a, w) for n, cases in WRONG.items() for a, w in cases])
def test_a_mistake_gets_its_hint(name, answer, words):
    verdict = check(name, answer)
    assert verdict.status == "wrong" and re.search(words, verdict.text), verdict
