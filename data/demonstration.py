"""What the nano base model is taught: each task's demonstrations of its rules and formats, never of skill.

A demonstration is a conversation. Where several answers would be equally right, the assistant's word carries
`choices`, a distribution over single words: the model is trained on that distribution (a soft target), not on the
one word that happened to be drawn, so rules are learnt from far fewer examples than sampled labels would take.
"""

from __future__ import annotations

from dataclasses import dataclass, field


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
    choices: list[dict[str, float] | tuple[dict[str, float], ...] | None] = field(default_factory=list)
    hints: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
