"""The exercises of notebook 06: right answers are accepted in any form, and a mistake gets its hint."""

import random
from itertools import pairwise

import pytest
from exercise_answers import hold, hold_mistakes

from art_nb.training.prefix_tree import PrefixTree
from course.exercises.real_model import EXERCISES, check


def exact(answer, truth):
    answer = answer.strip()
    answer = answer[:-1] if answer.endswith(".") else answer
    return 1.0 if answer.isdigit() and answer == f"{truth}" else 0.0


def distinct(sequences):
    tree = {}
    for ids in sequences:
        node = tree
        for token in ids:
            node = node.setdefault(token, {})

    def count(node):
        return sum(1 + count(child) for child in node.values())

    return count(tree)


def new_after_the_one_before(sequences):
    return sum(distinct([before, ids]) - len(before) for before, ids in pairwise([[], *sequences]))


RIGHT = {
    "exact": exact,
    "distinct": distinct,
    "signal": lambda p, size: 1 - (1 - p) ** size - p**size,
    "cost": lambda parameters, tokens: 2 * parameters * tokens * 2,
}
WRONG = {
    "exact": [
        (lambda answer, truth: 1.0 if f"{truth}" in answer else 0.0, "a list of many numbers"),
        (lambda answer, truth: 1.0 if answer == str(truth) else 0.0, "Ignore whitespace around the number"),
        (lambda answer, truth: 1.0 if answer.strip() == str(truth) else 0.0, "Ignore a full stop after"),
        (lambda answer, truth: 1.0, "For the input"),
        (lambda answer, truth: float(int(answer) == truth), "raised ValueError"),
    ],
    "distinct": [
        (lambda sequences: sum(len(ids) for ids in sequences), "all tokens"),
        (lambda sequences: len(set(sum(sequences, []))), "A node is a token"),
        (lambda sequences: len({pair for ids in sequences for pair in enumerate(ids)}), "The same id at the"),
        (lambda sequences: max(map(len, sequences)), "For the input"),
        (new_after_the_one_before, "compare with all"),
    ],
    "signal": [
        (lambda p, size: 1 - (1 - p) ** size, "all answers are right"),
        (lambda p, size: 1 - p**size, "all answers are wrong"),
        (lambda p, size: size * p, "do not add up"),
        (lambda p, size: (1 - p) ** size + p**size, "no signal"),
    ],
    "cost": [
        (lambda parameters, tokens: 6 * parameters * tokens, "frozen"),
        (lambda parameters, tokens: 2 * parameters * tokens, "forward pass alone"),
        (lambda parameters, tokens: tokens * parameters, "additions"),
        (lambda parameters, tokens: 4 * parameters, "For the input"),
    ],
}


@pytest.mark.parametrize("exercise", EXERCISES)
def test_right_answers_and_mistakes(exercise):
    hold(check, exercise, (RIGHT[exercise], EXERCISES[exercise].right), WRONG[exercise])


def test_every_known_mistake_gets_its_hint():
    hold_mistakes(EXERCISES)


def test_distinct_tokens_are_the_nodes_of_the_prefix_tree():
    draw = random.Random(0)
    for _ in range(50):
        sequences = [[draw.randrange(3) for _ in range(draw.randrange(1, 8))] for _ in range(6)]
        assert EXERCISES["distinct"].right(sequences) == len(PrefixTree(sorted(sequences)))


def test_the_probability_of_a_signal_equals_its_simulated_frequency():
    draw = random.Random(0)
    groups = [[draw.random() < 0.2 for _ in range(6)] for _ in range(20_000)]
    assert EXERCISES["signal"].right(0.2, 6) == pytest.approx(sum(0 < sum(g) < 6 for g in groups) / len(groups), abs=0.02)
