"""The rules of 2048 on a board of any size, and boards as text.

A board is an immutable tuple of rows, a row a tuple of tiles, and an empty cell is 0. Results of sliding a line are cached;
`python -m benchmarks.game_2048` measures the moves per second.
"""

from __future__ import annotations

import random
import re
from functools import lru_cache

Row = tuple[int, ...]
Board = tuple[Row, ...]

MOVES = ("left", "right", "up", "down")
FOUR_PROBABILITY = 0.1  # a new tile is a 4 with this probability, else a 2

# Limits the memory of the caches. 4x4 boards with tiles up to 2048 have at most 12**4 = 20,736 different lines.
TABLE_SIZE = 2**17


@lru_cache(TABLE_SIZE)
def slide_row(row: Row) -> tuple[Row, int]:
    """Return (the row slid left, the score gained). Equal neighbours merge, leftmost first, each tile at most once."""
    merged: list[int] = []
    gained, may_merge = 0, False
    for tile in filter(None, row):
        if may_merge and merged[-1] == tile:
            merged[-1] *= 2
            gained += merged[-1]
            may_merge = False
        else:
            merged.append(tile)
            may_merge = True
    return (*merged, *[0] * (len(row) - len(merged))), gained


@lru_cache(TABLE_SIZE)
def _slide_row_right(row: Row) -> tuple[Row, int]:
    moved, gained = slide_row(row[::-1])
    return moved[::-1], gained


@lru_cache(TABLE_SIZE)
def _row_slides(row: Row) -> int:
    """Return two bits: 1 if sliding left changes the row, 2 if sliding right does."""
    return (slide_row(row)[0] != row) + 2 * (_slide_row_right(row)[0] != row)


def slide(board: Board, move: str) -> tuple[Board, int]:
    """Return (the board after `move`, before the new tile; the score gained). An illegal move returns an equal board."""
    if move == "left":
        moved, gains = zip(*map(slide_row, board), strict=True)
        return moved, sum(gains)
    if move == "right":
        moved, gains = zip(*map(_slide_row_right, board), strict=True)
        return moved, sum(gains)
    slider = slide_row if move == "up" else _slide_row_right
    moved, gains = zip(*map(slider, zip(*board, strict=True)), strict=True)
    return tuple(zip(*moved, strict=True)), sum(gains)


def legal_moves(board: Board) -> list[str]:
    """Return the moves that change the board, in the order of MOVES; empty if the game is stuck."""
    across = down = 0
    for row in board:
        across |= _row_slides(row)
    for column in zip(*board, strict=True):
        down |= _row_slides(column)
    return _LEGAL[across + 4 * down].copy()


_LEGAL = [[move for bit, move in enumerate(MOVES) if slides >> bit & 1] for slides in range(16)]


def spawn(board: Board, rng: random.Random) -> Board:
    """Return the board with one new tile in a random empty cell: a 4 with probability 0.1, else a 2.

    Always draws two numbers, place then value, so that the k-th tile of a seeded game depends on earlier moves only
    through the set of empty cells.
    """
    place = int(rng.random() * sum([row.count(0) for row in board]))
    tile = 4 if rng.random() < FOUR_PROBABILITY else 2
    i = 0
    while place >= (empty := board[i].count(0)):
        place -= empty
        i += 1
    row = board[i]
    j = row.index(0)
    for _ in range(place):
        j = row.index(0, j + 1)
    return (*board[:i], (*row[:j], tile, *row[j + 1 :]), *board[i + 1 :])


def after_move(board: Board, move: str, rng: random.Random) -> Board:
    """Return the board after a legal move and a new tile. Raises: ValueError for an illegal move."""
    moved, _ = slide(board, move)
    if moved == board:
        raise ValueError(f"{move!r} does not change this board; its legal moves are {legal_moves(board)}")
    return spawn(moved, rng)


def start_board(rng: random.Random, size: int = 4) -> Board:
    """Return a board of size x size cells with two tiles."""
    return spawn(spawn(((0,) * size,) * size, rng), rng)


_CELL = re.compile(r"\.|[1-9][0-9]{0,18}")


def render(board: Board) -> str:
    """Return the board as the model reads it: one line per row, cells separated by spaces, a dot for an empty cell."""
    return "\n".join([" ".join([str(tile) if tile else "." for tile in row]) for row in board])


def parse(text: str) -> Board | None:
    """Return the board that `render` turns into `text`, ignoring extra spaces; None if there is none."""
    rows = [line.split() for line in text.strip().splitlines()]
    if len(rows) < 2 or any(len(row) != len(rows) for row in rows):
        return None
    if not all(_CELL.fullmatch(cell) for row in rows for cell in row):
        return None
    board = tuple(tuple(0 if cell == "." else int(cell) for cell in row) for row in rows)
    return board if all(tile == 0 or is_tile(tile) for row in board for tile in row) else None


def last_board(content: str) -> Board | None:
    """Return the board at the end of a message, which may have other text before it; None if there is none."""
    lines = content.strip().splitlines()
    size = len(lines[-1].split()) if lines else 0
    return parse("\n".join(lines[-size:])) if size else None


def board_of(content: str) -> list[list[int]] | None:
    """Return `last_board` as lists, for a viewer."""
    board = last_board(content)
    return [list(row) for row in board] if board else None


def is_tile(value: int) -> bool:
    """Return whether `value` is a power of two, at least 2."""
    return value >= 2 and value & (value - 1) == 0
