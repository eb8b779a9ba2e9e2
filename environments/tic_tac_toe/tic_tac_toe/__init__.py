"""Tic-tac-toe, with a perfect player to compare self-play with."""

from importlib.util import find_spec
from typing import Any

from tic_tac_toe.environment import Game, TicTacToeEnvironment, openings
from tic_tac_toe.rules import EMPTY, SQUARES, board_of, legal_moves, render, to_move, value

__all__ = [
    "EMPTY", "Game", "SQUARES", "TicTacToeEnvironment", "board_of", "legal_moves", "openings", "render", "to_move", "value",
]  # fmt: skip

if find_spec("verifiers"):  # its loader finds the taskset in `__all__`
    __all__ += ["TicTacToeTaskset"]


def __getattr__(name: str) -> Any:
    if name == "TicTacToeTaskset":
        from tic_tac_toe import taskset

        return taskset.TicTacToeTaskset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
