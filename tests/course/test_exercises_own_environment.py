"""The exercises of notebook 09: right answers are accepted in any form, and a mistake gets its hint."""

import hashlib
import random
from zlib import crc32

import pytest
from exercise_answers import hold

from course.exercises.own_environment import EXERCISES, check, progress

draw = random.Random(0)


def split_of(name):
    share = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 1000
    return "train" if share < 800 else "val" if share < 900 else "test"


def direction(place, home):
    across = home[1] - place[1]
    if across:
        return "right" if across > 0 else "left"
    return ("down", "up")[place[0] > home[0]]


def split_by_hash(name):
    part = hash(name) % 10
    return ("test", "val")[part] if part < 2 else "train"


class Digest:
    """A right answer may call a method or a module's function of the name `hash`."""

    def hash(self, text):
        return hashlib.md5(text.encode()).digest()[0]


ARRIVED: dict[str, int] = {}


def split_by_arrival(name):
    part = ARRIVED.setdefault(name, len(ARRIVED)) % 10
    return "test" if part == 0 else "val" if part == 1 else "train"


def split_by_arrival_in_a_default(name, arrived={}):  # noqa: B006
    part = arrived.setdefault(name, len(arrived)) % 10
    return "test" if part == 0 else "val" if part == 1 else "train"


def split_by_arrival_in_a_closure():
    arrived: dict[str, int] = {}

    def split(name):
        part = arrived.setdefault(name, len(arrived)) % 10
        return "test" if part == 0 else "val" if part == 1 else "train"

    return split


def split_by_arrival_of_a_helper(name):
    return split_by_arrival(name)


def split_by_arrival_in_an_inner_function(name):
    part = max(ARRIVED.setdefault(each, len(ARRIVED)) for each in [name]) % 10
    return "test" if part == 0 else "val" if part == 1 else "train"


def split_with_an_option(name, *, buckets=10):
    part = crc32(name.encode()) % buckets
    return "test" if part == 0 else "val" if part == 1 else "train"


def split_by_digest(name):
    return "train" if (part := Digest().hash(name)) > 51 else "val" if part > 25 else "test"


def split_by_hash_of_a_number(name):
    return "test" if (part := hash(crc32(name.encode())) % 10) == 0 else "val" if part == 1 else "train"


RIGHT = {"splits": split_of, "direction": direction}

WRONG = {
    "splits": [
        (split_by_arrival, "In another order"),
        (split_by_arrival_in_a_default, "In another order"),
        (split_by_arrival_in_a_closure(), "In another order"),
        (split_by_arrival_of_a_helper, "In another order"),
        (split_by_arrival_in_an_inner_function, "In another order"),
        (lambda name: ["train"], "Expected train, val or test"),
        (lambda name: draw.choices(["train", "val", "test"], [8, 1, 1])[0], "in another split"),
        (lambda name: "test" if hash(name) % 10 == 0 else "val" if hash(name) % 10 == 1 else "train", "each time Python starts"),
        (lambda name: split_by_hash(name), "each time Python starts"),
        (lambda name: ["test", "val", *["train"] * 8][hash((name, 0)) % 10], "each time Python starts"),
        (lambda name: {"0": "test", "1": "val"}.get(name[-1], "train"), "Expected about eight names of ten"),
        (lambda name: "train", "none is in test or val"),
        (lambda name: ["train", "val", "test"][len(name) % 3], "Expected about eight names of ten"),
        (lambda name: {"test": "testing"}.get(split_of(name), split_of(name)), "got 'testing'"),
        (lambda name: split_of(name.encode()), "raised AttributeError"),
    ],
    "direction": [
        (lambda place, home: "up" if place[0] > home[0] else "left", "farther"),
        (lambda place, home: "up" if place[0] > 0 else "left", "farther"),
        (lambda place, home: {"up": "left", "left": "up", "down": "right", "right": "down"}[direction(place, home)], "farther"),
        (lambda place, home: {"up": "down", "down": "up"}.get(direction(place, home), direction(place, home)), "is top left"),
        (lambda place, home: direction(place, home) if place[0] != home[0] else None, "from (0, 0) to (0, 1) it is None"),
        (lambda place, home: [direction(place, home)], "it is ['right']"),
        (lambda place, home: direction(place, home).upper(), "Expected one of left, right, up, down"),
    ],
    "hole": [
        (lambda before, after: after - before, "From distance 1, the step nearer"),
        (lambda before, after: float(after == 1), "From distance 1, the step nearer"),
        (lambda before, after: float(after < 4), "From distance 1, the step nearer"),
        (lambda before, after: 8 - after if after else 0, "From distance 1, the step nearer"),
        (lambda before, after: float("nan"), "Expected numbers; from distance 1 to 0, 1, 2"),
        (lambda before, after: "yes" if after < before else "no", "Expected numbers"),
        (lambda before, after: 1.0 if after < before else None, "they are [1.0, None, None]"),
        (lambda before, after: 1 / (before - after - 1), "raised ZeroDivisionError"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("exercise", EXERCISES)
def test_right_answers_and_mistakes(exercise):
    right = (RIGHT[exercise], EXERCISES[exercise].right) if exercise in RIGHT else ()
    hold(check, exercise, right, WRONG[exercise])


def test_another_function_of_the_name_hash_is_right():
    assert check("splits", split_by_digest).status == "right"
    assert check("splits", split_with_an_option).status == "right"
    assert check("splits", split_by_hash_of_a_number).status == "right"  # hash() of an integer is the same at each start


def test_without_the_hole_the_sum_of_the_rewards_depends_on_start_and_end_only():
    for _ in range(50):
        walk = [draw.randrange(7) for _ in range(20)]
        assert sum(map(progress, walk, walk[1:])) == walk[0] - walk[-1]
