"""From messages to exact token ids: renders the chat template, and continues an answered conversation by its own ids.

The text of a conversation does not tell which tokens the model sampled, for the same text has many tokenisations. So
the ids of every answered conversation are remembered under its text, and a prompt that goes on from there starts
with them.

In what is called text here, control tokens stand under their names (see `control_tokens`): where a message spells one
out, that is another text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from art_nb.inference.chat import RequestError
from art_nb.inference.control_tokens import control_tokens
from art_nb.inference.messages import plain
from art_nb.inference.rendering import Rendering, check_template

USER, SYSTEM = {"role": "user", "content": "a"}, {"role": "system", "content": "b"}
ANSWER, TOOL = {"role": "assistant", "content": "c"}, {"role": "tool", "tool_call_id": "d", "content": "e"}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "d", "type": "function", "function": {"name": "f", "arguments": '{"g": 1}'}}],
}
OTHER_CALL = {**CALL, "tool_calls": [{**CALL["tool_calls"][0], "id": "j"}]}
OTHER_TOOL = {**TOOL, "tool_call_id": "j"}
THOUGHT = {"role": "assistant", "content": "<think>\nh\n</think>\n\nc"}
REASONED = {**ANSWER, "reasoning_content": "h"}
PROBES = (
    (SYSTEM, USER, ANSWER, USER, CALL, TOOL, ANSWER, USER, THOUGHT, USER, REASONED, USER, ANSWER),
    (USER, CALL, TOOL, CALL, TOOL, TOOL, THOUGHT, USER, USER, ANSWER, ANSWER, USER, CALL, TOOL),
    (USER, THOUGHT, USER, REASONED, USER, {"role": "user", "content": " i \n"}),
)


class Template(Rendering):
    """The tokenizer's chat template with given tools and further arguments.

    Where the template writes each message by itself, only messages that it has not seen are rendered: a long
    conversation then costs its new messages. Whether it does so is found out by trying it on `PROBES`. What several
    tools say in a row counts as one message, for many templates frame it as one.
    """

    def __init__(self, tokenizer, tools: list[dict] | None, arguments: dict[str, Any]):
        super().__init__(tokenizer, tools, arguments)
        check_template(tokenizer)
        self._pieces: dict[Any, str] = {}
        self._shows_ids = True

    @cached_property
    def by_message(self) -> bool:
        """Whether the template writes each message by itself."""
        conversations = [list(probe[:k]) for probe in PROBES for k in range(1, len(probe) + 1)]
        try:
            self._user = self.whole([USER], opening=False)
            self.opening = self.whole([USER])[len(self._user) :]
            same = all(self._in_pieces(c) == self.whole(c) for c in conversations)
            self._shows_ids = self.whole([USER, CALL, TOOL]) != self.whole([USER, OTHER_CALL, OTHER_TOOL])
        except RequestError:
            return False
        return same

    def text(self, messages: list[dict]) -> str:
        """The prompt: all messages, and the opening of the assistant's next one. Raises: RequestError, as `whole`."""
        if not self.by_message:
            return self.whole(messages)
        try:
            return self._in_pieces(messages)
        except UnicodeEncodeError as error:
            raise self.refused(messages) from error

    def answered(self, prompt: str, messages: list[dict], answer: dict) -> str:
        """The text of a conversation whose prompt has been answered."""
        if self.by_message:
            return prompt.removesuffix(self.opening) + self._piece([answer])
        return self.whole([*messages, answer], opening=False)

    def turn(self, messages: list[dict]) -> tuple[list[int], list[int]]:
        """The ids of a conversation that ends with an answer: those before it, and its own with the token that ends it."""
        end = self.control.name(self._tokenizer.eos_token)
        prompt = self.text(messages[:-1])
        whole = self.answered(prompt, messages[:-1], messages[-1])
        # Some templates do not repeat the generation prompt (they drop earlier thoughts).
        answer = whole[len(prompt) :] if whole.startswith(prompt) else self.control.named(messages[-1]["content"])
        # What follows the end of the turn is the template's, not the policy's.
        return self.control.ids(prompt), self.control.ids(answer.split(end)[0] + end)

    def _in_pieces(self, messages: list[dict]) -> str:
        key = "first", self._seen(messages[0])
        if key not in self._pieces:
            self._pieces[key] = self.rendered(messages[:1], opening=False)
        return "".join([self._pieces[key], *map(self._piece, _blocks(messages[1:])), self.opening])

    def _piece(self, block: list[dict]) -> str:
        key = self._seen(block[0]) if len(block) == 1 else tuple(map(self._seen, block))
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = self.rendered([USER, *block], opening=False).removeprefix(self._user)
        return piece

    def _seen(self, message: dict) -> Any:
        """What the template sees of a message. The ids of tool calls are never the same, and few templates show them."""
        if len(message) == 2:
            return message["role"], message["content"]
        if len(message) == 3 and not self._shows_ids:
            if "tool_call_id" in message:
                return message["role"], message["content"]
            if calls := message.get("tool_calls"):
                functions = [call.get("function", call) for call in calls]
                if all(len(f) == 2 and type(f.get("arguments")) is str for f in functions):
                    return message["role"], message["content"], *[(f.get("name"), f["arguments"]) for f in functions]
        return repr(message)


