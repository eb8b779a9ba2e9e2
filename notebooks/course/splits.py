"""Scenarios for each split such that no two splits share one, from generators that repeat themselves."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

S = TypeVar("S")


def distinct(candidates: Callable[[str], Iterable[S]], key: Callable[[S], Hashable], **counts: int) -> dict[str, list[S]]:
    """Return the first `counts[split]` scenarios of `candidates(split)` whose keys no earlier scenario has.

    In the last split, usually training, a key may occur twice. Raises: ValueError when a split has too few.
    """
    taken: set[Hashable] = set()
    found: dict[str, list[S]] = {}
    for split, count in counts.items():
        found[split] = []
        for candidate in candidates(split):
            if len(found[split]) == count:
                break
            if (its := key(candidate)) not in taken:
                found[split].append(candidate)
                if split != list(counts)[-1]:
                    taken.add(its)
        if len(found[split]) < count:
            raise ValueError(f"{split} has {len(found[split])} scenarios that no other split has; expected {count}")
    return found
