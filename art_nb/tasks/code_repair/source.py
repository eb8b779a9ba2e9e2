"""Source code as a tree: where a definition stands, who mentions a name, whether the text can be parsed.

The trees are tree-sitter's (https://tree-sitter.github.io/tree-sitter), which parses text that is half written, too. What is
particular to a language is a `Grammar`: `PYTHON` and `JAVASCRIPT` are here. Nothing is run, and nothing is imported.
"""

from __future__ import annotations

import importlib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

Node = Any  # tree_sitter.Node


@dataclass(frozen=True)
class Grammar:
    """A language. module: the package with its grammar. definitions: type of node -> what it is called in an outline.

    names: types of the nodes that are names. functions: types of values which make a variable a definition. block: the type
    of node that may not be empty, "" where all may.
    """

    name: str
    module: str
    definitions: tuple[tuple[str, str], ...]
    names: frozenset[str]
    functions: frozenset[str] = frozenset()
    block: str = ""


PYTHON = Grammar(
    "Python",
    "tree_sitter_python",
    (("function_definition", "def"), ("class_definition", "class")),
    frozenset({"identifier"}),
    block="block",
)
JAVASCRIPT = Grammar(
    "JavaScript",
    "tree_sitter_javascript",
    (
        ("function_declaration", "function"), ("generator_function_declaration", "function"), ("class_declaration", "class"),
        ("method_definition", "method"), ("variable_declarator", "function"),
    ),
    frozenset({"identifier", "property_identifier", "private_property_identifier", "shorthand_property_identifier"}),
    frozenset({"arrow_function", "function_expression", "generator_function", "class"}),
)  # fmt: skip


@dataclass(frozen=True)
class Definition:
    """kind: def, class, function, method. first, last: its lines, counted from 1. depth: of definitions around it."""

    name: str
    kind: str
    first: int
    last: int
    depth: int


@cache
def _parser(grammar: Grammar) -> Any:
    from tree_sitter import Language, Parser

    return Parser(Language(importlib.import_module(grammar.module).language()))


def parse(text: str, grammar: Grammar = PYTHON) -> Node:
    """The root of the text's tree. What is not Unicode text (half a surrogate pair) counts as a question mark."""
    return _parser(grammar).parse(text.encode("utf-8", "replace")).root_node


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it, in the order of the text; however deep."""
    left = [node]
    while left:
        node = left.pop()
        yield node
        left.extend(reversed(node.children))


def words_of(node: Node) -> str:
    """The text that a node stands for."""
    return node.text.decode("utf-8")


def definitions(text: str, grammar: Grammar = PYTHON) -> list[Definition]:
    """All functions and classes, in order."""
    kinds, found = dict(grammar.definitions), []
    ends: list[int] = []  # of the definitions around
    for node in walk(parse(text, grammar)):
        name = node.child_by_field_name("name") if node.type in kinds else None
        if name is None:
            continue
        if node.type == "variable_declarator":
            value = node.child_by_field_name("value")
            if value is None or value.type not in grammar.functions:
                continue
        ends = [end for end in ends if end > node.start_byte]
        around = node.parent if node.parent and node.parent.type == "decorated_definition" else node
        first, last = around.start_point[0] + 1, last_line(node)
        found.append(Definition(words_of(name), kinds[node.type], first, last, depth=len(ends)))
        ends.append(node.end_byte)
    return found


def last_line(node: Node) -> int:
    """The last line that has something of the node, counted from 1."""
    row, column = node.end_point[0], node.end_point[1]
    return row + (1 if column else 0)


def references(text: str, name: str, grammar: Grammar = PYTHON) -> list[int]:
    """The lines, from 1, on which the name stands as a name: not in text, not in a comment."""
    nodes = (node for node in walk(parse(text, grammar)) if node.type in grammar.names and words_of(node) == name)
    return sorted({node.start_point[0] + 1 for node in nodes})


def fault(text: str, grammar: Grammar = PYTHON) -> str | None:
    """Why the text is no source code: where it can't be parsed, or that a name has letters that look like others."""
    root = parse(text, grammar)
    for node in walk(root):
        if node.is_missing:
            return f"line {node.start_point[0] + 1}: {node.type!r} is missing"
        if node.type == "ERROR":
            first, last = node.start_point[0] + 1, last_line(node)
            if first < last:
                return f"lines {first} to {last} can't be parsed: something is open, or indented wrongly"
            return f"line {first} can't be parsed, near {' '.join(words_of(node).split())[:30]!r}"
        if node.type == grammar.block and not node.named_child_count:
            return f"line {node.start_point[0] + 1}: a block is empty"
        if node.type in grammar.names and not words_of(node).isascii():
            strange = next(letter for letter in words_of(node) if not letter.isascii())
            said = unicodedata.name(strange, f"U+{ord(strange):04X}")
            return f"line {node.start_point[0] + 1}: names are written in ASCII, and {strange!r} is {said}"
    return None


def common_ends(old: list[str], new: list[str]) -> tuple[int, int]:
    """(how many lines both start with, how many of the others both end with)."""
    most = min(len(old), len(new))
    start = next((n for n in range(most) if old[n] != new[n]), most)
    end = next((n for n in range(most - start) if old[-1 - n] != new[-1 - n]), most - start)
    return start, end
