"""Demonstrations for the nano base models: conversations that show a task's rules and formats, not skill.

If several answers would be equally good, the assistant's message has `choices`, a distribution over single words. The model
is trained on that distribution (soft targets) instead of the word that was drawn, and so needs far fewer examples.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

Choice = dict[str, float] | tuple[dict[str, float], ...] | None


@dataclass(frozen=True)
class Demonstration:
    """One conversation to imitate.

    messages: OpenAI-style messages; every assistant message is trained on.
    tools: OpenAI-style tool schemas shown to the model, or None.
    choices: one entry per assistant message: {word: probability} for the word that was drawn, a tuple of these for several
      words, or None for plain text.
    hints: {index of a message: 0/1 labels for each of its words}. During training of the base model a linear probe on its
      middle layer predicts them, so that the model learns the concepts of the rules early. The probe is discarded.
    """

    messages: list[dict]
    tools: list[dict] | None = None
    choices: list[Choice] = field(default_factory=list)
    hints: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)


class Recorder:
    """Record a conversation of tool calls."""

    def __init__(self, opening: str):
        self.messages: list[dict] = [{"role": "user", "content": opening}]
        self.choices: list[Choice] = []

    def call(self, name: str, arguments: dict, observation: str, choice: Choice = None) -> None:
        """Record a call and its observation. choice: of the words of the call, as in `Demonstration.choices`."""
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        self.messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        self.messages.append({"role": "tool", "name": name, "content": observation})
        self.choices.append(choice)

    def demonstration(self, rng: random.Random, tools: list[dict]) -> Demonstration:
        """Return the conversation up to its last call, sometimes with that call's observation and a final word."""
        if rng.random() < 0.2:  # TRL's loop continues after the end
            done = {"role": "assistant", "content": "done"}
            return Demonstration([*self.messages, done], tools, [*self.choices, None])
        return Demonstration(self.messages[:-1], tools, self.choices)
