"""The exercises of notebook 03: right answers are accepted in any form, and a mistake gets its hint."""

import math

import pytest
from exercise_answers import hold

from course.exercises.tic_tac_toe import EXERCISES, check
from tic_tac_toe.rules import after_move, legal_moves, to_move, winner


def forks(board):
    """Play on: after the move and a pass of the opponent, count the squares that win immediately."""
    side, found = to_move(board), []
    for square in legal_moves(board):
        after = after_move(board, square)
        if winner(after):
            continue  # a won game has no fork
        wins = [cell for cell in range(9) if after[cell] == "." and winner(after[:cell] + side + after[cell + 1 :]) == side]
        # A square that completes two lines would count twice; none of the boards has one.
        found += [square] if len(wins) >= 2 else []
    return found


def credit(result, moves, discount):
    returns = [result]
    while len(returns) < moves:
        returns.insert(0, discount * returns[0])
    return returns


RIGHT = {"forks": forks, "credit": credit, "expected_points": lambda mine, other: 10 ** (mine / 400) / (10 ** (mine / 400) + 10 ** (other / 400))}
WRONG = {
    "forks": [
        (lambda board: legal_moves(board), "Return those that make two"),
        (lambda board: [], "There are forks"),
        (lambda board: [s for s in legal_moves(board) if s == "5"], "For the input"),
        (lambda board: [int(s) for s in forks(board)], "For the input"),
        (lambda board: forks(after_move(board, legal_moves(board)[0])), "Not yet"),
    ],
    "credit": [
        (lambda result, moves, discount: [0.0] * (moves - 1) + [result], "The reward comes after the"),
        (lambda result, moves, discount: [result] * moves, "For the input"),
        (lambda result, moves, discount: [result * discount**i for i in range(moves)], "The last move is closest"),
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
    hold(check, exercise, (RIGHT[exercise], EXERCISES[exercise].right), WRONG[exercise])
