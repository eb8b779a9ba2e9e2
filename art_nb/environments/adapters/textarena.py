"""TextArena's games for one player, or for two against an opponent. Source: https://pypi.org/project/textarena."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from threading import RLock
from typing import Any

from openai import AsyncOpenAI

from art_nb.environments.adapters.base import import_extra
from art_nb.environments.isolation import BrokenEnvironment
from art_nb.types import Messages

Player = Callable[[Messages], str]
"""Returns a move for a conversation: the player's observations as user messages, its moves as assistant messages."""

_LISTED = re.compile(r"(?:available|valid) (?:moves|actions)[^:\n]*:(.*)$", re.IGNORECASE | re.MULTILINE)
_GLOBAL_RANDOM = RLock()


def random_player(seed: int = 0) -> Player:
    """Return a player that chooses at random among the moves that the game lists ("Available Moves: '[0]', '[1]'").

    The player raises BrokenEnvironment in a game that lists none.
    """
    rng = random.Random(seed)

    def play(messages: Messages) -> str:
        listed = _LISTED.findall("\n".join(str(message["content"]) for message in messages if message["role"] == "user"))
        moves = re.findall(r"\[[^\]]+\]", listed[-1]) if listed else []
        if not moves:
            raise BrokenEnvironment("this game lists no moves to choose from: pass a function as `opponent`")
        return rng.choice(moves)

    return play


def model_player(client: Any, model: str, **request: Any) -> Player:
    """Return a player whose moves are a model's answers: of a fixed policy or, for self-play, of the policy in training.

    client: `model.openai_client(sync=True)` or another `openai.OpenAI`, not `AsyncOpenAI`. Its calls block, so the rollout
    needs a `timeout`: with one, the game runs in its own thread. model, request: arguments of each request.
    """
    blocking = client.blocking() if hasattr(client, "blocking") else client
    if isinstance(blocking, AsyncOpenAI):
        raise TypeError("the opponent's client is an AsyncOpenAI: expected a blocking one. Give openai_client(sync=True).")

    def play(messages: Messages) -> str:
        answer = blocking.chat.completions.create(model=model, messages=messages, **request)
        return answer.choices[0].message.content or ""

    return play


class TextArenaEnvironment:
    """One game. The model moves with the tool `act`, or in text.

    game: an id such as "TicTacToe-v0". opponent: the other player; None: `random_player`. players: 1 or 2.
    options: of `textarena.make`.

    The reward is TextArena's, for two players usually 1, 0 or -1 for win, draw or loss, for one often the share solved; 0
    until the game ends. TextArena uses Python's global random state; the game's own is swapped in while its code runs.
    Raises: ImportError without the extra; ValueError for other numbers of players.
    """

    plain_tool = "act"

    def __init__(self, game: str, *, opponent: Player | None = None, players: int = 2, **options: Any):
        if players not in (1, 2):
            raise ValueError(f"players is {players}: expected 1, or 2 for a game against an opponent")
        self._arena, self._game, self._players = import_extra("textarena", "textarena"), game, players
        self._options, self._given, self._me = options, opponent, 0
        self._seen: Messages = []
        self._observed: dict[int, str] = {}  # each player's last observation, which TextArena repeats before a new one
        self._result: tuple[dict, dict] | None = None

    def reset(self, seed: int = 0, player: int = 0, **row: Any) -> str:
        """Start the game of this seed as player 0 or 1. Returns the rules and first observation; ignores other columns."""
        if not 0 <= player < self._players:
            raise ValueError(f"player is {player}: expected 0 to {self._players - 1}")
        self._me, self._result, self._turns, self._seen, self._observed = player, None, 0, [], {}
        self._opponent, self._random = self._given or random_player(seed), random.Random(seed).getstate()
        self._env = self._run(lambda: self._arena.make(self._game, **self._options))
        self._run(lambda: self._env.reset(num_players=self._players, seed=seed))
        return self._until_my_turn()

    def act(self, move: str) -> str:
        """
        Make a move.

        Args:
            move: the move, in the format that the rules describe.
        """
        if self._result is None:
            self._turns += 1
            self._step(move)
        return self._until_my_turn()

    def _until_my_turn(self) -> str:
        while self._result is None:
            player, seen = self._run(self._env.get_observation)
            new = str(seen).removeprefix(self._observed.get(player, "")).strip() or str(seen).strip()
            self._observed[player] = str(seen)
            if player == self._me:
                return new
            self._seen.append({"role": "user", "content": new})
            try:
                move = self._opponent(self._seen)
            except Exception as error:
                raise BrokenEnvironment(f"the opponent raised {type(error).__name__}: {error}") from error
            self._seen.append({"role": "assistant", "content": move})
            self._step(move)
        reasons = self._result[1].get(self._me, {}).get("reason") or ""
        return f"The game is over. {reasons}".strip()

    def _step(self, move: str) -> None:
        done, _ = self._run(lambda: self._env.step(action=move))
        if done:
            self._result = self._run(self._env.close)

    def _run(self, function: Callable[[], Any]) -> Any:
        with _GLOBAL_RANDOM:
            outer = random.getstate()
            random.setstate(self._random)
            try:
                return function()
            finally:
                self._random = random.getstate()
                random.setstate(outer)

    def get_reward(self) -> float:
        """Return this player's reward."""
        return float((self._result[0] or {}).get(self._me, 0.0)) if self._result else 0.0

    @property
    def over(self) -> bool:
        return self._result is not None

    @property
    def metrics(self) -> dict[str, float]:
        broke = bool(self._result and self._result[1].get(self._me, {}).get("invalid_move"))
        won = self.get_reward() > 0 if self._players == 2 else self.get_reward() >= 1  # one player: partial reward is < 1
        return {"moves": self._turns, "won": float(won), "invalid_move": float(broke)}
