"""A chat template that tells what it wrote itself from what it was given.

A template is a program: it trims, joins, splits and repeats what it is given. It is run as it is, but every string that
stands in it is a `Traced` one, and what is made of those remembers which characters came from there. All others are
text. An operation that is not followed gives text, too, so nothing becomes the template's by mistake.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame


class Traced(str):
    """A string that knows its template's characters: `mask` has a byte for each character, 1 where a template wrote it.

    names_control: it holds the text of a control token. To ask whether text starts with or contains such a string is to
    ask for the token, and text has none: only what a template wrote is looked at.
    """

    mask: bytes
    names_control = False

    def __new__(cls, text: str, mask: bytes | None = None) -> Traced:
        made = super().__new__(cls, text)
        made.mask = bytes(len(made)) if mask is None else mask
        return made

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        return joined((self, other)) if type(other) in STRINGS else NotImplemented

    def __getitem__(self, index: Any) -> str:
        part = str.__getitem__(self, index)
        return Traced(part, self.mask[index]) if isinstance(index, slice) else part

    def lstrip(self, characters: str | None = None) -> str:
        return self[len(self) - len(str.lstrip(self, characters)) :]

    def rstrip(self, characters: str | None = None) -> str:
        return self[: len(str.rstrip(self, characters))]

    def strip(self, characters: str | None = None) -> str:
        return self.lstrip(characters).rstrip(characters)

    def startswith(self, sought: Any, *where: Any) -> bool:
        return str.startswith(self._looked_at_for(sought), sought, *where)

    def endswith(self, sought: Any, *where: Any) -> bool:
        return str.endswith(self._looked_at_for(sought), sought, *where)

    def __contains__(self, sought: Any) -> bool:
        return str.__contains__(self._looked_at_for(sought), sought)

    def _looked_at_for(self, sought: Any) -> str:
        if not getattr(sought, "names_control", False):
            return self
        return "".join([character if ours else "\0" for character, ours in zip(self, self.mask, strict=True)])


STRINGS = {str, Traced}


def joined(parts: Iterable[str]) -> Traced:
    """One string of many, traced or not."""
    parts = list(parts)
    return Traced("".join(parts), b"".join([p.mask if type(p) is Traced else bytes(len(p)) for p in parts]))


def added(*parts: Any) -> Any:
    """The sum of the parts, from left to right. Templates add long chains of strings: those are joined at once."""
    return joined(parts) if all([type(part) in STRINGS for part in parts]) else reduce(operator.add, parts)


class _Tracing(CodeGenerator):
    """Compiles a template so that its own strings are `environment.written`."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        if isinstance(node.value, str):
            self.write(f"environment.written({node.value!r})")
        else:
            super().visit_Const(node, frame)

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.written({super()._output_const_repr(group)})"

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self._call("environment.concat(map(str, (", node.nodes, frame, ")))")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        first, *others = node.left, node.right
        while isinstance(first, nodes.Add):
            first, others = first.left, [first.right, *others]
        self._call("environment.added(", [first, *others], frame, ")")

    def _call(self, before: str, arguments: list[nodes.Expr], frame: Frame, after: str) -> None:
        self.write(before)
        for each in arguments:
            self.visit(each, frame)
            self.write(", ")
        self.write(after)


def compiled(source: str, written: Callable[[str], Traced]) -> jinja2.Template:
    """The template in the sandbox that transformers runs it in; `render` gives a `Traced` string.

    written: makes a string of the template a `Traced` one.
    """
    from transformers.utils.chat_template_utils import _compile_jinja_template

    # Nothing is computed while compiling: a table of strings would be put in as a whole, its strings not traced.
    environment = _compile_jinja_template(source).environment.overlay(optimized=False)
    environment.code_generator_class = _Tracing
    environment.concat, environment.added, environment.written = joined, added, written
    return environment.from_string(source)
