"""The exercises of notebook 10: right answers are accepted in any form, and a mistake gets its hint."""

import math
from fractions import Fraction
from itertools import product

import pytest
from exercise_answers import hold, hold_mistakes

from course.exercises import monitor
from course.exercises.monitor import EARLIEST_WIN, EXERCISES, check
from course.otlp_receiver import attributes
from course.short_2048 import late_game
from game_2048 import scenarios


def first_alarm(values, limit):
    for i, value in enumerate(values):
        if math.isnan(value) or value > limit:
            return i


def first_hacked(rewards, measure, window):
    def mean(values, end):
        return sum(values[end - window : end]) / window

    found = [
        end - 1
        for end in range(2 * window, len(rewards) + 1)
        if mean(rewards, end) > mean(rewards, window) and mean(measure, end) < mean(measure, window)
    ]
    return min(found, default=None)


RIGHT = {"hacked": first_hacked, "first_alarm": first_alarm, "bonus": lambda: Fraction(8)}
WRONG = {
    "hacked": [
        (lambda r, m, w: next((i for i in range(2 * w - 1, len(m)) if sum(m[i - w + 1 : i + 1]) < sum(m[:w])), None), "measure alone"),
        (lambda r, m, w: next((i for i in range(2 * w - 1, len(r)) if sum(r[i - w + 1 : i + 1]) > sum(r[:w])), None), "reward alone"),
        (lambda r, m, w: next((i for i in range(2 * w - 1, len(r)) if r[i] > r[0] and m[i] < m[0]), None), "single steps"),
        (lambda r, m, w: 0, "For the input"),
    ],
    "first_alarm": [
        (lambda values, limit: ([i for i, v in enumerate(values) if v > limit] or [None])[0], "NaN"),
        (lambda values, limit: values.index(max(values)), "not the worst"),
        (lambda values, limit: ([i for i, v in enumerate(values) if v >= limit or v != v] or [None])[0], "equals the limit"),
        (lambda values, limit: ([i + 1 for i, v in enumerate(values) if v > limit or v != v] or [None])[0], "from 0"),
    ],
    "bonus": [
        (lambda: "8", "Expected a number"),
        (lambda: math.inf, "Expected a number, got inf"),
        (lambda: -1, "from 0 to 100"),
        (lambda: 7, "a win at the second move earns 9, and ten moves"),
        (lambda: 9, "a smaller bonus is enough"),
    ],
}  # fmt: skip


@pytest.fixture(autouse=True)
def without_training(monkeypatch):
    """The runs take a quarter of a minute each; `tests/course/test_exercises.py` makes one of them."""
    monkeypatch.setattr(monitor, "train_with_bonus", lambda bonus: {"won": [0.5, bonus / 10]})


@pytest.mark.parametrize("exercise", EXERCISES)
def test_right_answers_and_mistakes(exercise):
    hold(check, exercise, (RIGHT[exercise], EXERCISES[exercise].right), WRONG[exercise])


def test_every_known_mistake_gets_its_hint():
    hold_mistakes(EXERCISES)


def moves_to_the_earliest_win(seed, limit):
    """Return the smallest number of moves that wins the game of `seed`, or None if it is above `limit`."""
    for count in range(1, limit + 1):
        for moves in product(("left", "right", "up", "down"), repeat=count):
            game = late_game(seed)
            for move in moves:
                if not game.over:
                    game.move(move)
            if game.won:
                return count


def test_no_late_game_can_be_won_before_the_second_move_and_some_can_then():
    earliest = {moves_to_the_earliest_win(seed, EARLIEST_WIN) for seed in scenarios("train", 100)}
    assert earliest == {None, EARLIEST_WIN}


def test_the_receiver_reads_a_list_with_none():
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    listed = AnyValue(array_value=ArrayValue(values=[AnyValue(string_value="a"), AnyValue()]))
    assert attributes(Span(attributes=[KeyValue(key="tags", value=listed)])) == {"tags": ["a", None]}
