"""Demonstrations of 2048 for the nano base model: random legal play, as plain text or as tool calls."""

from __future__ import annotations

import random

from data.demonstration import Demonstration
from game_2048 import environment as game_2048

SYSTEM_PROMPTS = (
    "You play 2048.",
    "You play 2048. Answer left, right, up or down.",
    "You are an excellent 2048 player. Answer with one word: left, right, up or down.",
)
HINTS = 6  # labels per cell, see `neighbour_labels`


class Demonstrations2048:
    """Turns of random legal play. The target is the uniform distribution over the legal moves.

    Each demonstration continues one of many games, so that consecutive demonstrations differ and every stage of a game
    occurs. In some boards all tiles are scaled up, because the rules do not depend on their size.
    """

    def __init__(self, rng: random.Random, games: int = 256):
        self.rng = rng
        self.boards = [game_2048.random_board(rng) for _ in range(games)]

    def __call__(self, turns: int) -> Demonstration:
        """Return a conversation of `turns` consecutive turns."""
        played = self._play(turns)
        return _tool_play(self.rng, played) if self.rng.random() < 0.35 else _text_play(self.rng, played)

    def _play(self, turns: int) -> list[tuple[game_2048.Board, str]]:
        """Return `turns` pairs (board, move)."""
        game = self.rng.randrange(len(self.boards))
        board, scale = self.boards[game], 1
        if self.rng.random() < 0.25:
            scale = 2 ** self.rng.randrange((2048 // max(map(max, board))).bit_length() or 1)
        played = []
        while len(played) < turns:
            legal = game_2048.legal_moves(board)
            if not legal:
                board = game_2048.random_board(self.rng)
                continue
            move = self.rng.choice(legal)
            played.append((tuple(tuple(tile * scale for tile in row) for row in board), move))
            board = game_2048.after_move(board, move, self.rng)
        self.boards[game] = board
        return played


def _text_play(rng: random.Random, played: list[tuple[game_2048.Board, str]]) -> Demonstration:
    messages, hints = [], {}
    if rng.random() < 0.25:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    for board, move in played:
        hints[len(messages)] = neighbour_labels(board)
        messages.append({"role": "user", "content": game_2048.render(board)})
        messages.append({"role": "assistant", "content": move})
    return Demonstration(messages, None, [game_2048.soft_targets(board) for board, _ in played], hints)


def _tool_play(rng: random.Random, played: list[tuple[game_2048.Board, str]]) -> Demonstration:
    """Return a conversation as in TRL's environment loop: the first board as user message, the next as tool results."""
    messages, hints = [], {}
    choices: list[dict[str, float] | None] = [game_2048.soft_targets(board) for board, _ in played]
    for turn, (board, move) in enumerate(played):
        role = {"role": "user"} if turn == 0 else {"role": "tool", "name": "move"}
        call = {"type": "function", "function": {"name": "move", "arguments": {"direction": move}}}
        hints[len(messages)] = neighbour_labels(board)
        messages.append(role | {"content": game_2048.render(board)})
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    if rng.random() < 0.3:
        messages.append({"role": "tool", "name": "move", "content": game_2048.GAME_OVER})
        messages.append({"role": "assistant", "content": "done"})
        choices.append(None)
    return Demonstration(messages, [game_2048.MOVE_TOOL], choices, hints)


def neighbour_labels(board: game_2048.Board) -> list[tuple[int, ...]]:
    """Return six labels per cell: for the left and the upper neighbour, whether the tiles are equal, the neighbour is empty
    and the cell is not, and the reverse.

    A move is legal if some pair of cells has such a label; the model must learn to combine the pairs.
    """
    labels = []
    for i, row in enumerate(board):
        for j, tile in enumerate(row):
            pairs = ((tile, row[j - 1] if j else None), (tile, board[i - 1][j] if i else None))
            labels.append(
                tuple(
                    int(bit)
                    for own, other in pairs
                    for bit in (own == other and own > 0, own and other == 0, own == 0 and bool(other))
                )
            )
    return labels
