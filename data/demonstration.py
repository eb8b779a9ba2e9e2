"""What the nano base model is taught: each task's demonstrations of its rules and formats, never of skill.

A demonstration is a conversation. Where several answers would be equally right, the assistant's word carries
`choices`, a distribution over single words: the model is trained on that distribution (a soft target), not on the
one word that happened to be drawn, so rules are learnt from far fewer examples than sampled labels would take.
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
    choices: one entry per assistant message: {word: probability} for the word drawn there, several of them where several
      words were drawn, or None for plain text.
    hints: {index of a message: 0/1 labels for each of its words}. While the base model is made, a linear probe on its
      middle layer must tell them, so that it learns early what the rules are about. The probe is thrown away.
    """

    messages: list[dict]
    tools: list[dict] | None = None
    choices: list[Choice] = field(default_factory=list)
    hints: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)


class Recorder:
    """Writes a conversation of tool calls down as it is held."""

    def __init__(self, opening: str):
        self.messages: list[dict] = [{"role": "user", "content": opening}]
        self.choices: list[Choice] = []

    def call(self, name: str, arguments: dict, said: str, choice: Choice = None) -> None:
        """A call of a tool and what was said to it. choice: of its words, as in `Demonstration.choices`."""
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        self.messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        self.messages.append({"role": "tool", "name": name, "content": said})
        self.choices.append(choice)

    def demonstration(self, rng: random.Random, tools: list[dict]) -> Demonstration:
        """The conversation, up to its last call or with a word after what was said to that."""
        if rng.random() < 0.2:  # where it goes on after the end, as in TRL's loop
            done = {"role": "assistant", "content": "done"}
            return Demonstration([*self.messages, done], tools, [*self.choices, None])
        return Demonstration(self.messages[:-1], tools, self.choices)
