"""The exercises of notebook 09, Your own environment."""

from __future__ import annotations

from collections import Counter
from itertools import product
from zlib import crc32

from course.exercises import Exercise, checker

STEPS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
CELLS = list(product(range(4), repeat=2))
WAYS = [(place, home) for place in CELLS for home in CELLS if place != home]
NAMES = [f"{word} {n}" for word in ("walk", "Walk", "way") for n in range(1000)]


def _distance(place, home) -> int:
    return abs(place[0] - home[0]) + abs(place[1] - home[1])


def _direction(place, home) -> str:
    if place[0] != home[0]:
        return "up" if place[0] > home[0] else "down"
    return "left" if place[1] > home[1] else "right"


def _wrong_way(direction) -> str | None:
    for place, home in WAYS:
        said = direction(place, home)
        if said not in STEPS:
            return f"Expected one of {', '.join(STEPS)}; from {place} to {home} it is {said!r}."
        after = (place[0] + STEPS[said][0], place[1] + STEPS[said][1])
        if _distance(after, home) > _distance(place, home):
            return f"From {place}, {said!r} leads to {after}, which is farther from {home}. (0, 0) is top left."
    return None


def _split_of(name: str) -> str:
    part = crc32(name.encode()) % 10
    return "test" if part == 0 else "val" if part == 1 else "train"


def _wrong_split(split_of) -> str | None:
    if "hash" in getattr(getattr(split_of, "__code__", None), "co_names", ()):
        return "hash() of a string differs each time Python starts: tomorrow's test split would hold today's training data."
    first, again = [split_of(name) for name in NAMES], [split_of(name) for name in reversed(NAMES)][::-1]
    if first != again:
        return "On a second call some names are in another split. The split must depend on the name alone."
    shares = {split: count / len(NAMES) for split, count in Counter(first).items()}
    if unknown := set(shares) - {"train", "val", "test"}:
        return f"Expected train, val or test, got {', '.join(map(repr, sorted(map(str, unknown))))}."
    if missing := {"train", "val", "test"} - set(shares):
        return f"Of {len(NAMES)} names, none is in {' or '.join(sorted(missing))}."
    if not 0.7 < shares["train"] < 0.9 or min(shares.values()) < 0.05:
        return f"Expected about eight names of ten in train and one in each other split, got {shares}."
    return None


def _paid(before: int, after: int) -> float:
    return float(before - after)


SPLITS = Exercise(right=_split_of, cases=lambda: [("walk 1",)], accept=_wrong_split)
DIRECTION = Exercise(right=_direction, cases=lambda: WAYS[:1], accept=_wrong_way)
SHAPED = Exercise(
    right=_paid,
    cases=lambda: [(3, 2), (2, 3), (3, 3), (1, 0), (4, 3)],
    mistakes={
        "The sign: coming nearer must earn more.": lambda before, after: float(after - before),
        "A step that changes nothing (into a wall) must earn 0, or standing still would be punished "
        "like moving away.": lambda before, after: 1.0 if after < before else -1.0,
        "You reward only the arrival: a walk that never arrives carries no signal. Reward every step that comes nearer.":
            lambda before, after: float(after == 0),
        "You reward being near, so the robot will stay near and never arrive: a longer walk has a larger sum. "
        "Reward coming nearer.": lambda before, after: float(-after),
    },
)  # fmt: skip

EXERCISES = {"splits": SPLITS, "direction": DIRECTION, "shaped": SHAPED}

check = checker(EXERCISES)
