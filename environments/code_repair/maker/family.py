"""Families of functions: one way to write a function, several variants of it, and their expected values.

The source of a family is a template with `$slots` that a variant fills. `truth` computes the expected values with another
implementation, so that the two check each other.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

Variant = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """Functions that differ in names, constants or operations.

    source: with `$name` and other slots. variants: slot -> text, and other values for `truth`.
    draw: (random numbers, variant) -> arguments, including edge cases. truth: (variant, *arguments) -> expected value.
    """

    name: str
    source: str
    variants: tuple[Variant, ...]
    draw: Callable[[random.Random, Variant], tuple]
    truth: Callable[..., Any]

    def written(self, variant: Variant) -> str:
        """Return the function's source, ending in a line break."""
        return string.Template(dedent(self.source).lstrip("\n")).substitute(variant)


def family(name: str, source: str, draw: Callable, truth: Callable, *variants: Variant) -> Family:
    return Family(name, source, variants, draw, truth)


LETTERS = "aabcdeeiorst"
NAMES = ("ann", "bob", "cat", "dan", "eve", "fay")


def word(rng: random.Random, most: int = 6) -> str:
    """Return 0 to `most` letters, few different ones, so that repeats are common."""
    return "".join(rng.choices(LETTERS, k=rng.randint(0, most)))


def text(rng: random.Random) -> str:
    """Return 0 to 4 words of letters of both cases and digits."""
    parts = []
    for _ in range(rng.randint(0, 4)):
        part = word(rng) or "a"
        parts.append(rng.choice([part, part, part.capitalize(), part.upper(), part + str(rng.randint(0, 99))]))
    return " ".join(parts)


def number(rng: random.Random) -> int:
    return rng.randint(-9, 12)


def numbers(rng: random.Random, least: int = 0, most: int = 7) -> list[int]:
    """Return a short list of small integers, often with repeats."""
    low, high = rng.choice([(-9, 9), (0, 12), (0, 3), (1, 5)])
    return [rng.randint(low, high) for _ in range(rng.randint(least, most))]


def ascending(rng: random.Random) -> list[int]:
    return sorted(numbers(rng))


def table(rng: random.Random) -> dict[str, int]:
    """Return names with small counts."""
    return {name: rng.randint(-2, 9) for name in rng.sample(NAMES, rng.randint(0, 5))}


def names(rng: random.Random, most: int = 6) -> list[str]:
    return rng.choices(NAMES, k=rng.randint(0, most))


def pairs(rng: random.Random) -> list[tuple[str, int]]:
    return [(name, rng.randint(-2, 9)) for name in names(rng)]
