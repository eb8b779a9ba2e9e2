"""Tool-calling episodes: the base class of a task's state, and its wrapper for TRL's `environment_factory`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from copy import deepcopy
from functools import wraps
from typing import Any, ClassVar, TypeVar

from art_nb.environments.tools import MalformedCall, RefusedCall, parse_arguments
from art_nb.trajectories import Trajectory

Episode = TypeVar("Episode", bound="ToolEpisode")


class ToolEpisode:
    """An agent's attempt at a task, made by calling tools until the episode is over.

    A subclass defines its tools as methods with `@tool`, and `first_message`, `reward` and `metrics`.

    Attributes: turns (calls before the end), max_turns, ended_by (None while the episode runs; "malformed", "turns", or a
    tool's own reason), fault (the kind of a malformed call, see `MalformedCall`), refused (calls that raised `RefusedCall`),
    turn_rewards (the change of `progress()` in each turn), transcript ((tool's name, arguments, observation) of each call).
    """

    tools: ClassVar[list[dict]] = []
    """OpenAI schemas of the tools, sorted by name as TRL lists them."""
    over_message: ClassVar[str] = "The episode is over."
    """The observation of every call after the end."""
    no_call_message: ClassVar[str] = "I give up."
    """The assistant message that `trajectory` writes for an answer without a call."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        methods = (getattr(cls, name) for name in dir(cls))  # dir sorts
        cls.tools = [method.schema for method in methods if inspect.isfunction(method) and hasattr(method, "schema")]

    def __init__(self, max_turns: int):
        if not hasattr(max_turns, "__index__") or max_turns < 1:
            raise ValueError(f"max_turns is {max_turns!r}: expected an integer of at least 1")
        self.max_turns = max_turns
        self.turns = self.refused = 0
        self.ended_by: str | None = None
        self.fault: str | None = None
        self.turn_rewards: list[float] = []
        self.transcript: list[tuple[str | None, str | dict | None, str]] = []

    @property
    def over(self) -> bool:
        return self.ended_by is not None

    def first_message(self) -> str:
        """Return the user message that the agent starts from."""
        raise NotImplementedError

    def reward(self) -> float:
        """Return the reward of the episode; an unfinished one is scored in its current state."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """Return the numbers to chart."""
        raise NotImplementedError

    def progress(self) -> float:
        """Return the value of the current state, which must be 0 at the start; its changes are the turn rewards.

        By default the reward once the episode is over, and 0 before.
        """
        return self.reward() if self.over else 0.0

    def call(self, name: str | None, arguments: str | dict | None) -> str:
        """Make one tool call and return the observation.

        A call to an unknown tool or with malformed arguments ends the episode. So does `call(None, None)`, which represents
        an answer without a call. After a call that the tool refuses, the agent may try again if it has turns left.

        arguments: JSON as the model wrote it, or the object. Raises: any exception of the tool other than `RefusedCall`.
        """
        if self.over:
            observation = self.over_message
        else:
            self.turns += 1
            observation = self._make(name, arguments)
            self.end_turn()
        self.transcript.append((name, deepcopy(arguments), observation))
        return observation

    def _make(self, name: str | None, arguments: str | dict | None) -> str:
        try:
            given = parse_arguments(self.tools, name, arguments)
        except MalformedCall as error:
            self.fault, self.ended_by = error.kind, "malformed"
            return f"Malformed: {error}. {self.over_message}"
        try:
            observation = getattr(type(self), str(name)).__wrapped__(self, **given)
        except RefusedCall as refusal:
            self.refused += 1
            observation = f"Refused: {refusal}."
        return self.run_out(observation) if self.turns >= self.max_turns and not self.over else observation

    def run_out(self, observation: str) -> str:
        """End an episode whose turns are used up. Returns the last observation, which a subclass may extend."""
        self.ended_by = "turns"
        return observation

    def end_turn(self) -> None:
        """Append the turn's reward. Called after each call that counts as a turn."""
        self.turn_rewards.append(self.progress() - sum(self.turn_rewards))

    def trajectory(self, **metadata: Any) -> Trajectory:
        """Return a trajectory with the calls made so far as messages of a model, and the current reward and metrics."""
        messages: list[Any] = [{"role": "user", "content": self.first_message()}]
        for number, (name, arguments, observation) in enumerate(self.transcript, start=1):
            if not name:
                messages.append({"role": "assistant", "content": self.no_call_message})
                continue
            written = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
            call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": written}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": observation})
        return Trajectory(
            messages_and_choices=messages, tools=self.tools, reward=self.reward(), metrics=self.metrics(), metadata=metadata
        )


class ToolEnvironment:
    """A `ToolEpisode` for TRL's `environment_factory`: `reset`, one method for each tool, `get_reward`.

    A subclass names its episode, `class MyEnvironment(ToolEnvironment, episode=MyEpisode)`, and defines `reset(**row)`,
    which sets `self.episode` and returns its first message. TRL appends that to the last message of the prompt: leave this
    message's content empty in the dataset.

    TRL's loop ends when the model answers without a call, or at TRL's own limits; a call after the end of the episode
    returns its `over_message`. A call that TRL cannot make (an unknown tool, an unknown or missing argument) does not reach
    the episode and is not counted as malformed. `rollout_environment` also reads `over`, `metrics` and `progress`.
    """

    episode: Any

    def __init_subclass__(cls, episode: type[ToolEpisode] | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for schema in episode.tools if episode else ():
            name = schema["function"]["name"]
            setattr(cls, name, _forwarding(getattr(episode, name)))

    def reset(self, **row: Any) -> str:
        """Start the episode of a dataset row. Returns its first message."""
        raise NotImplementedError

    def get_reward(self) -> float:
        """Return the episode's reward; an unfinished one is scored in its current state."""
        return self.episode.reward()

    @property
    def over(self) -> bool:
        return self.episode.over

    @property
    def metrics(self) -> dict[str, float]:
        return self.episode.metrics()

    @property
    def progress(self) -> float:
        return self.episode.progress()


def _forwarding(method: Callable[..., str]) -> Callable[..., str]:
    @wraps(method)
    def forwarded(self: ToolEnvironment, *args: Any, **kwargs: Any) -> str:
        return method(self.episode, *args, **kwargs)

    return forwarded
