"""Gymnasium games with discrete actions, observed as text. Source: https://gymnasium.farama.org/environments/toy_text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from art_nb.environments.adapters.base import import_extra

OVER = "The game is over."
CARDS = {1: "an ace"}


def _on_a_map(environment: Any, observation: int) -> str:
    """Return the map and the player's position in words. The map marks it with brackets (FrozenLake) or x (CliffWalking)."""
    frame = re.sub(r"\x1b\[41m(.)\x1b\[0m", r"[\1]", environment.render())
    width = len(environment.unwrapped.desc[0]) if hasattr(environment.unwrapped, "desc") else environment.unwrapped.shape[1]
    row, column = divmod(observation, width)
    lines = [line for line in frame.splitlines() if line.strip() and not line.strip().startswith("(")]
    return "\n".join([*lines, f"You are in row {row}, column {column}."])


def _taxi(environment: Any, observation: int) -> str:
    row, column, place, destination = environment.unwrapped.decode(observation)
    stops = ("row 0, column 0", "row 0, column 4", "row 4, column 0", "row 4, column 3")
    where = "in the taxi" if place == 4 else f"at {stops[place]}"
    walls = re.sub(r"\x1b\[[\d;]*m", "", environment.render()).split("\n  (")[0].strip()
    passenger = f"The passenger is {where}, and wants to go to {stops[destination]}."
    return f"{walls}\nThe taxi is in row {row}, column {column}. {passenger}"


def _blackjack(environment: Any, observation: tuple[int, int, int]) -> str:
    total, dealer, ace = observation
    usable = "a usable ace" if ace else "no usable ace"
    return f"Your sum is {total}, with {usable}. The dealer shows {CARDS.get(dealer, dealer)}."


GAMES: dict[str, tuple[Sequence[str], Callable[[Any, Any], str], str]] = {
    "FrozenLake": (("left", "down", "right", "up"), _on_a_map, "Go from S to G over F; H ends the game."),
    "CliffWalking": (("up", "right", "down", "left"), _on_a_map, "Go to T. Do not step on C."),
    "Taxi": (("south", "north", "east", "west", "pickup", "dropoff"), _taxi, "Take the passenger to the destination."),
    "Blackjack": (("stick", "hit"), _blackjack, "Get closer to 21 than the dealer, and not above it."),
}  # fmt: skip


class GymnasiumEnvironment(AbstractContextManager):
    """One episode of a game. The model acts with the tool `act`, or in text; the last action that it names is taken.

    game: an id such as "FrozenLake-v1". actions: their names in the order of the action space, by default those of the four
        toy text games, or numbers from 0. describe: a function of (environment, observation) that returns text.
    goal: a sentence of the first message. options: of `gymnasium.make`.

    The reward is the sum of gymnasium's rewards, so a turn reward of `rollout_environment` is that of the turn's actions.
    Raises: ImportError without the extra; ValueError if the action space is not Discrete or `actions` has another length,
    and for an observation space such as Box or Dict without `describe`.
    """

    plain_tool = "act"

    def __init__(
        self,
        game: str,
        *,
        actions: Sequence[str] | None = None,
        describe: Callable[[Any, Any], str] | None = None,
        goal: str | None = None,
        **options: Any,
    ):
        gym = import_extra("gymnasium", "gymnasium")
        known, ours, aim = GAMES.get(re.split(r"-v\d|8x8|Slippery", game)[0], (None, None, ""))
        if ours in (_on_a_map, _taxi) and describe is None:
            options = {"render_mode": "ansi"} | options
        self._game = gym.make(game, **options)
        space, spaces = self._game.action_space, gym.spaces
        if not isinstance(space, spaces.Discrete):
            raise ValueError(f"{game} has the action space {space}: only discrete actions can be named in text")
        seen = self._game.observation_space
        as_text = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Text, spaces.Tuple)
        if not (describe or isinstance(seen, as_text)):
            raise ValueError(f"{game} has the observation space {seen}, which is not text: give `describe`")
        self._actions = list(actions or known or map(str, range(int(space.n))))
        if len(self._actions) != space.n:
            raise ValueError(f"{game} has {space.n} actions, not {len(self._actions)}: {', '.join(self._actions)}")
        longest_first = map(re.escape, sorted(self._actions, key=len, reverse=True))
        self._names = re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)", re.IGNORECASE)
        self._first, self._goal = int(space.start), aim if goal is None else goal
        self._describe = describe or ours or (lambda environment, observation: str(observation))

    def reset(self, seed: int = 0, **row: Any) -> str:
        """Start the game with this seed. Returns goal, actions and first observation; ignores the row's other columns."""
        self._reward, self._steps, self._terminated, self._truncated = 0.0, 0, False, False
        observation, _ = self._game.reset(seed=seed)
        parts = (self._goal, f"Actions: {', '.join(self._actions)}.", self._describe(self._game, observation))
        return "\n".join(filter(None, parts))

    def act(self, action: str) -> str:
        """
        Take an action.

        Args:
            action: its name.
        """
        if self.over:
            return OVER
        named = self._names.findall(action)
        if not named:
            raise ValueError(f"no action in the answer: name one of {', '.join(self._actions)}")
        chosen = self._first + [name.lower() for name in self._actions].index(named[-1].lower())
        observation, reward, self._terminated, self._truncated, _ = self._game.step(chosen)
        self._reward, self._steps = self._reward + float(reward), self._steps + 1
        return self._describe(self._game, observation) + (f"\n{OVER}" if self.over else "")

    def get_reward(self) -> float:
        """Return the sum of the rewards so far."""
        return self._reward

    @property
    def over(self) -> bool:
        return bool(self._terminated or self._truncated)

    @property
    def metrics(self) -> dict[str, float]:
        return {"steps": self._steps, "terminated": float(self._terminated), "truncated": float(self._truncated)}

    def __exit__(self, *error: Any) -> None:
        self._game.close()
