"""Baseline players of 2048: random, a corner heuristic, greedy on the turn reward, and exact expectimax.

A player is a function from a board to a direction. Expectimax packs a board into 64 bits, four per cell, and searches all
boards of one depth at once with numpy.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from itertools import groupby, pairwise, product
from typing import Any, NamedTuple

import numpy as np

from game_2048.environment import Game, TurnWeights, move_rewards
from game_2048.rules import FOUR_PROBABILITY, MOVES, Board, legal_moves, slide_row

Player = Callable[[Board], str]


def play(player: Player, seed: int, max_moves: int | None = None, **options: Any) -> Game:
    """Return the game of this seed after `player` played it to the end or for `max_moves` moves. options: of `Game`."""
    game = Game(seed, **options)
    while not game.over and game.moves != max_moves:
        game.move(player(game.board))
    return game


def random_player(seed: int) -> Player:
    """Return a player that chooses uniformly among the legal moves."""
    rng = random.Random(seed)
    return lambda board: rng.choice(legal_moves(board))


def corner_player(board: Board) -> str:
    """Play the first legal move of down, left, right, up, which keeps large tiles in the lower left corner."""
    legal = legal_moves(board)
    return next(move for move in ("down", "left", "right", "up") if move in legal)


def greedy_player(weights: TurnWeights, winning_tile: int = 2048) -> Player:
    """Return a player that chooses the move with the highest `turn_reward`. It does not consider the new tile."""

    def player(board: Board) -> str:
        rewards = move_rewards(board, winning_tile, weights)
        return max(rewards, key=rewards.__getitem__)

    return player


def expectimax_player(depth: int = 3) -> Player:
    """Return a player that chooses the move with the highest value in `move_values(board, depth)`."""

    def player(board: Board) -> str:
        values = move_values(board, depth)
        return max(values, key=values.__getitem__)

    return player


def move_values(board: Board, depth: int) -> dict[str, float]:
    """Return the expected value of each legal move under optimal play for `depth` turns; a turn is a move and its new tile.

    value(board, 0) = evaluate(board); value(board, d) is the best move's mean of value(next board, d - 1) over every empty
    cell and both tiles (0.9 for a 2, 0.1 for a 4), and 0 where no move is left. Nothing is pruned or sampled: equal boards
    are searched once, and the mean over the last new tile is computed from tables of rows. Exact up to float64 rounding.

    board: 2x2 to 4x4, with tiles that sum to less than 65,000, because a cell has four bits.
    Raises: ValueError for another board or a depth below 1.
    """
    if depth < 1:
        raise ValueError(f"depth, the number of turns to look ahead, must be at least 1, not {depth}")
    size, packed = len(board), np.array([pack(board)], np.uint64)
    moved = _moves(packed, size)[:, 0]
    legal = moved != packed
    values = iter(_after_moves(moved[legal], depth - 1, size).tolist())
    return {move: next(values) for move, changed in zip(MOVES, legal.tolist(), strict=True) if changed}


def evaluate(board: Board) -> float:
    """Return the heuristic value of a board: the sum of `row_value` over its rows and columns."""
    return float(sum(row_value(line) for line in (*board, *zip(*board, strict=True))))


def row_value(row: tuple[int, ...]) -> float:
    """Return 200,000 + 270 * empty cells + 700 * merges - 47 * zigzag - 11 * weight of a row or column.

    The level of a cell is log2 of its tile, or 0. Weight is the sum of level**3.5; zigzag is the smaller of the sum of
    rises and the sum of falls of level**4 between neighbouring cells; a run of k > 1 equal tiles, ignoring empty cells, has
    k merges. The 200,000 keeps ordinary boards above a lost one, whose value is 0.
    Source: form and weights of R. Xiao's 2048-ai (github.com/nneonneo/2048-ai).
    """
    levels = [tile.bit_length() - 1 if tile else 0 for tile in row]
    tiles = [level for level in levels if level]
    merges = sum(length for length in (len(list(run)) for _, run in groupby(tiles)) if length > 1)
    steps = [b**4 - a**4 for a, b in pairwise(levels)]
    rises = sum(step for step in steps if step > 0)
    zigzag = min(rises, rises - sum(steps))
    weight = sum(level**3.5 for level in levels)
    return 200_000.0 + 270 * row.count(0) + 700 * merges - 47 * zigzag - 11 * weight


def pack(board: Board) -> int:
    """Return the board in 64 bits: four bits from bit 16 * i + 4 * j hold log2(tile), or 0, of row i and column j."""
    size, total = len(board), sum(map(sum, board))
    if not 2 <= size <= 4 or total >= 65_000:
        raise ValueError(
            f"the board is {size}x{size} and its tiles sum to {total:,}; expectimax needs 2x2 to 4x4 and a sum below "
            "65,000. The other players play any board"
        )
    return sum(_pack_row(row) << 16 * i for i, row in enumerate(board))


def _pack_row(row: tuple[int, ...]) -> int:
    return sum((tile.bit_length() - 1 if tile else 0) << 4 * j for j, tile in enumerate(row))


class _Tables(NamedTuple):
    """Tables over all packed rows."""

    left: np.ndarray  # (rows,) uint64, the row slid left
    right: np.ndarray  # (rows,) uint64
    value: np.ndarray  # (rows,) float64, row_value
    growth: np.ndarray  # (rows,) float64, mean change in value due to a new tile, summed over the empty cells


@cache
def _tables(size: int) -> _Tables:
    """Return the tables for a board size, computed once; about a second for 4x4."""
    tiles = [0, *(2**level for level in range(1, 16))]
    rows = [row[::-1] for row in product(tiles, repeat=size)]  # in the order of their packed values
    left = [_pack_row(slide_row(row)[0]) & (16**size - 1) for row in rows]
    right = [_pack_row(slide_row(row[::-1])[0][::-1]) & (16**size - 1) for row in rows]
    value = np.array([row_value(row) for row in rows])
    packed = np.arange(16**size)
    growth = np.zeros(16**size)
    for cell in range(size):
        empty = (packed >> 4 * cell & 15) == 0
        index = packed[empty]
        with_two, with_four = value[index + (1 << 4 * cell)], value[index + (2 << 4 * cell)]
        growth[empty] += (1 - FOUR_PROBABILITY) * with_two + FOUR_PROBABILITY * with_four - value[index]
    return _Tables(np.array(left, np.uint64), np.array(right, np.uint64), value, growth)


def _values(boards: np.ndarray, depth: int, size: int) -> np.ndarray:
    """boards: (n,) uint64, depth >= 1 -> (n,) float64, the value of each before a move."""
    moved = _moves(boards, size)
    legal = moved != boards
    values = np.zeros(moved.shape)
    values[legal] = _after_moves(moved[legal], depth - 1, size)
    values[~legal] = -np.inf
    return np.where(legal.any(0), values.max(0), 0.0)


def _after_moves(moved: np.ndarray, depth: int, size: int) -> np.ndarray:
    """moved: (n,) uint64, boards before the new tile -> (n,) float64, the mean value after it."""
    if depth == 0:
        return _mean_evaluation(moved, size)
    distinct, where = np.unique(moved, return_inverse=True)
    shifts = np.array([16 * i + 4 * j for i in range(size) for j in range(size)], np.uint64)
    board, cell = np.nonzero((distinct[:, None] >> shifts & np.uint64(15)) == 0)
    with_two = distinct[board] + (np.uint64(1) << shifts[cell])
    with_four = distinct[board] + (np.uint64(2) << shifts[cell])
    children, child = np.unique(np.concatenate([with_two, with_four]), return_inverse=True)
    two, four = _values(children, depth, size)[child].reshape(2, -1)
    total = np.bincount(board, (1 - FOUR_PROBABILITY) * two + FOUR_PROBABILITY * four, len(distinct))
    return (total / np.bincount(board, minlength=len(distinct)))[where]


def _mean_evaluation(moved: np.ndarray, size: int) -> np.ndarray:
    """`_after_moves` at depth 0. The mean of a sum over rows and columns is the sum of their means."""
    tables = _tables(size)
    value, growth, empty = np.zeros(len(moved)), np.zeros(len(moved)), np.zeros(len(moved))
    for lines in (moved, _transpose(moved)):
        for i in range(size):
            row = _row(lines, i)
            value += tables.value[row]
            growth += tables.growth[row]
    for i in range(size):
        for j in range(size):
            empty += (moved >> np.uint64(16 * i + 4 * j) & np.uint64(15)) == 0
    return value + growth / empty


def _moves(boards: np.ndarray, size: int) -> np.ndarray:
    """(n,) uint64 -> (4, n) uint64: each board after each of MOVES, unchanged if the move is illegal."""
    tables, columns = _tables(size), _transpose(boards)
    return np.stack([
        _slide(boards, tables.left, size), _slide(boards, tables.right, size),
        _transpose(_slide(columns, tables.left, size)), _transpose(_slide(columns, tables.right, size)),
    ])  # fmt: skip


def _slide(boards: np.ndarray, table: np.ndarray, size: int) -> np.ndarray:
    moved = table[_row(boards, 0)]
    for i in range(1, size):
        moved |= table[_row(boards, i)] << np.uint64(16 * i)
    return moved


def _row(boards: np.ndarray, i: int) -> np.ndarray:
    return (boards >> np.uint64(16 * i) & np.uint64(0xFFFF)).astype(np.intp)


def _transpose(boards: np.ndarray) -> np.ndarray:
    """Transpose packed boards: swap the off-diagonal cells of each 2x2 block, then the off-diagonal blocks."""
    for keep, later, earlier, shift in _TRANSPOSITION:
        boards = boards & keep | (boards & later) << shift | (boards & earlier) >> shift
    return boards


_TRANSPOSITION = np.array(
    [
        (0xF0F00F0FF0F00F0F, 0x0000F0F00000F0F0, 0x0F0F00000F0F0000, 12),
        (0xFF00FF0000FF00FF, 0x00000000FF00FF00, 0x00FF00FF00000000, 24),
    ],
    np.uint64,
)
