"""Tic-tac-toe as a task: a game from an opening, what it is paid, and openings for training and for testing."""

from __future__ import annotations

import random

from art_nb.tasks.tic_tac_toe.rules import (
    EMPTY,
    Board,
    after_move,
    legal_moves,
    positions,
    render,
    same_by_symmetry,
    to_move,
    value,
    winner,
)

SPLITS = ("train", "test")


class Game:
    """One game from an opening; whoever's turn it is calls `move`.

    Fields: board; ended_by (None while it runs, then "line", "full", "illegal" or "malformed"); won_by ("x", "o" or None:
    drawn, or still running). Who answers with no square, or with a taken one, loses.

    Raises: ValueError for an opening in which the game is over.
    """

    def __init__(self, opening: Board = EMPTY):
        if not legal_moves(opening):
            raise ValueError(f"opening {opening!r} leaves no move: give a board on which the game still runs")
        self.board = opening
        self.ended_by: str | None = None
        self.won_by: str | None = None

    @property
    def over(self) -> bool:
        return self.ended_by is not None

    @property
    def to_move(self) -> str:
        return to_move(self.board)

    def render(self) -> str:
        """The board as the model reads it."""
        return render(self.board)

    def move(self, answer: str | None) -> None:
        """Play an answer, "1" to "9", outer spaces aside. Raises: ValueError if the game is over."""
        if self.over:
            raise ValueError(f"the game is over ({self.ended_by}); start another with Game(opening)")
        square = (answer or "").strip()
        if square not in legal_moves(self.board):
            self.ended_by = "illegal" if square.isascii() and square.isdigit() else "malformed"
            self.won_by = "o" if self.to_move == "x" else "x"
            return
        self.board = after_move(self.board, square)
        self.won_by = winner(self.board)
        if not legal_moves(self.board):
            self.ended_by = "line" if self.won_by else "full"

    def reward(self, side: str) -> float:
        """For "x" or "o": 1 won, 0 drawn, -1 lost."""
        return 0.0 if self.won_by is None else 1.0 if self.won_by == side else -1.0


def openings(split: str, n: int | None = None) -> list[Board]:
    """Boards after two or three moves that perfect play draws, in a shuffled order; None: all of the split.

    What is equal but for turning and mirroring lies in one split, so no test opening is a training opening in disguise.

    Raises: ValueError for another split.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    even = [board for plies in (2, 3) for board in positions(plies) if value(board) == 0]
    kinds = sorted({same_by_symmetry(board) for board in even})
    random.Random(0).shuffle(kinds)
    tested = set(kinds[: len(kinds) // 3])
    chosen = [board for board in even if (same_by_symmetry(board) in tested) == (split == "test")]
    random.Random(1).shuffle(chosen)
    return chosen[:n]
