"""What the nano base model is taught: each task's demonstrations of its rules and formats, never of skill.

A demonstration is a conversation. Where several answers would be equally right, the assistant's word carries
`choices`, a distribution over single words: the model is trained on that distribution (a soft target), not on the
one word that happened to be drawn, so rules are learnt from far fewer examples than sampled labels would take.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from art_nb.tasks import game_2048


@dataclass(frozen=True)
class Demonstration:
    """One conversation to imitate.

    messages: OpenAI-style messages; every assistant message is trained on.
    tools: OpenAI-style tool schemas shown to the model, or None.
    choices: one entry per assistant message: {word: probability} for the word drawn there, or None for plain text.
    """

    messages: list[dict]
    tools: list[dict] | None = None
    choices: list[dict[str, float] | None] = field(default_factory=list)


SYSTEM_PROMPTS = (
    "You play 2048.",
    "You play 2048. Answer left, right, up or down.",
    "You are an excellent 2048 player. Answer with one word: left, right, up or down.",
)


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

    def _play(self, turns: int) -> list[tuple[str, str, dict[str, float]]]:
        """`turns` triples (rendered board, move drawn, soft targets)."""
        game = self.rng.randrange(len(self.boards))
        board, scale = self.boards[game], 1
        if self.rng.random() < 0.25:
            scale = 2 ** self.rng.randrange((2048 // max(map(max, board))).bit_length() or 1)
        played = []
        while len(played) < turns:
            targets = game_2048.soft_targets(board)
            legal = [move for move, p in targets.items() if p > 0]
            if not legal:
                board = game_2048.random_board(self.rng)
                continue
            move = self.rng.choice(legal)
            shown = tuple(tuple(tile * scale for tile in row) for row in board)
            played.append((game_2048.render(shown), move, targets))
            board = game_2048.after_move(board, move, self.rng)
        self.boards[game] = board
        return played


def _text_play(rng: random.Random, played: list) -> Demonstration:
    messages, choices = [], []
    if rng.random() < 0.25:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    for board, move, targets in played:
        messages += [{"role": "user", "content": board}, {"role": "assistant", "content": move}]
        choices.append(targets)
    return Demonstration(messages, None, choices)


def _tool_play(rng: random.Random, played: list) -> Demonstration:
    """As TRL's environment loop shows it: the first board in the user's message, each next one as a tool result."""
    messages, choices = [], []
    for turn, (board, move, targets) in enumerate(played):
        role = {"role": "user"} if turn == 0 else {"role": "tool", "name": "move"}
        call = {"type": "function", "function": {"name": "move", "arguments": {"direction": move}}}
        messages += [role | {"content": board}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        choices.append(targets)
    if rng.random() < 0.3:
        messages += [
            {"role": "tool", "name": "move", "content": game_2048.GAME_OVER},
            {"role": "assistant", "content": "done"},
        ]
        choices.append(None)
    return Demonstration(messages, [game_2048.MOVE_TOOL], choices)


DEMONSTRATIONS: dict[str, Callable[[random.Random], Callable[[int], Demonstration]]] = {"game_2048": Demonstrations2048}
"""Every task's generator: rng -> (turns -> Demonstration). A new task adds itself here and the base model is rebuilt."""
