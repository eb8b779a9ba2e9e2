"""Tic-tac-toe, with a perfect player to compare self-play with."""

from tic_tac_toe.environment import Game, TicTacToeEnvironment, openings
from tic_tac_toe.rules import EMPTY, SQUARES, board_of, legal_moves, render, to_move, value

__all__ = [
    "EMPTY", "Game", "SQUARES", "TicTacToeEnvironment", "board_of", "legal_moves", "openings", "render", "to_move", "value",
]  # fmt: skip
