"""The exercises of notebook 10: right answers are accepted in any form, and a mistake gets its hint."""

import math

import pytest
from exercise_answers import hold, hold_mistakes

from art_nb.monitoring.monitor import backoff_delays
from art_nb.training.grpo import group_advantages
from course.exercises.monitor import EXERCISES, check


def first_alarm(values, limit):
    for i, value in enumerate(values):
        if math.isnan(value) or value > limit:
            return i


def waits(tries, most):
    result, wait = [], 1
    for _ in range(tries):
        result.append(float(min(wait, most)))
        wait *= 2
    return result


RIGHT = {
    "silent": lambda group_rewards: sum(max(group) - min(group) == 0 for group in group_rewards) / len(group_rewards),
    "first_alarm": first_alarm,
    "waits": waits,
}
WRONG = {
    "silent": [
        (lambda groups: sum(max(g) == min(g) for g in groups), "a count"),
        (lambda groups: sum(len(set(g)) > 1 for g in groups) / len(groups), "This is the share of"),
        (lambda groups: sum(not any(g) for g in groups) / len(groups), "always wins"),
        (lambda groups: 0.5, "For the input"),
    ],
    "first_alarm": [
        (lambda values, limit: ([i for i, v in enumerate(values) if v > limit] or [None])[0], "NaN"),
        (lambda values, limit: values.index(max(values)), "not the worst"),
        (lambda values, limit: ([i for i, v in enumerate(values) if v >= limit or v != v] or [None])[0], "equals the limit"),
        (lambda values, limit: ([i + 1 for i, v in enumerate(values) if v > limit or v != v] or [None])[0], "from 0"),
    ],
    "waits": [
        (lambda tries, most: [float(2**i) for i in range(tries)], "after ten failures the next"),
        (lambda tries, most: [min(2 * 2.0**i, most) for i in range(tries)], "first wait is 1"),
        (lambda tries, most: [min(1.0 + i, most) for i in range(tries)], "twice the last"),
        (lambda tries, most: [1.0 for _ in range(tries)], "a service that has just"),
    ],
}


@pytest.mark.parametrize("exercise", EXERCISES)
def test_right_answers_and_mistakes(exercise):
    hold(check, exercise, (RIGHT[exercise], EXERCISES[exercise].right), WRONG[exercise])


def test_every_known_mistake_gets_its_hint():
    hold_mistakes(EXERCISES)


def test_the_solutions_agree_with_the_library():
    import torch

    waited = backoff_delays()
    assert EXERCISES["waits"].right(9, 60.0) == [next(waited) for _ in range(9)]
    groups = [[1.0, 0.0], [0.5, 0.5], [2.0, 2.0], [0.0, 3.0]]
    rewards, ids = torch.tensor(groups).flatten(), torch.arange(4).repeat_interleave(2)
    silent = (group_advantages(rewards, ids).reshape(4, 2) == 0).all(1).float().mean()
    assert EXERCISES["silent"].right(groups) == pytest.approx(float(silent))
