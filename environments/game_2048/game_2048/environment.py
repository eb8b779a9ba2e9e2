"""2048 as a task: the seeded game, its rewards, random boards, and an environment for TRL."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import log2
from typing import Any

from art_nb.environments import tool_schema
from game_2048.rules import (
    MOVES,
    TABLE_SIZE,
    Board,
    Row,
    after_move,
    board_of,
    is_tile,
    legal_moves,
    parse,
    render,
    slide,
    spawn,
    start_board,
)

__all__ = [
    "GAME_OVER", "MOVES", "MOVE_TOOL", "Board", "Game", "Game2048Environment", "TurnWeights", "after_move",
    "board_of", "legal_moves", "move_rewards", "outcome_reward", "parse", "random_board", "random_move_reward",
    "render", "scenarios", "slide", "soft_targets", "turn_reward",
]  # fmt: skip

GAME_OVER = "game over"  # the tool's result for the move that ends the game and for every later one

_FIRST_SEED = {"train": 0, "val": 1_000_000, "test": 2_000_000}
_SEEDS_PER_SPLIT = 1_000_000


@dataclass(frozen=True)
class TurnWeights:
    """Weights of the features in `turn_reward`, and rewards for the end of a game.

    illegal: the whole reward of an illegal or malformed answer.
    win, loss: added to the reward of the turn that wins the game, or after which no move is left.

    merges, empty, monotonicity, smoothness, closeness: weights of these features.

    An endless game must be worth less than a win; otherwise delaying the win pays. With the default weights a legal turn
    earns about half of their sum, and with a discount of 0.95 an endless game is worth 0.5 * 0.15 / (1 - 0.95) = 1.5.
    """

    merges: float = 0.06
    empty: float = 0.05
    monotonicity: float = 0.02
    smoothness: float = 0.02
    illegal: float = -1.0
    win: float = 2.0
    loss: float = -2.0
    closeness: float = 0.0


DEFAULT_TURN_WEIGHTS = TurnWeights()


def turn_reward(
    moved: Board, gained: int, winning_tile: int = 2048, weights: TurnWeights = DEFAULT_TURN_WEIGHTS
) -> float:
    """Return the reward of a legal move that led to `moved` (before the new tile) and scored `gained` by merging.

    The weighted sum of five features, at least 0 if no tile is above `winning_tile`:
    merges: log2(gained) / log2(winning_tile), 0 if nothing merged, above 1 for many large merges at once;
    empty: the share of empty cells;
    monotonicity: 1 if every line is monotonic, less the more it zigzags;
    smoothness: 1 if all neighbouring tiles are equal, minus their scaled mean distance in doublings;
    closeness: the mean closeness of the tiles to the lower left corner, weighted by their values: 1 in that corner, 0 in the
    opposite one.
    Source: the features are common in 2048 programs; they are scaled here to have similar sizes.
    """
    size, doublings = len(moved), log2(winning_tile) - 1
    shapes = map(_line_shape, (*moved, *zip(*moved, strict=True)))
    zigzag, distance, pairs = map(sum, zip(*shapes, strict=True))
    # In a line of n tiles min(rises, falls) is at most (n - 1) // 2 times the full range.
    worst_zigzag = max(1, (size - 1) // 2) * 2 * size * doublings
    return (
        weights.merges * (log2(gained) / log2(winning_tile) if gained else 0.0)
        + weights.empty * sum([row.count(0) for row in moved]) / size**2
        + weights.monotonicity * (1 - zigzag / worst_zigzag)
        + weights.smoothness * (1 - distance / (max(1, pairs) * doublings))
        + (weights.closeness * _closeness(moved) if weights.closeness else 0.0)
    )


def move_rewards(
    board: Board, winning_tile: int = 2048, weights: TurnWeights = DEFAULT_TURN_WEIGHTS
) -> dict[str, float]:
    """Return the `turn_reward` of each legal move on `board`, without `win` and `loss`."""
    return {move: turn_reward(*slide(board, move), winning_tile, weights) for move in legal_moves(board)}


def random_move_reward(board: Board, winning_tile: int = 2048, weights: TurnWeights = DEFAULT_TURN_WEIGHTS) -> float:
    """Return the mean of `move_rewards`, 0 if no move is legal."""
    rewards = move_rewards(board, winning_tile, weights).values()
    return sum(rewards) / max(1, len(rewards))


def _closeness(board: Board) -> float:
    """Return the mean over the tiles, weighted by their values, of 1 minus the scaled number of steps to the lower left."""
    far = 2 * (len(board) - 1)
    steps = sum(tile * (len(board) - 1 - i + j) for i, row in enumerate(board) for j, tile in enumerate(row))
    return 1 - steps / (far * max(1, sum(map(sum, board))))


@lru_cache(TABLE_SIZE)
def _line_shape(line: Row) -> tuple[int, int, int]:
    """Return (min(rises, falls), rises + falls, number of neighbouring pairs); rises and falls are sums in doublings.

    Tiles with only empty cells between them count as neighbours.
    """
    levels = [tile.bit_length() for tile in line if tile]
    steps = [b - a for a, b in pairwise(levels)]
    rises = sum(step for step in steps if step > 0)
    falls = rises - sum(steps)
    return min(rises, falls), rises + falls, len(steps)


class Game:
    """One game of 2048 with seeded new tiles.

    seed: at least 0. The value of the k-th new tile depends only on (seed, k); its place also on which cells are empty. The
      games of a group share a seed, so that less of the difference between their rewards is luck.
    size: the board has size x size cells, at least 2.
    winning_tile: the tile that wins the game, a power of two, at least 8.
    weights: for `turn_rewards`.

    Attributes: board, score (sum of the tiles made by merging), moves (number of legal moves), ended_by (None while the game
    runs, then "won", "stuck", "illegal" or "malformed"), turn_rewards (one per answer given to `move`).

    Raises: TypeError, ValueError for a seed, size or winning tile outside these bounds.
    """

    def __init__(
        self, seed: int, size: int = 4, winning_tile: int = 2048, weights: TurnWeights = DEFAULT_TURN_WEIGHTS
    ):
        for name, value, least in (("seed", seed, 0), ("size", size, 2), ("winning_tile", winning_tile, 8)):
            if type(value) is not int:
                raise TypeError(f"{name} must be an int, not {value!r} ({type(value).__name__})")
            if value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        if not is_tile(winning_tile):
            raise ValueError(f"winning_tile must be a power of two (8, 16, ..., 2048), not {winning_tile}")
        self.seed, self.size, self.winning_tile, self.weights = seed, size, winning_tile, weights
        self._rng = random.Random(seed)
        self.board: Board = start_board(self._rng, size)
        self.score = 0
        self.moves = 0
        self.ended_by: str | None = None
        self.turn_rewards: list[float] = []

    @property
    def over(self) -> bool:
        return self.ended_by is not None

    @property
    def won(self) -> bool:
        return self.ended_by == "won"

    @property
    def max_tile(self) -> int:
        return max(map(max, self.board))

    def legal_moves(self) -> list[str]:
        """Return the moves that change the board, in the order of MOVES."""
        return legal_moves(self.board)

    def render(self) -> str:
        """Return the board as the model reads it."""
        return render(self.board)

    def move(self, answer: str | None) -> float:
        """Play an answer: left, right, up or down, ignoring case and surrounding whitespace. Returns its turn reward.

        Any other answer is malformed, and a move that does not change the board is illegal. Both end the game with reward
        `weights.illegal`, by default -1 as for a malformed answer in ART's public 2048 example. If illegal moves did not end
        the game, a policy could repeat one forever and would not have to learn the rules.

        Raises: ValueError if the game is over.
        """
        if self.ended_by:
            raise ValueError(f"the game is over ({self.ended_by}); start another with Game(seed)")
        direction = (answer or "").strip().lower()
        if direction not in MOVES:
            return self._end_by("malformed")
        moved, gained = slide(self.board, direction)
        if moved == self.board:
            return self._end_by("illegal")
        self.board = spawn(moved, self._rng)
        self.score += gained
        self.moves += 1
        reward = turn_reward(moved, gained, self.winning_tile, self.weights)
        if gained >= self.winning_tile and self.max_tile >= self.winning_tile:
            self.ended_by = "won"
            reward += self.weights.win
        elif not legal_moves(self.board):
            self.ended_by = "stuck"
            reward += self.weights.loss
        self.turn_rewards.append(reward)
        return reward

    def _end_by(self, fault: str) -> float:
        self.ended_by = fault
        self.turn_rewards.append(self.weights.illegal)
        return self.weights.illegal


def outcome_reward(game: Game) -> float:
    """Return one reward for the whole game: 2 if won, -1 if ended by an illegal or malformed answer, else the board's value.

    The value is (log2(max) - 1) / (log2(win) - 1) + 0.2 * (log2(sum) - 1) / (log2(cells * win) - 1), with the largest tile
    and the sum of all tiles. It also applies to an unfinished game. Source: ART's public 2048 example, for 16 cells.
    """
    if game.won:
        return 2.0
    if game.ended_by in ("illegal", "malformed"):
        return -1.0
    total = sum(map(sum, game.board))
    by_max = (log2(game.max_tile) - 1) / (log2(game.winning_tile) - 1)
    by_sum = (log2(total) - 1) / (log2(game.size**2 * game.winning_tile) - 1)
    return by_max + 0.2 * by_sum


def scenarios(split: str, n: int) -> list[int]:
    """Return the first n seeds of a split: train from 0, val from 1,000,000, test from 2,000,000. Splits share no seed.

    Raises: ValueError for an unknown split or n above 1,000,000.
    """
    if split not in _FIRST_SEED:
        raise ValueError(f"split must be one of {', '.join(_FIRST_SEED)}, not {split!r}")
    if not 0 <= n <= _SEEDS_PER_SPLIT:
        raise ValueError(f"n must be from 0 to {_SEEDS_PER_SPLIT:,}, the number of seeds in a split, not {n:,}")
    return list(range(_FIRST_SEED[split], _FIRST_SEED[split] + n))


def soft_targets(board: Board) -> dict[str, float]:
    """Return the uniform distribution over the legal moves, as {move: probability}; all 0 on a stuck board."""
    legal = legal_moves(board)
    return {move: 1 / len(legal) if move in legal else 0.0 for move in MOVES}


def random_board(rng: random.Random, max_tile: int = 2048, size: int = 4) -> Board:
    """Return a board with a legal move and no tile above `max_tile`, a power of two, at least 4. size: at least 2.

    Half of the boards come from random play with all tiles scaled up: random play alone rarely makes a tile above 256, and
    scaling changes no rule. The others have independent random cells.
    """
    if max_tile < 4 or not is_tile(max_tile):
        raise ValueError(f"max_tile must be a power of two, at least 4, not {max_tile}")
    if size < 2:
        raise ValueError(f"size is {size}: expected at least 2, since a smaller board has no legal move")
    while True:
        make = _played_board if rng.random() < 0.5 else _scattered_board
        board = make(rng, max_tile, size)
        if legal_moves(board):
            return board


def _played_board(rng: random.Random, max_tile: int, size: int) -> Board:
    board = start_board(rng, size)
    for _ in range(int(rng.random() ** 2 * 8 * size**2)):
        legal = legal_moves(board)
        if not legal or max(map(max, board)) >= max_tile:
            break
        board = after_move(board, legal[int(rng.random() * len(legal))], rng)
    factors = (max_tile // max(map(max, board))).bit_length()  # 1, 2, 4, ... while no tile passes max_tile
    factor = 2 ** int(rng.random() * factors)
    return tuple(tuple(tile * factor for tile in row) for row in board)


def _scattered_board(rng: random.Random, max_tile: int, size: int) -> Board:
    """Return independent random cells with tiles of a random range; one board in five is full."""
    filled = 0.2 + rng.random()
    low, high = sorted(int(rng.random() * (max_tile.bit_length() - 1)) + 1 for _ in range(2))

    def cell() -> int:
        return 2 ** (low + int(rng.random() * (high - low + 1))) if rng.random() < filled else 0

    return tuple(tuple(cell() for _ in range(size)) for _ in range(size))


class Game2048Environment:
    """2048 for TRL's `environment_factory`. The reward is `outcome_reward`.

    Pass the class itself, or `functools.partial(Game2048Environment, winning_tile=128)`. Each row of the dataset has a
    `seed` (default 0) and a prompt whose last user message is empty: TRL appends the first board to it.

    TRL's loop ends when the model answers without a tool call, or at TRL's own limits. A tool cannot end it, and an
    exception becomes a tool result. Therefore the move that ends the game and all later calls return "game over", and the
    reward stays the same. A call that TRL cannot make (an unknown tool, no direction) does not reach the game.
    Source: GRPOTrainer._tool_call_loop of TRL 1.15.
    """

    def __init__(self, size: int = 4, winning_tile: int = 2048):
        self.size, self.winning_tile = size, winning_tile
        self.reset()

    def reset(self, seed: int = 0, **kwargs: Any) -> str:
        """Start the game of this seed and return its first board. Other columns are ignored."""
        self.game = Game(seed, self.size, self.winning_tile)
        return self.game.render()

    # This docstring becomes the tool's schema, which is in every prompt: it is short for the small model.
    def move(self, direction: str) -> str:
        """
        Slide all tiles.

        Args:
            direction: left, right, up or down.
        """
        if not self.game.over:
            self.game.move(str(direction))
        return GAME_OVER if self.game.over else self.game.render()

    def get_reward(self) -> float:
        """Return `outcome_reward`; an unfinished game is scored by its board."""
        return outcome_reward(self.game)

    @property
    def over(self) -> bool:
        return self.game.over

    @property
    def progress(self) -> float:
        """The sum of the game's turn rewards."""
        return sum(self.game.turn_rewards)


MOVE_TOOL = tool_schema(Game2048Environment.move)
"""The schema of `Game2048Environment.move`, to pass to a model as `tools=[MOVE_TOOL]`."""
