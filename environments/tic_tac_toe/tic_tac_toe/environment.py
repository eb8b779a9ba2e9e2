"""Tic-tac-toe as a task: a game from an opening, its reward, and openings for training and testing."""

from __future__ import annotations

import random

from tic_tac_toe.rules import (
    EMPTY,
    Board,
    after_move,
    canonical,
    legal_moves,
    positions,
    render,
    to_move,
    value,
    winner,
)

SPLITS = ("train", "test")


class Game:
    """One game from an opening. Both sides call `move` in turn.

    Attributes: board; ended_by (None while the game runs, then "line", "full", "illegal" or "malformed"); won_by ("x", "o",
    or None for a draw or an unfinished game). An answer that is not a free square loses the game.

    Raises: ValueError for an opening in which the game is over.
    """

    def __init__(self, opening: Board = EMPTY):
        if not legal_moves(opening):
            raise ValueError(f"opening {opening!r} leaves no move; give a board on which the game is not over")
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
        """Return the board as the model reads it."""
        return render(self.board)

    def move(self, answer: str | None) -> None:
        """Play an answer, "1" to "9", ignoring surrounding whitespace. Raises: ValueError if the game is over."""
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
        """Return 1 if the side ("x" or "o") won, -1 if it lost, else 0."""
        return 0.0 if self.won_by is None else 1.0 if self.won_by == side else -1.0


def openings(split: str, n: int | None = None) -> list[Board]:
    """Return n (None: all) shuffled boards of a split, after two or three moves, that are drawn under perfect play.

    Boards that are equal up to rotation and reflection are in the same split.

    Raises: ValueError for an unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    drawn = [board for plies in (2, 3) for board in positions(plies) if value(board) == 0]
    classes = sorted({canonical(board) for board in drawn})
    random.Random(0).shuffle(classes)
    tested = set(classes[: len(classes) // 3])
    chosen = [board for board in drawn if (canonical(board) in tested) == (split == "test")]
    random.Random(1).shuffle(chosen)
    return chosen[:n]