def _blocks(messages: list[dict]) -> list[list[dict]]:
    """Each message by itself, but what several tools say in a row together."""
    blocks: list[list[dict]] = []
    for message in messages:
        if message["role"] == "tool" and blocks and blocks[-1][0]["role"] == "tool":
            blocks[-1].append(message)
        else:
            blocks.append([message])
    return blocks


def token_ids(
    tokenizer, messages: list[dict], tools: list[dict] | None = None, *, opening: bool = False, **arguments: Any
) -> list[int]:
    """The token ids of a conversation, as `apply_chat_template` gives them, but that no text becomes a control token.

    opening: with the opening of the assistant's next message; arguments: further ones of the template.

    Raises: RequestError where they are no messages, or the template refuses them.
    """
    template = Template(tokenizer, tools, arguments)
    return template.control.ids(template.whole(plain(messages), opening))


@dataclass
class Answered:
    """An answered conversation: its ids without the end of the answer, its slot, and how often it was gone on with."""

    ids: list[int]
    slot: int
    continued: int = 0


class Prompts:
    """Token ids of conversations.

    tokenizer: with a chat template; ends: the texts of the tokens that end an answer; remembered: how many answered
    conversations to keep the ids of.
    """

    def __init__(self, tokenizer, ends: Iterable[str], remembered: int = 4096):
        self._control = control_tokens(tokenizer)
        self._tokenizer, self._ends, self._remembered = tokenizer, list(map(self._control.name, ends)), remembered
        self.forget()

    def forget(self) -> None:
        """Drop all that was remembered."""
        self._templates: dict[str, Template] = {}
        self._answered: dict[str, list[Answered]] = {}

    def template(self, tools: list[dict] | None, arguments: dict[str, Any]) -> Template:
        """The chat template with these tools and arguments. Raises RequestError where they are no JSON."""
        try:
            key = json.dumps([tools, arguments], sort_keys=True)
        except (TypeError, ValueError) as error:
            raise RequestError(f"tools: expected plain JSON values ({error})") from error
        if key not in self._templates:
            self._templates[key] = Template(self._tokenizer, tools, arguments)
        return self._templates[key]

    def ids(self, text: str) -> tuple[list[int], int | None]:
        """The prompt's token ids, and the slot that held the conversation it continues, if it does.

        Of several conversations with the same text so far, it is the first that has not been gone on with.
        """
        cut = len(text)
        while (cut := max(text.rfind(end, 0, cut) for end in self._ends)) >= 0:
            if same := self._answered.get(text[:cut]):
                known = min(same, key=lambda answered: answered.continued)
                known.continued += 1
                # The rest starts with an end-of-turn token, and tokenisation does not reach across one.
                return known.ids + self._control.ids(text[cut:]), known.slot
        return self._control.ids(text), None

    def remember(self, prompt: str, text: str, ids: list[int], slot: int) -> None:
        """Keep what a conversation was made of.

        prompt: its text before the answer; text: with the answer; ids: what the model saw and said, without the end of
        the answer. Nothing is kept where the template changed the prompt once it was answered: the ids would say
        something else than the text.
        """
        cut = max(text.rfind(end) for end in self._ends)
        if cut >= 0 and text.startswith(prompt):
            self._answered.setdefault(text[:cut], []).append(Answered(ids, slot))
            if len(self._answered) > self._remembered:
                del self._answered[next(iter(self._answered))]
