"""The exercises of notebook 03, Tic-tac-toe."""

from __future__ import annotations

from math import exp

from course.exercises import Exercise, checker
from tic_tac_toe.rules import LINES, SQUARES, Board, legal_moves, to_move

BOARDS = ["x...o...x", "xo..x...o", "x.o......", "o.x.x.o..", ".........", "xx.oo....", "x.oo.....", "..x.o.x.."]


def _threats(cells: Board, side: str) -> int:
    return sum(sorted(cells[i] for i in line) == [".", side, side] for line in LINES)


def _forks(board: Board, at_least: int = 2, for_other: bool = False) -> list[str]:
    side = to_move(board)
    side = "xo".replace(side, "") if for_other else side
    after = {square: board[:cell] + side + board[cell + 1 :] for cell, square in enumerate(SQUARES) if board[cell] == "."}
    return [square for square, cells in after.items() if _threats(cells, side) >= at_least]


def _half_empty_lines(board: Board) -> list[str]:
    """Return the squares on two lines without a mark of the opponent, whether or not they make a threat."""
    side, found = to_move(board), []
    for square in legal_moves(board):
        cell = SQUARES.index(square)
        open_lines = [line for line in LINES if cell in line and all(board[i] in (".", side) for i in line)]
        if len(open_lines) >= 2:
            found.append(square)
    return found


FORKS = Exercise(
    right=_forks,
    cases=lambda: [(board,) for board in BOARDS],
    mistakes={
        "One threat is not a fork: it can be blocked. Count the lines that could be completed next.": lambda b: _forks(b, 1),
        "Use the side to move, `to_move(board)`, not its opponent.": lambda b: _forks(b, for_other=True),
        "Count a line that has two of your marks and an empty square after the move, not every line without the opponent's.":
            _half_empty_lines,
        "These are all free squares. Return those that make two threats.": legal_moves,
        "There are forks on some of these boards.": lambda b: [],
    },
)  # fmt: skip


def _expected(mine: float, other: float) -> float:
    return 1 / (1 + 10 ** ((other - mine) / 400))


EXPECTED = Exercise(
    right=_expected,
    cases=lambda: [(0.0, 0.0), (1200.0, 1000.0), (900.0, 1000.0), (1500.0, 700.0), (-200.0, 0.0)],
    mistakes={
        "Inverted: the player with the higher rating gets more.": lambda mine, other: _expected(other, mine),
        "Elo's scale is base 10 and 400 points, not e and 400.": lambda mine, other: 1 / (1 + exp((other - mine) / 400)),
        "Only the difference counts, not the ratio of the ratings.":
            lambda mine, other: mine / (mine + other) if mine + other else 0.5,
        "Expected points are between 0 and 1; this is a difference.": lambda mine, other: (mine - other) / 400,
    },
)  # fmt: skip

def _credit(result: float, moves: int, discount: float) -> list[float]:
    return [result * discount ** (moves - 1 - i) for i in range(moves)]


CREDIT = Exercise(
    right=_credit,
    cases=lambda: [(1.0, 3, 0.5), (-1.0, 4, 0.7), (0.0, 2, 0.7), (1.0, 1, 0.5), (-1.0, 3, 1.0)],
    mistakes={
        "The last move is closest to the result and gets all of it; the first one gets the least.":
            lambda result, moves, discount: _credit(result, moves, discount)[::-1],
        "Each move has a return: return as many numbers as there are moves.":
            lambda result, moves, discount: _credit(result, moves, discount)[-1:],
        "The reward comes after the last move, but the return of an earlier move includes it as well, discounted.":
            lambda result, moves, discount: [0.0] * (moves - 1) + [result],
        "The result is discounted once for each later move: not at all for the last.":
            lambda result, moves, discount: [discount * each for each in _credit(result, moves, discount)],
    },
)  # fmt: skip

EXERCISES = {"forks": FORKS, "credit": CREDIT, "expected_points": EXPECTED}
check = checker(EXERCISES)
