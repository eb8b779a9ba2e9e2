"""Tic-tac-toe as a task: a game from an opening, its reward, and openings for training, validation and testing."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

from tic_tac_toe.players import Player, careful_player, other_side
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

SPLITS = ("train", "val", "test")
OVER = "The game is over."


class Game:
    """One game from an opening. Both sides call `move` in turn.

    Attributes: board; ended_by (None while the game runs, then "line", "full", "illegal" or "malformed"); won_by ("x", "o",
    or None for a draw or an unfinished game). An answer that is not a free square loses the game.

    Raises: ValueError for an opening that is not a board, has wrong numbers of x and o, or in which the game is over.
    """

    def __init__(self, opening: Board = EMPTY):
        if len(opening) != len(EMPTY) or not set(opening) <= {*EMPTY, "x", "o"}:
            raise ValueError(f"opening is {opening!r}: expected nine squares, each 'x', 'o' or {EMPTY[0]!r}")
        if opening.count("x") - opening.count("o") not in (0, 1):
            raise ValueError(f"opening is {opening!r}: expected as many x as o, or one more, because x moves first")
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
            self.won_by = other_side(self.to_move)
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

    Raises: ValueError for an unknown split, or if n is larger than the split.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    found = list(_openings(split))
    if n is not None and not 0 <= n <= len(found):
        raise ValueError(f"n must be 0 to {len(found)}, the size of the {split} split, not {n}")
    return found[:n]


@cache
def _openings(split: str) -> tuple[Board, ...]:
    drawn = [board for plies in (2, 3) for board in positions(plies) if value(board) == 0]
    classes = sorted({canonical(board) for board in drawn})
    random.Random(0).shuffle(classes)
    third, half = len(classes) // 3, len(classes) // 2
    mine = {"test": classes[:third], "val": classes[third:half], "train": classes[half:]}[split]
    chosen = [board for board in drawn if canonical(board) in mine]
    random.Random(1).shuffle(chosen)
    return tuple(chosen)


class TicTacToeEnvironment:
    """A game against a player, for TRL's `environment_factory`. The model plays the side to move in the opening.

    opponent: makes the other side's player from a seed. Each row of the dataset has an `opening` (default: the empty board)
    and a `seed` (default 0), and a prompt whose last user message is empty: TRL appends the first board to it.
    """

    plain_tool = "move"

    def __init__(self, opponent: Callable[[int], Player] = careful_player):
        self._opponent = opponent
        self.reset()

    def reset(self, opening: Board = EMPTY, seed: int = 0, **row: Any) -> str:
        """Start a game and return its board. Other columns are ignored."""
        self.game, self._play = Game(opening), self._opponent(seed)
        self._side = self.game.to_move
        return self.game.render()

    def move(self, square: str) -> str:
        """
        Mark a square; the other side answers.

        Args:
            square: 1 to 9.
        """
        if not self.game.over:
            self.game.move(str(square))
        if not self.game.over:
            self.game.move(self._play(self.game.board))
        return f"{self.game.render()}\n{OVER}" if self.game.over else self.game.render()

    def get_reward(self) -> float:
        """Return 1 for a win, -1 for a loss, else 0."""
        return self.game.reward(self._side)

    @property
    def over(self) -> bool:
        return self.game.over
