"""Parse source code: find definitions and references, and check the syntax.

The parser is tree-sitter (https://tree-sitter.github.io/tree-sitter), which also parses incomplete code. A `Grammar`
describes a language: `PYTHON` and `JAVASCRIPT` are here. The code is neither run nor imported.
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
    """A language. module: the package of its grammar. definitions: type of node -> its word in an outline.

    names: node types of names. functions: node types of values that make a variable a definition. block: the node type that
    may not be empty, or "".
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
    """kind: def, class, function, method. first, last: its lines, counted from 1. depth: number of enclosing definitions."""

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
    """Return the root of the syntax tree. Unpaired surrogates are read as question marks."""
    return _parser(grammar).parse(text.encode("utf-8", "replace")).root_node


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and its descendants in the order of the text, without recursion."""
    left = [node]
    while left:
        node = left.pop()
        yield node
        left.extend(reversed(node.children))


def node_text(node: Node) -> str:
    """Return the source text of a node."""
    return node.text.decode("utf-8")


def definitions(text: str, grammar: Grammar = PYTHON) -> list[Definition]:
    """Return all functions and classes, in order."""
    kinds, found = dict(grammar.definitions), []
    ends: list[int] = []  # of the enclosing definitions
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
        found.append(Definition(node_text(name), kinds[node.type], first, last, depth=len(ends)))
        ends.append(node.end_byte)
    return found


def last_line(node: Node) -> int:
    """Return the last line of a node, counted from 1."""
    row, column = node.end_point[0], node.end_point[1]
    return row + (1 if column else 0)


def references(text: str, name: str, grammar: Grammar = PYTHON) -> list[int]:
    """Return the lines, counted from 1, that use the name, not counting strings and comments."""
    nodes = (node for node in walk(parse(text, grammar)) if node.type in grammar.names and node_text(node) == name)
    return sorted({node.start_point[0] + 1 for node in nodes})


def syntax_error(text: str, grammar: Grammar = PYTHON) -> str | None:
    """Return the first error that the parser finds, or None. It accepts some invalid code, such as a `return` at top level.

    Names must be ASCII: other letters may look like ASCII.
    """
    root = parse(text, grammar)
    for node in walk(root):
        if node.is_missing:
            return f"line {node.start_point[0] + 1}: {node.type!r} is missing"
        if node.type == "ERROR":
            first, last = node.start_point[0] + 1, last_line(node)
            if first < last:
                return f"lines {first} to {last} can't be parsed: something is open, or indented wrongly"
            return f"line {first} can't be parsed, near {' '.join(node_text(node).split())[:30]!r}"
        if node.type == grammar.block and not node.named_child_count:
            return f"line {node.start_point[0] + 1}: a block is empty"
        if node.type in grammar.names and not node_text(node).isascii():
            strange = next(letter for letter in node_text(node) if not letter.isascii())
            letter = unicodedata.name(strange, f"U+{ord(strange):04X}")
            return f"line {node.start_point[0] + 1}: names are written in ASCII, and {strange!r} is {letter}"
    return None


def common_ends(old: list[str], new: list[str]) -> tuple[int, int]:
    """Return (number of equal lines at the start, number of equal lines at the end of the rest)."""
    most = min(len(old), len(new))
    start = next((n for n in range(most) if old[n] != new[n]), most)
    end = next((n for n in range(most - start) if old[-1 - n] != new[-1 - n]), most - start)
    return start, end
