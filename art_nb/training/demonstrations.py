"""From demonstrations to what is imitated: the token sequences of conversations, in which the assistant's turns count.

Each turn is learnt as it would be sampled: behind the prompt that the template makes of what came before. Where a template
changes earlier turns (drops their thoughts, say), a conversation becomes several sequences.
"""

from __future__ import annotations

from collections.abc import Iterable

from openai.types.chat.chat_completion import Choice

from art_nb.inference.prompts import Prompts
from art_nb.training.sequences import TokenSequence, add_turn, tokens_of
from art_nb.trajectories import History, Trajectory


def demonstrated(
    trajectories: Iterable[Trajectory], tokenizer, context: int | None = None
) -> list[list[TokenSequence]]:
    """The sequences of each trajectory and of its additional histories.

    An assistant's message counts whether it is a dict or a `Choice`; a sampled choice by its own tokens. One that nothing
    comes before is an answer to nothing: it is read, not learnt.

    context: tokens that a sequence may have.

    Raises: ValueError when there is none, or one has no message to learn from or is too long; it says which (from 0).
        RequestError (a ValueError) when messages or tools are none.
    """
    prompts = Prompts(tokenizer, [])
    built = []
    for number, trajectory in enumerate(trajectories):
        histories = (trajectory, *trajectory.additional_histories)
        sequences = [sequence for history in histories for sequence in _of_history(history, prompts)]
        if not sequences:
            raise ValueError(
                f"trajectory {number} teaches nothing: it has no message of the assistant behind another's message"
            )
        longest = max(len(sequence.ids) for sequence in sequences)
        if context is not None and longest > context:
            raise ValueError(f"trajectory {number} has {longest} tokens and the model takes {context}: shorten it")
        built.append(sequences)
    if not built:
        raise ValueError("there is nothing to learn from: no trajectory was given")
    return built


def _of_history(history: History, prompts: Prompts) -> list[TokenSequence]:
    sequences: list[TokenSequence] = []
    for i, item in enumerate(history.messages_and_choices):
        if i and (isinstance(item, Choice) or item.get("role") == "assistant"):
            add_turn(sequences, *tokens_of(item, history, i, prompts))
    return sequences
