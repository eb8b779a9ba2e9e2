"""Taint tracking for chat templates: tells the characters that the template wrote from those of its input.

A template's source is not changed, but each string literal in it becomes a `TaintedStr`, whose operations keep track of the
template's characters. Everything else counts as input, including the result of an operation that is not tracked.
"""

import operator
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, Self

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame


class TaintedStr(str):
    """A string with the origin of each character. mask: a byte per character, 1: template, 2: assistant message, 0: other.

    has_control: whether it is a literal with the text of a control token. A search for such a literal is a search for the
    token, so it ignores characters with mask 0, which cannot be part of a token.
    """

    mask: bytes
    has_control = False

    def __new__(cls, text: str, mask: bytes | None = None) -> Self:
        made = super().__new__(cls, text)
        made.mask = bytes(len(made)) if mask is None else mask
        return made

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        return join((self, other)) if type(other) in STRINGS else NotImplemented

    def __getitem__(self, index: Any) -> str:
        part = str.__getitem__(self, index)
        return TaintedStr(part, self.mask[index]) if isinstance(index, slice) else part

    def lstrip(self, characters: str | None = None) -> str:
        return self[len(self) - len(str.lstrip(self, characters)) :]

    def rstrip(self, characters: str | None = None) -> str:
        return self[: len(str.rstrip(self, characters))]

    def strip(self, characters: str | None = None) -> str:
        return self.lstrip(characters).rstrip(characters)

    def startswith(self, sought: Any, *where: Any) -> bool:
        return str.startswith(self._searched_for(sought), sought, *where)

    def endswith(self, sought: Any, *where: Any) -> bool:
        return str.endswith(self._searched_for(sought), sought, *where)

    def __contains__(self, sought: Any) -> bool:
        return str.__contains__(self._searched_for(sought), sought)

    def _searched_for(self, sought: Any) -> str:
        if not getattr(sought, "has_control", False) or 0 not in self.mask:
            return self
        return "".join([character if seen else "\0" for character, seen in zip(self, self.mask, strict=True)])


STRINGS = {str, TaintedStr}


def join(parts: Iterable[str]) -> TaintedStr:
    """Concatenate strings, tainted or not."""
    parts = list(parts)
    return TaintedStr("".join(parts), b"".join([p.mask if type(p) is TaintedStr else bytes(len(p)) for p in parts]))


def add(*parts: Any) -> Any:
    """Add the parts from left to right. Templates add long chains of strings, which are joined in one step."""
    return join(parts) if all([type(part) in STRINGS for part in parts]) else reduce(operator.add, parts)


class _TaintingGenerator(CodeGenerator):
    """Generates code that passes string literals to `environment.literal` and concatenates with `join` and `add`."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        if isinstance(node.value, str):
            self.write(f"environment.literal({node.value!r})")
        else:
            super().visit_Const(node, frame)

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.literal({super()._output_const_repr(group)})"

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self._call("environment.concat(map(str, (", node.nodes, frame, ")))")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        first, *others = node.left, node.right
        while isinstance(first, nodes.Add):
            first, others = first.left, [first.right, *others]
        self._call("environment.add(", [first, *others], frame, ")")

    def _call(self, before: str, arguments: list[nodes.Expr], frame: Frame, after: str) -> None:
        self.write(before)
        for each in arguments:
            self.visit(each, frame)
            self.write(", ")
        self.write(after)


def compile_template(source: str, literal: Callable[[str], TaintedStr]) -> jinja2.Template:
    """Compile a template in transformers' sandbox; `render` returns a `TaintedStr`. literal: converts a string literal."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    # Unoptimised: constant folding would put whole tables of strings into the code, without conversion.
    environment = _compile_jinja_template(source).environment.overlay(optimized=False)
    environment.code_generator_class = _TaintingGenerator
    environment.concat, environment.add, environment.literal = join, add, literal
    return environment.from_string(source)
