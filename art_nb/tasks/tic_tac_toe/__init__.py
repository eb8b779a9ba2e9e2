"""Tic-tac-toe: small enough that a perfect player exists, so self-play can be measured against the truth."""

from art_nb.tasks.tic_tac_toe.environment import Game, openings
from art_nb.tasks.tic_tac_toe.rules import EMPTY, SQUARES, board_of, legal_moves, render, to_move, value

__all__ = ["EMPTY", "Game", "SQUARES", "board_of", "legal_moves", "openings", "render", "to_move", "value"]
