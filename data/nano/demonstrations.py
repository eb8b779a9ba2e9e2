"""What the nano base model is taught about 2048: random legal play, as plain text or as tool calls."""

from __future__ import annotations

import random

from art_nb.tasks.game_2048 import environment as game_2048
from data.demonstration import Demonstration

SYSTEM_PROMPTS = (
    "You play 2048.",
    "You play 2048. Answer left, right, up or down.",
    "You are an excellent 2048 player. Answer with one word: left, right, up or down.",
)
HINTS = 6  # labels of a cell: see `neighbour_labels`


class Demonstrations2048:
    """Turns of random legal play, as plain text or as tool calls; the target is uniform over the legal moves.

    It keeps many games going and continues one of them each time, so that neighbouring demonstrations have little in
    common and every stage of the game is seen. Some boards have all their tiles scaled up, for the rules don't depend
    on the tiles' size.
    """

    def __init__(self, rng: random.Random, games: int = 256):
        self.rng = rng
        self.boards = [game_2048.random_board(rng) for _ in range(games)]

    def __call__(self, turns: int) -> Demonstration:
        """A conversation of `turns` consecutive turns."""
        played = self._play(turns)
        return _tool_play(self.rng, played) if self.rng.random() < 0.35 else _text_play(self.rng, played)

    def _play(self, turns: int) -> list[tuple[game_2048.Board, str]]:
        """`turns` pairs (board, move drawn)."""
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
    """As TRL's environment loop shows it: the first board in the user's message, each next one as a tool result."""
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
    """For each cell, against its left and its upper neighbour: equal tiles; a tile behind a gap; a gap behind a tile.

    These are what makes a move legal, one pair of cells at a time; whether any pair has it, the model must find out.
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
