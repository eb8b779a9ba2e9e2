"""The rules of tic-tac-toe, boards as text, and the minimax value of positions.

A board is a string of nine cells, row by row: "x", "o", or "." for an empty one. x moves first, so the board determines
whose turn it is. Squares are numbered 1 to 9 in the same order.
"""

from __future__ import annotations

from functools import cache

Board = str

EMPTY: Board = "." * 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
SQUARES = tuple("123456789")
_ROTATED = (6, 3, 0, 7, 4, 1, 8, 5, 2)  # by 90 degrees, clockwise
_REFLECTED = (2, 1, 0, 5, 4, 3, 8, 7, 6)


def to_move(board: Board) -> str:
    """Return whose turn it is, "x" or "o"."""
    return "x" if board.count("x") == board.count("o") else "o"


def winner(board: Board) -> str | None:
    """Return "x" or "o" if one has three in a line, else None."""
    return next((board[a] for a, b, c in LINES if board[a] != "." and board[a] == board[b] == board[c]), None)


def legal_moves(board: Board) -> list[str]:
    """Return the empty squares; none if the game is over."""
    return [] if winner(board) else [square for square, cell in zip(SQUARES, board, strict=True) if cell == "."]


def after_move(board: Board, square: str) -> Board:
    """Return the board after a legal move. Raises: ValueError for an illegal move."""
    if square not in legal_moves(board):
        raise ValueError(f"{square!r} is not a legal move on {board!r}; legal moves: {legal_moves(board)}")
    cell = SQUARES.index(square)
    return board[:cell] + to_move(board) + board[cell + 1 :]


def render(board: Board) -> str:
    """Return the board as the model reads it: whose turn it is, then three rows.

    x to move
    x . o
    . . .
    . . .
    """
    rows = (" ".join(board[i : i + 3]) for i in (0, 3, 6))
    return f"{to_move(board)} to move\n" + "\n".join(rows)


def board_of(content: str) -> list[list[int]] | None:
    """Parse a rendered board, with or without text after it, into rows for the trajectory viewer; None for other text.

    1 is x, 2 is o, 0 is empty.
    """
    rows = [line.split(" ") for line in content.splitlines()[1:4]]
    if [len(row) for row in rows] != [3, 3, 3] or not {cell for row in rows for cell in row} <= set(".xo"):
        return None
    return [[".xo".index(cell) for cell in row] for row in rows]


def canonical(board: Board) -> Board:
    """Return the lexicographically first of all rotations and reflections of a board."""
    equivalent = []
    for start in (board, "".join(board[i] for i in _REFLECTED)):
        for _ in range(4):
            start = "".join(start[i] for i in _ROTATED)
            equivalent.append(start)
    return min(equivalent)


@cache
def positions(plies: int) -> tuple[Board, ...]:
    """Return all reachable boards after this number of moves, sorted."""
    if plies == 0:
        return (EMPTY,)
    found = {after_move(board, square) for board in positions(plies - 1) for square in legal_moves(board)}
    return tuple(sorted(found))


@cache
def value(board: Board) -> int:
    """Return the minimax value for x: 1 won, 0 drawn, -1 lost."""
    if side := winner(board):
        return 1 if side == "x" else -1
    following = [value(after_move(board, square)) for square in legal_moves(board)]
    if not following:
        return 0
    return max(following) if to_move(board) == "x" else min(following)
