"""2048 as a task: the seeded game, its rewards, boards to teach it with, an environment for TRL."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import log2
from typing import Any

from art_nb.tasks.game_2048.rules import (
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
    "board_of", "demonstration_boards", "legal_moves", "outcome_reward", "parse", "random_board", "render",
    "scenarios", "slide", "soft_targets", "turn_reward",
]  # fmt: skip

GAME_OVER = "game over"  # the tool's result from the move that ended the game on

MOVE_TOOL = {
    "type": "function",
    "function": {
        "name": "move",
        "description": "Slide all tiles.",
        "parameters": {
            "type": "object",
            "properties": {"direction": {"type": "string", "description": "left, right, up or down."}},
            "required": ["direction"],
        },
        "return": {"type": "string"},
    },
}
"""The schema that TRL derives from `Game2048Environment.move`, to pass to a model as `tools=[MOVE_TOOL]`."""

_FIRST_SEED = {"train": 0, "val": 1_000_000, "test": 2_000_000}
_SEEDS_PER_SPLIT = 1_000_000


@dataclass(frozen=True)
class TurnWeights:
    """What `turn_reward` pays for each of its features, and what the end of a game pays.

    illegal: the whole reward of an illegal or malformed answer.
    win, loss: added to the reward of the turn that wins the game, or after which no move is left.

    A legal turn earns about half of the features' weights. At a discount of 0.95 an endless game is then
    worth 0.5 * 0.15 / (1 - 0.95) = 1.5, less than a win: were it more, putting off the win would pay.
    """

    merges: float = 0.06
    empty: float = 0.05
    monotonicity: float = 0.02
    smoothness: float = 0.02
    illegal: float = -1.0
    win: float = 2.0
    loss: float = -2.0


DEFAULT_TURN_WEIGHTS = TurnWeights()


def turn_reward(
    moved: Board, gained: int, winning_tile: int = 2048, weights: TurnWeights = DEFAULT_TURN_WEIGHTS
) -> float:
    """The reward of one legal move that led to `moved` (before the new tile) and scored `gained` by merging.

    The weighted sum of four features:
    merges: log2(gained) / log2(winning_tile), 0 if nothing merged, above 1 for many large merges at once;
    empty: the share of empty cells;
    monotonicity: 1 if the tiles of every line only rise or only fall, less as they zigzag, at least 0;
    smoothness: 1 if neighbouring tiles are equal, less by their mean distance in doublings, at least 0.
    Source: the four signals usual in 2048 programs; the scales are chosen here: none drowns the others.
    """
    size, doublings = len(moved), log2(winning_tile) - 1
    shapes = map(_line_shape, (*moved, *zip(*moved, strict=True)))
    zigzag, distance, pairs = map(sum, zip(*shapes, strict=True))
    # In a line of n tiles the smaller of all rises and all falls is at most (n - 1) // 2 full climbs.
    worst_zigzag = max(1, (size - 1) // 2) * 2 * size * doublings
    return (
        weights.merges * (log2(gained) / log2(winning_tile) if gained else 0.0)
        + weights.empty * sum([row.count(0) for row in moved]) / size**2
        + weights.monotonicity * (1 - zigzag / worst_zigzag)
        + weights.smoothness * (1 - distance / (max(1, pairs) * doublings))
    )


@lru_cache(TABLE_SIZE)
def _line_shape(line: Row) -> tuple[int, int, int]:
    """(the smaller of all rises and all falls, their sum, neighbouring pairs); rises and falls in doublings.

    Tiles with only empty cells between them are neighbours.
    """
    levels = [tile.bit_length() for tile in line if tile]
    steps = [b - a for a, b in pairwise(levels)]
    rises = sum(step for step in steps if step > 0)
    falls = rises - sum(steps)
    return min(rises, falls), rises + falls, len(steps)


class Game:
    """One game of 2048 whose luck is fixed by its seed, whoever plays it.

    seed: int from 0. The k-th new tile's value depends on (seed, k) alone, its place on (seed, k) and on
      which cells are empty. So the games of a group, played from one seed, compare policies and not luck.
    size: the board is size x size cells, at least 2.
    winning_tile: the game is won when this tile is made; a power of two from 8.
    weights: what the entries of `turn_rewards` are made of.

    Fields: board, score (sum of the tiles made by merging), moves (legal moves made), ended_by (None while
    the game runs, then "won", "stuck", "illegal" or "malformed"), turn_rewards (one float per answer given
    to `move`).

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
        """The moves that change the board, in the order of MOVES."""
        return legal_moves(self.board)

    def render(self) -> str:
        """The board as the model reads it."""
        return render(self.board)

    def move(self, answer: str | None) -> float:
        """Plays an answer: left, right, up or down, in any case, outer spaces aside. Returns its reward.

        Any other answer is malformed, a move that changes nothing is illegal, and both end the game.
        Malformed as in ART's public 2048 example, where an answer that cannot be read breaks the game off
        at a reward of -1. Illegal too, because else the cheapest policy would be to repeat a move that does
        nothing: the game would never end, and the model would not have to learn what is legal.

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
    """One reward for the whole game: 2 if won, -1 if ended by an illegal or malformed move, else its board.

    The board counts by its largest tile, (log2(max) - 1) / (log2(win) - 1), plus 0.2 times its sum,
    (log2(sum) - 1) / (log2(cells * win) - 1). A game that is still running, cut off by a limit of turns,
    counts so too. Source: the public 2048 example of ART, for its board of 16 cells.
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
    """The first n seeds of a split: train from 0, val from 1,000,000, test from 2,000,000; none is shared.

    Raises: ValueError for another split or more than 1,000,000 seeds.
    """
    if split not in _FIRST_SEED:
        raise ValueError(f"split must be one of {', '.join(_FIRST_SEED)}, not {split!r}")
    if not 0 <= n <= _SEEDS_PER_SPLIT:
        raise ValueError(f"a split has {_SEEDS_PER_SPLIT:,} seeds; {n:,} were asked for")
    return list(range(_FIRST_SEED[split], _FIRST_SEED[split] + n))


