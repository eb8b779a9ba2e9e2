"""The rules of 2048 on a board of any size, and a board as text.

A board is a tuple of rows, a row a tuple of tiles, and an empty cell is 0. Boards are values: nothing
changes one. What happens to a line is looked up in a table that fills itself; `python -m
benchmarks.game_2048` prints how many moves a second that makes.
"""

from __future__ import annotations

import random
import re
from functools import lru_cache

Row = tuple[int, ...]
Board = tuple[Row, ...]

MOVES = ("left", "right", "up", "down")
FOUR_PROBABILITY = 0.1  # a new tile is a 4 with this probability, else a 2

# Bounds the memory of a table of lines. Playing 4x4 to 2048 meets at most 12**4 = 20,736 lines.
TABLE_SIZE = 2**17


@lru_cache(TABLE_SIZE)
def slide_row(row: Row) -> tuple[Row, int]:
    """(the row slid left, the score gained): equal neighbours merge, the leftmost first, a tile only once."""
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
    """Bit 0: sliding left changes the row. Bit 1: sliding right does."""
    return (slide_row(row)[0] != row) + 2 * (_slide_row_right(row)[0] != row)


def slide(board: Board, move: str) -> tuple[Board, int]:
    """(the board after `move`, before the new tile; the score gained). If illegal, an equal board."""
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
    """The moves that change the board, in the order of MOVES; none means that the game is stuck."""
    across = down = 0
    for row in board:
        across |= _row_slides(row)
    for column in zip(*board, strict=True):
        down |= _row_slides(column)
    return _LEGAL[across + 4 * down].copy()


_LEGAL = [[move for bit, move in enumerate(MOVES) if slides >> bit & 1] for slides in range(16)]


def spawn(board: Board, rng: random.Random) -> Board:
    """The board with one new tile, a 2 or (one time in ten) a 4; all empty cells are equally likely.

    Draws two numbers, place then value, whatever the board: so the k-th tile of a game depends on nothing
    that a player did, but for which cells are empty.
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
    """The board after a legal move and the new tile that follows. Raises: ValueError if it is illegal."""
    moved, _ = slide(board, move)
    if moved == board:
        raise ValueError(f"{move!r} does not change this board; its legal moves are {legal_moves(board)}")
    return spawn(moved, rng)


def start_board(rng: random.Random, size: int = 4) -> Board:
    """A board of size x size cells with two tiles."""
    return spawn(spawn(((0,) * size,) * size, rng), rng)


_CELL = re.compile(r"\.|[1-9][0-9]{0,18}")


def render(board: Board) -> str:
    """Rows joined by line breaks, cells by spaces, an empty cell is a dot: what the model reads."""
    return "\n".join([" ".join([str(tile) if tile else "." for tile in row]) for row in board])


def parse(text: str) -> Board | None:
    """The board that `render` wrote as `text` (outer whitespace aside), or None if it wrote no such text."""
    rows = [line.split() for line in text.strip().splitlines()]
    if len(rows) < 2 or any(len(row) != len(rows) for row in rows):
        return None
    if not all(_CELL.fullmatch(cell) for row in rows for cell in row):
        return None
    board = tuple(tuple(0 if cell == "." else int(cell) for cell in row) for row in rows)
    return board if all(tile == 0 or is_tile(tile) for row in board for tile in row) else None


def board_of(content: str) -> list[list[int]] | None:
    """The board at the end of a message, as lists for a viewer, or None if the message ends otherwise."""
    lines = content.strip().splitlines()
    size = len(lines[-1].split()) if lines else 0
    board = parse("\n".join(lines[-size:])) if size else None
    return [list(row) for row in board] if board else None


def is_tile(value: int) -> bool:
    """Whether `value` is a power of two from 2 up."""
    return value >= 2 and value & (value - 1) == 0
