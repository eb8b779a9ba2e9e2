"""Mutations of source code: single small changes. They create the bugs of the problems and, as a baseline, repair them.

Kinds: operator (+ for -, and for or), bound (< for <=, a number off by one), variable (another of the function's names),
case (an if removed), arguments (two swapped, or operands of - // %), default (another initial or Boolean value, 0 for None).
Source: DeMillo, Lipton, Sayward, Hints on Test Data Selection (1978), mutation testing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from code_repair.source import Node, node_text, parse, syntax_error, walk

KINDS = ("operator", "bound", "variable", "case", "arguments", "default")

OPERATORS = {
    "+": "-", "-": "+", "*": "+", "//": "*", "%": "//", "+=": "-=", "-=": "+=", "*=": "+=",
    "==": "!=", "!=": "==", "and": "or", "or": "and", "not in": "in", "in": "not in",
}  # fmt: skip
_INTEGER = re.compile(r"0x[\da-f_]+|0o[0-7_]+|0b[01_]+|0+|[1-9][\d_]*", re.IGNORECASE)  # not 3j, nor Python 2's 007
BOUNDS = {"<": ("<=", ">"), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<=")}


@dataclass(frozen=True)
class Mutation:
    """kind: see `KINDS`. first, last: the changed lines, counted from 1. lines: their replacement. text: the new source."""

    kind: str
    first: int
    last: int
    lines: tuple[str, ...]
    text: str


def mutations(text: str) -> list[Mutation]:
    """Return every mutation of `text` that is valid source code, in the order of the text, each result once."""
    found: dict[str, Mutation] = {}
    for kind, start, end, new in _edits(parse(text)):
        changed = _changed(text, kind, start, end, new)
        if changed.text != text and changed.text not in found and not syntax_error(changed.text):
            found[changed.text] = changed
    return list(found.values())


def _changed(text: str, kind: str, start: int, end: int, new: str) -> Mutation:
    """Apply an edit. start, end: in bytes. An empty `new` removes whole lines."""
    data = text.encode()
    before, after = data[:start].decode(), data[end:].decode()
    result = before + new + after
    first = before.count("\n") + 1
    last = first + data[start:end].decode().count("\n") - (0 if new else 1)
    size = last - first + 1 if new else 0
    return Mutation(kind, first, last, tuple(result.splitlines()[first - 1 : first - 1 + size]), result)


def _edits(root: Node) -> Iterator[tuple[str, int, int, str]]:
    """Yield (kind, first byte, byte after the last, new text) of every mutation."""
    for function in walk(root):
        if function.type != "function_definition":
            continue
        names = _names(function)
        for node in walk(function):
            yield from _of_node(node, names)


def _of_node(node: Node, names: list[str]) -> Iterator[tuple[str, int, int, str]]:
    text, at = node_text(node) if node.child_count == 0 or node.type == "string" else "", (node.start_byte, node.end_byte)
    parent = node.parent.type if node.parent else ""
    if (
        parent in ("binary_operator", "comparison_operator", "boolean_operator", "augmented_assignment")
        and not node.is_named
    ):
        if node.type in OPERATORS:
            yield "operator", *at, OPERATORS[node.type]
        for bound in BOUNDS.get(node.type, ()):
            yield "bound", *at, bound
    elif node.type == "not_operator":
        yield "operator", *at, node_text(node.child_by_field_name("argument"))
    elif node.type == "integer" and _INTEGER.fullmatch(text):
        kind = "default" if parent in ("default_parameter", "assignment") else "bound"
        for value in (int(text, 0) + 1, int(text, 0) - 1):
            if value >= 0:
                yield kind, *at, str(value)
    elif node.type in ("true", "false"):
        yield "default", *at, "False" if text == "True" else "True"
    elif node.type == "none" and parent in ("assignment", "return_statement"):
        yield "default", *at, "0"
    elif node.type == "identifier" and text in names and _is_read(node):
        for other in names:
            if other != text:
                yield "variable", *at, other
    elif node.type == "argument_list" and len(node.named_children) == 2:
        first, second = node.named_children
        yield "arguments", first.start_byte, second.end_byte, f"{node_text(second)}, {node_text(first)}"
    elif node.type == "binary_operator" and node_text(node.child_by_field_name("operator")) in ("-", "//", "%"):
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if left.type in _SIMPLE and right.type in _SIMPLE:
            operator = node_text(node.child_by_field_name("operator"))
            yield "arguments", *at, f"{node_text(right)} {operator} {node_text(left)}"
    elif node.type == "call" and node.parent and _is_len_in_range(node):
        yield "bound", *at, f"{node_text(node)} - 1"
        yield "bound", *at, f"{node_text(node)} + 1"
    elif node.type in ("if_statement", "elif_clause") and not any(child.type == "else_clause" for child in node.children):
        alternatives = [child for child in node.children if child.type == "elif_clause"]
        if not alternatives:
            start = node.start_byte - node.start_point[1]
            yield "case", start, node.end_byte + 1, ""


_SIMPLE = ("identifier", "integer", "call", "subscript", "parenthesized_expression", "attribute")


def _is_len_in_range(node: Node) -> bool:
    """Return whether the call is `len(...)` as an argument of `range`."""
    around = node.parent
    return (
        node_text(node.child_by_field_name("function")) == "len"
        and around.type == "argument_list"
        and around.parent is not None
        and node_text(around.parent).startswith("range(")
    )


def _names(function: Node) -> list[str]:
    """Return the function's parameters and the names it assigns to, in order, each once."""
    found: list[str] = []
    for node in walk(function):
        if node.type != "identifier" or not node.parent:
            continue
        parent = node.parent
        is_parameter = parent.type == "parameters" or (
            parent.type == "default_parameter" and parent.child_by_field_name("name") == node
        )
        is_target = parent.type in ("assignment", "augmented_assignment", "for_statement") and (
            parent.child_by_field_name("left") == node
        )
        in_targets = parent.type == "pattern_list"
        if is_parameter or is_target or in_targets:
            found.append(node_text(node))
    return list(dict.fromkeys(found))


def _is_read(node: Node) -> bool:
    """Return whether a name is read on its own: not assigned, not called, and not part of an attribute access."""
    parent = node.parent
    if parent.type in ("parameters", "default_parameter", "function_definition", "pattern_list", "keyword_argument"):
        return False
    if parent.type in ("assignment", "augmented_assignment", "for_statement"):
        return parent.child_by_field_name("left") != node
    if parent.type == "call":
        return parent.child_by_field_name("function") != node
    return parent.type != "attribute"
