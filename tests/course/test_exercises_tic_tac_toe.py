"""The exercises of notebook 03: right answers are accepted in any form, and a mistake gets its hint."""

import math
import random

import pytest
from exercise_answers import hold

from course.exercises.tic_tac_toe import EXERCISES, blocks, check
from tic_tac_toe.rules import LINES, after_move, legal_moves, to_move, winner


def forks(board, squares=False):
    """Play on: after the move and a pass of the opponent, count the lines, or squares, that win immediately."""
    side, found = to_move(board), []
    for square in legal_moves(board):
        after = after_move(board, square)
        if winner(after):
            continue  # a won game has no fork
        next_boards = [after[:cell] + side + after[cell + 1 :] for cell in range(9) if after[cell] == "."]
        lines = [sum(all(cells[i] == side for i in line) for line in LINES) for cells in next_boards]
        found += [square] if sum(map(bool, lines) if squares else lines) >= 2 else []
    return found


RIGHT = {"forks": forks, "expected_points": lambda mine, other: 10 ** (mine / 400) / (10 ** (mine / 400) + 10 ** (other / 400))}
WRONG = {
    "forks": [
        (lambda board: legal_moves(board), "Return those after which"),
        (lambda board: [s for s in forks(board) if s != "8"], "For the input"),  # does not count the threat that was there
        (lambda board: forks(board, squares=True), "expected ['1'], got []"),  # two threats that need the same square
        (lambda board: [], "There are forks"),
        (lambda board: [s for s in legal_moves(board) if s == "5"], "For the input"),
        (lambda board: [int(s) for s in forks(board)], "For the input"),
        (lambda board: forks(after_move(board, legal_moves(board)[0])), "Not yet"),
    ],
    "teacher": [
        (lambda board: legal_moves(board)[0], "but it must block"),
        (lambda board: "5", "which is not a free square"),
        (lambda board: (blocks(board) or [None])[0], "Your teacher plays None"),
        (lambda board: int(legal_moves(board)[0]), "Return a string such as"),
        (lambda board: [][0], "raised IndexError"),
        (lambda board: random.choice(blocks(board) or legal_moves(board)), "another time"),
    ],
    "expected_points": [
        (lambda mine, other: 1 / (1 + 10 ** ((mine - other) / 400)), "Inverted"),
        (lambda mine, other: 1 / (1 + math.exp((other - mine) / 400)), "base 10"),
        (lambda mine, other: mine - other, "expected 0.5, got 0."),
        (lambda mine, other: mine / (mine + other), "ZeroDivisionError"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("exercise", EXERCISES)
def test_right_answers_and_mistakes(exercise):
    right = (RIGHT[exercise], EXERCISES[exercise].right) if exercise in RIGHT else ()
    hold(check, exercise, right, WRONG[exercise])


@pytest.mark.parametrize("form", [set, tuple, lambda squares: squares[::-1], lambda squares: (square for square in squares)])
def test_forks_are_right_in_any_order_and_container(form):
    assert check("forks", lambda board: form(forks(board))).status == "right"


def test_a_fork_returned_twice_is_wrong():
    assert check("forks", lambda board: 2 * forks(board)).status == "wrong"


def test_blocks_are_the_squares_that_stop_a_line():
    assert blocks("xx.o.....") == ["3"] and blocks("x...o....") == []
    assert blocks("xx.oo....") == ["6"]
