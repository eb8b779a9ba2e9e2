"""2048: slide tiles, merge equal ones, reach a given tile before the moves run out."""

from importlib.util import find_spec
from typing import Any

from game_2048.environment import (
    GAME_OVER,
    MOVE_TOOL,
    MOVES,
    Game,
    Game2048Environment,
    TurnWeights,
    board_of,
    legal_moves,
    outcome_reward,
    random_board,
    random_move_reward,
    render,
    scenarios,
    turn_reward,
)

__all__ = [
    "GAME_OVER", "MOVES", "MOVE_TOOL", "Game", "Game2048Environment", "TurnWeights", "board_of", "legal_moves",
    "outcome_reward", "random_board", "random_move_reward", "render", "scenarios", "turn_reward",
]  # fmt: skip

if find_spec("verifiers"):  # its loader finds the taskset in `__all__`
    __all__ += ["Game2048Taskset"]


def __getattr__(name: str) -> Any:
    if name == "Game2048Taskset":
        from game_2048 import taskset

        return taskset.Game2048Taskset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
