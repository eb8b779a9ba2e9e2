"""The exercises of notebook 10, Monitor."""

from __future__ import annotations

import math

from course.exercises import Exercise, checker

BATCHES = [
    ([[1.0, 0.0, 1.0], [0.5, 0.5, 0.5], [2.0, 2.0, 2.0], [0.0, 0.1, 0.0]],),
    ([[0.0, 0.0], [1.0, 1.0]],),
    ([[1.0, -1.0], [0.0, 0.0, 0.0], [3.0]],),
    ([[0.25, 0.75]],),
]


def _silent(group_rewards: list[list[float]]) -> float:
    return sum(len(set(group)) == 1 for group in group_rewards) / len(group_rewards)


SILENT = Exercise(
    right=_silent,
    cases=lambda: BATCHES,
    mistakes={
        "A share is between 0 and 1; this is a count.": lambda groups: _silent(groups) * len(groups),
        "This is the share of groups that carry a signal.": lambda groups: 1 - _silent(groups),
        "A group that always wins carries no signal either: compare the rewards within a group with each other.":
            lambda groups: sum(set(group) == {0.0} for group in groups) / len(groups),
        "The rewards within a group must differ; differences between groups are no signal.":
            lambda groups: float(len({sum(group) for group in groups}) == 1),
    },
)  # fmt: skip

NAN = math.nan
CURVES = [
    ([0.0, 0.2, 5.9, 9.0], 1.0),
    ([0.0, 0.3, NAN, NAN], 1.0),
    ([0.1, 0.2, 0.3, 2.0, 0.4], 1.0),
    ([NAN, 0.1], 0.5),
    ([0.0, 1.0, 1.5], 1.0),
    ([0.0, 0.1], 1.0),
]


def _first_alarm(values: list[float], limit: float) -> int | None:
    return next((i for i, value in enumerate(values) if not value <= limit), None)


FIRST_ALARM = Exercise(
    right=_first_alarm,
    cases=lambda: CURVES,
    mistakes={
        "NaN is neither greater nor smaller than any number: `value > limit` is False for it, so its alarm is missed.":
            lambda values, limit: next((i for i, value in enumerate(values) if value > limit), None),
        "Return the first step above the limit, not the worst one.":
            lambda values, limit: max(range(len(values)), key=lambda i: values[i]),
        "A value that equals the limit is no alarm.":
            lambda values, limit: next((i for i, value in enumerate(values) if not value < limit), None),
        "Count steps from 0.":
            lambda values, limit: next((i for i, value in enumerate(values, 1) if not value <= limit), None),
    },
)  # fmt: skip

RETRIES = [(6, 60.0), (8, 60.0), (1, 60.0), (4, 3.0)]


def _waits(tries: int, most: float) -> list[float]:
    return [min(most, 2.0**i) for i in range(tries)]


WAITS = Exercise(
    right=_waits,
    cases=lambda: RETRIES,
    mistakes={
        "Your waits grow without limit: after ten failures the next attempt comes a quarter of an hour later.":
            lambda tries, most: [2.0**i for i in range(tries)],
        "The first wait is 1 second.": lambda tries, most: [min(most, 2.0 ** (i + 1)) for i in range(tries)],
        "Each wait is twice the last one, not one second more.":
            lambda tries, most: [min(most, i + 1.0) for i in range(tries)],
        "You always wait equally long: a service that has just restarted would get as many requests as before.":
            lambda tries, most: [1.0] * tries,
    },
)  # fmt: skip

EXERCISES = {"silent": SILENT, "first_alarm": FIRST_ALARM, "waits": WAITS}

check = checker(EXERCISES)
