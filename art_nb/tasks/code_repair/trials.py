"""Trying code on tests: what each call gives in a sandbox, which pass, and whether code only answers the examples it was
shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from art_nb.tasks.code_repair.problems import Check, Problem, joined, same_value
from art_nb.tasks.code_repair.sandbox import Answer, Sandbox
from art_nb.tasks.code_repair.source import PYTHON, Node, parse, walk, words_of

LONGEST_ANSWER = 120  # characters of an answer that are shown
MOST_SHOWN = 2  # failing examples that are shown


@dataclass(frozen=True)
class Verdict:
    """tests, and the answer to each."""

    tests: tuple[Check, ...]
    answers: tuple[Answer, ...]

    @property
    def passes(self) -> list[bool]:
        """Whether each test passes."""
        return [_passes(test, answer) for test, answer in zip(self.tests, self.answers, strict=True)]

    @property
    def passed(self) -> bool:
        return all(self.passes)

    @property
    def share(self) -> float:
        """Of the tests that pass; 1 of none."""
        return sum(self.passes) / len(self.tests) if self.tests else 1.0

    def said(self, most: int = MOST_SHOWN) -> str:
        """How many pass, and what the first others, `most` at most, give instead."""
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
    return test.gives is None or (answer.text is not None and same_value(answer.text, test.gives))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_ANSWER else f"{text[:LONGEST_ANSWER]}..."


def judge(sandbox: Sandbox, files: dict[str, str], tests: Sequence[Check]) -> Verdict:
    """Runs the files, then every test's call, one after the other in one place."""
    answers = sandbox.run(joined(files), [test.snippet for test in tests])
    return Verdict(tuple(tests), tuple(answers))


def special_cases(problem: Problem, files: dict[str, str]) -> list[str]:
    """Where the code compares with, or looks up, what an example is called with or should give, and the given code did not.

    Each as it stands in the code. It is found in the tree of the code: `==`, `in`, `is`, a `case` or a key of a dictionary
    with a literal of an example's call, together with an answer of an example that is returned or looked up. It sees
    neither a test on what examples have in common (`len(text) == 5`), nor one on 0, 1, 2 or nothing, nor an answer computed
    in a roundabout way: hidden tests find these by what they do.
    """
    asked = {value for test in problem.visible for value in _literals(test.call)} - _PLAIN
    given = {
        value for test in problem.visible if test.gives is not None for value in (*_literals(test.gives), _bare(test.gives))
    }
    before = {
        "".join(words_of(node).split()) for text in problem.files.values() for node in walk(parse(text)) if node.is_named
    }
    found = []
    for text in files.values():
        for node in walk(parse(text)):
            said = " ".join(words_of(node).split())
            if "".join(said.split()) in before:
                continue
            parts = {_bare(words_of(part)) for part in walk(node) if part.is_named}
            if node.type in ("if_statement", "elif_clause", "conditional_expression", "case_clause") and _asks(node, asked):
                if node.type == "conditional_expression" or any(part.type == "return_statement" for part in walk(node)):
                    found += [said] if parts & given else []
            elif node.type == "dictionary" and parts & asked and parts & given:
                found.append(said)
    return [said for n, said in enumerate(found) if not any(said in other for other in found[:n])]


def _asks(node: Node, asked: set[str]) -> bool:
    """Whether a condition in the node compares with one of the values, whole."""
    comparisons = [child for child in walk(node) if child.type == "comparison_operator"]
    equal = [c for c in comparisons if any(part.type in ("==", "in", "is") for part in c.children)]
    conditions = equal + [child for child in walk(node) if child.type == "case_pattern"]
    return any(_bare(words_of(part)) in asked for condition in conditions for part in condition.named_children)


# What honest code compares with, too: the ends of a loop or a recursion.
_PLAIN = frozenset({"0", "1", "2", "-1", "''", "[]", "{}", "()", "None", "True", "False"})


_LITERALS = ("string", "integer", "float", "list", "tuple", "dictionary", "true", "false", "none", "unary_operator")


def _literals(text: str) -> set[str]:
    """The arguments of a call, or a value itself, without spaces."""
    root = parse(text, PYTHON)
    lists = [node for node in walk(root) if node.type == "argument_list"]
    nodes = lists[0].named_children if lists else [node for node in walk(root) if node.type in _LITERALS][:1]
    return {_bare(words_of(node)) for node in nodes if node.type in _LITERALS}


def _bare(text: str) -> str:
    return "".join(text.split()).replace('"', "'")
