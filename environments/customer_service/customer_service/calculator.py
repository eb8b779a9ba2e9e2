"""Arithmetic for the tool `calculate`: Python's grammar and error messages, without calling `eval` on a model's text.

Source: tau-bench's `calculate`, which allows digits, + - * / ( ) . and spaces, and therefore also ** and //.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

CHARACTERS = "0123456789+-*/(). "
MAX_POWER_BITS = 100_000  # of a power; the largest float has 1,024

_OPERATORS: dict[type, Callable] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.UAdd: operator.pos, ast.USub: operator.neg,
}  # fmt: skip


def evaluate(expression: str) -> str:
    """Return the value, rounded to two decimals, as text such as `2.0`.

    Raises: ValueError for a character not in CHARACTERS; OverflowError for a power above MAX_POWER_BITS; else as Python.
    """
    if not all(character in CHARACTERS for character in expression):
        raise ValueError("invalid characters in expression")
    if not isinstance(expression, str):
        raise TypeError("eval() arg 1 must be a string, bytes or code object")
    tree = ast.parse(expression.lstrip(" "), "<string>", "eval")
    return str(round(float(_value(tree.body)), 2))


def _value(node: Any) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=op, operand=operand):
            return _OPERATORS[type(op)](_value(operand))
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(op=op, left=left, right=right):
            return _OPERATORS[type(op)](_value(left), _value(right))
        case ast.Call(func=func):
            raise TypeError(f"{type(_value(func)).__name__!r} object is not callable")
        case ast.Tuple():
            return ()
    raise TypeError(f"no arithmetic: {type(node).__name__}")


def _power(base: Any, exponent: Any) -> Any:
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and abs(base) > 1 and base.bit_length() * exponent > MAX_POWER_BITS:
        raise OverflowError("int too large to convert to float")
    return operator.pow(base, exponent)
