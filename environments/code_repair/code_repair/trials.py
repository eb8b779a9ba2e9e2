"""Run code on tests in a sandbox, and detect code that special-cases the examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from code_repair.problems import Check, Problem, joined, same_value
from code_repair.sandbox import Answer, Sandbox
from code_repair.source import PYTHON, Node, node_text, parse, walk

MAX_ANSWER_LENGTH = 120  # characters of an answer that are shown
MAX_SHOWN = 2  # failing examples that are shown


@dataclass(frozen=True)
class Verdict:
    """Tests and the answer to each."""

    tests: tuple[Check, ...]
    answers: tuple[Answer, ...]

    @cached_property
    def passes(self) -> list[bool]:
        """For each test, whether it passes."""
        return [_passes(test, answer) for test, answer in zip(self.tests, self.answers, strict=True)]

    @property
    def passed(self) -> bool:
        return all(self.passes)

    @property
    def share(self) -> float:
        """The share of tests that pass; 1 if there are none."""
        return sum(self.passes) / len(self.tests) if self.tests else 1.0

    def summary(self, most: int = MAX_SHOWN) -> str:
        """Return how many tests pass, and the results of the first that fail, at most `most`."""
        lines = [f"{sum(self.passes)} of {len(self.tests)} examples pass."]
        wrong = [
            pair for pair, passes in zip(zip(self.tests, self.answers, strict=True), self.passes, strict=True) if not passes
        ]
        for test, answer in wrong[:most]:
            if answer.error is not None:
                lines.append(f"{_cut(test.call)} raises {_cut(answer.error)}")
            else:
                lines.append(f"{_cut(test.call)} gives {_cut(answer.text or 'no value')}, not {_cut(test.gives or '')}")
        return "\n".join(lines)


def _passes(test: Check, answer: Answer) -> bool:
    if answer.error is not None:
        return False
    return test.gives is None or (answer.text is not None and same_value(answer.text, test.gives, test.tolerance))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_ANSWER_LENGTH else f"{text[:MAX_ANSWER_LENGTH]}..."


def judge(sandbox: Sandbox, files: dict[str, str], tests: Sequence[Check]) -> Verdict:
    """Run the files, then the call of every test, in one namespace."""
    answers = sandbox.run(joined(files), [test.snippet for test in tests])
    return Verdict(tuple(tests), tuple(answers))


def special_cases(problem: Problem, files: dict[str, str]) -> list[str]:
    """Return the pieces of code that special-case an example and are not in the given code.

    A piece is a conditional with `==`, `in`, `is` or `case` on a literal of an example's call, or a dictionary that contains
    one. It also contains an example's expected value and, if it is a statement, a `return`. Conditions on common properties
    of the examples (`text.startswith("dd")`), on 0, 1, 2 and empty values, and computed answers are not found.
    """
    inputs = {value for test in problem.visible for value in _literals(test.call)} - _PLAIN
    given = {
        value for test in problem.visible if test.gives is not None for value in (*_literals(test.gives), _bare(test.gives))
    }
    before = {
        "".join(node_text(node).split()) for text in problem.files.values() for node in walk(parse(text)) if node.is_named
    }
    found = []
    for source in files.values():
        for node in walk(parse(source)):
            text = " ".join(node_text(node).split())
            if "".join(text.split()) in before:
                continue
            parts = {_bare(node_text(part)) for part in walk(node) if part.is_named}
            if node.type in CONDITIONS and _compares(node, inputs):
                if node.type == "conditional_expression" or any(part.type == "return_statement" for part in walk(node)):
                    found += [text] if parts & given else []
            elif node.type == "dictionary" and parts & inputs and parts & given:
                found.append(text)
    return [text for n, text in enumerate(found) if not any(text in other for other in found[:n])]


def _compares(node: Node, inputs: set[str]) -> bool:
    """Return whether a condition in the node compares something with one of the values."""
    comparisons = [child for child in walk(node) if child.type == "comparison_operator"]
    equal = [c for c in comparisons if any(part.type in ("==", "in", "is") for part in c.children)]
    conditions = equal + [child for child in walk(node) if child.type == "case_pattern"]
    return any(_bare(node_text(part)) in inputs for condition in conditions for part in condition.named_children)


# Correct code also compares with these values: bounds of loops and recursions.
_PLAIN = frozenset({"0", "1", "2", "-1", "''", "[]", "{}", "()", "None", "True", "False"})


CONDITIONS = {"if_statement", "elif_clause", "conditional_expression", "case_clause"}  # of tree-sitter's Python grammar
_LITERALS = ("string", "integer", "float", "list", "tuple", "dictionary", "true", "false", "none", "unary_operator")


def _literals(text: str) -> set[str]:
    """Return the arguments of a call, or the value itself, without spaces."""
    root = parse(text, PYTHON)
    lists = [node for node in walk(root) if node.type == "argument_list"]
    nodes = lists[0].named_children if lists else [node for node in walk(root) if node.type in _LITERALS][:1]
    return {_bare(node_text(node)) for node in nodes if node.type in _LITERALS}


def _bare(text: str) -> str:
    return "".join(text.split()).replace('"', "'")
