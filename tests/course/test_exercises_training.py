"""Exercises that train: a wrong choice gets its hint after a small training. The solutions run in test_exercises.py."""

import random

import pytest

from course.exercises import (
    grpo_theory,
    other_environments,
    own_environment,
    ruler,
    scale_out,
    serve,
    start_here,
    tic_tac_toe,
)
from course.exercises.training import draw, percents
from tic_tac_toe.rules import legal_moves


def scrambled(board):
    """Block; elsewhere play a square that looks random, always the same one on the same board."""
    return random.Random(board).choice(tic_tac_toe.blocks(board) or legal_moves(board))


# exercise: (module, sizes of a small training, a wrong answer, words of its hint)
WRONG = {
    "group_size": (start_here, {"CALLS": 2}, lambda: 16, "of 4 calls made no update"),
    "kl_penalty": (grpo_theory, {"HACK_STEPS": 4}, lambda: 0.01, "Still hacked: at weight 0.01"),
    "teacher": (tic_tac_toe, {"DEMONSTRATIONS": 128}, scrambled, "its rule is hard to learn"),
    "criterion": (ruler, {"STEPS": 3, "GAMES": 16}, ruler.brevity, "The share of games won falls"),
    "hole": (own_environment, {"WALK_STEPS": 3}, own_environment.progress, "in the last two steps fewer than half must"),
    "silent": (serve, {"STEPS": 2}, lambda step, group, member, turn: member, "The policy still learns"),
    "hidden": (scale_out, {"STEPS": 5}, lambda: 0, "By step, with batches of age 0"),
    "memorised": (other_environments, {"STEPS": 3}, lambda step: list(range(8 * step, 8 * step + 8)), "Give it fewer different maps"),
}


@pytest.mark.parametrize("exercise", WRONG)
def test_a_wrong_choice_is_trained_and_gets_its_hint(exercise, monkeypatch):
    module, sizes, wrong, words = WRONG[exercise]
    for name, value in sizes.items():
        monkeypatch.setattr(module, name, value)
    verdict = module.check(exercise, wrong)
    assert verdict.status == "wrong" and words in verdict.text, verdict


def test_outside_of_a_notebook_the_curves_are_not_drawn(capsys):
    draw({"reward": {"a": [[0.1, 0.2]]}}, {"a": "trained"})
    assert capsys.readouterr().out == ""
    assert percents([0.5, 1]) == "50%, 100%"