def soft_targets(board: Board) -> dict[str, float]:
    """Each move's probability when every legal move is equally likely; all zero on a stuck board."""
    legal = legal_moves(board)
    return {move: 1 / len(legal) if move in legal else 0.0 for move in MOVES}


def random_board(rng: random.Random, max_tile: int = 2048, size: int = 4) -> Board:
    """A board with a legal move and no tile above `max_tile` (from 4): random play scaled up, or random.

    Random play alone hardly ever makes a tile above 256; doubling all tiles together changes no rule.
    """
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
    """Every cell by itself: filled or not, its tile one of a random range; one board in five is full."""
    filled = 0.2 + rng.random()
    low, high = sorted(int(rng.random() * (max_tile.bit_length() - 1)) + 1 for _ in range(2))

    def cell() -> int:
        return 2 ** (low + int(rng.random() * (high - low + 1))) if rng.random() < filled else 0

    return tuple(tuple(cell() for _ in range(size)) for _ in range(size))


def demonstration_boards(seed: int, max_tile: int = 2048, size: int = 4) -> Iterator[Board]:
    """Endless boards, each with a legal move: ten turns of random legal play from each `random_board`."""
    rng = random.Random(seed)
    while True:
        board = random_board(rng, max_tile, size)
        for _ in range(10):
            legal = legal_moves(board)
            if not legal or max(map(max, board)) > max_tile:
                break
            yield board
            board = after_move(board, legal[int(rng.random() * len(legal))], rng)


class Game2048Environment:
    """2048 as a tool-playing episode for TRL's `environment_factory`; its reward is `outcome_reward`.

    Pass the class itself, or `functools.partial(Game2048Environment, winning_tile=128)`. The dataset's rows
    carry a `seed` (without one every game has seed 0) and a prompt whose last user message the first board
    is appended to: leave its content empty, and the model reads the board alone.

    TRL's loop ends when the model answers without a tool call, or at max_completion_length, at the
    context's end or at max_tool_calling_iterations; nothing that a tool does ends it, and an exception
    becomes the text of a tool result. So this environment says "game over" to every call from the one that
    ended the game on, which changes the reward no more, and leaves it to the model to stop calling. A call
    that TRL itself cannot make (another tool, no direction) never reaches the game and does not end it.
    Source: GRPOTrainer._tool_call_loop of TRL 1.15.
    """

    def __init__(self, size: int = 4, winning_tile: int = 2048):
        self.size, self.winning_tile = size, winning_tile
        self.reset()

    def reset(self, seed: int = 0, **kwargs: Any) -> str:
        """Starts the game of this seed and returns its first board; the row's other columns are ignored."""
        self.game = Game(seed, self.size, self.winning_tile)
        return self.game.render()

    # The tool's schema, made from this docstring, is in every prompt: short, for a small model's sake.
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
        """The game's `outcome_reward`; a game broken off counts by its board."""
        return outcome_reward(self.game)
