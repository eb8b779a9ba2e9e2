"""2048: slide tiles, merge equal ones, reach a given tile before no move is left."""

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
    render,
    scenarios,
    turn_reward,
)

__all__ = [
    "GAME_OVER", "MOVES", "MOVE_TOOL", "Game", "Game2048Environment", "TurnWeights", "board_of", "legal_moves",
    "outcome_reward", "random_board", "render", "scenarios", "turn_reward",
]  # fmt: skip
