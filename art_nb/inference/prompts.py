"""From messages to exact token ids: incremental rendering, and continuing a conversation from its sampled token ids.

The same text has many tokenisations. The ids of answered conversations are therefore stored, keyed by the text, and a prompt
that continues such a conversation begins with its ids. All texts here are protected: see `control_tokens`.
"""

import json
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from art_nb.inference.bounded import BoundedDict
from art_nb.inference.chat import RequestError
from art_nb.inference.chat_template import CALL, CALLING, RESULT, USER, ChatTemplate, verify_template
from art_nb.inference.control_tokens import control_tokens
from art_nb.inference.slots import common_prefix

MAX_CONVERSATIONS = 4096  # distinct texts of answered conversations that are stored
MAX_CONVERSATIONS_PER_TEXT = 1024  # stored conversations with the same text
MAX_PIECES = 16384  # cached rendered messages of one template
MAX_TEMPLATES = 64  # cached templates: one for each set of tools and arguments
SYSTEM, ANSWER = {"role": "system", "content": "b"}, {"role": "assistant", "content": "c"}
OTHER_CALLING = {**CALLING, "tool_calls": [{**CALL, "id": "call_5678"}]}
OTHER_RESULT = {**RESULT, "tool_call_id": "call_5678"}
THOUGHT = {"role": "assistant", "content": "<think>\nh\n</think>\n\nc"}
REASONED = {**ANSWER, "reasoning_content": "h"}
PROBES = (
    (SYSTEM, USER, ANSWER, USER, CALLING, RESULT, ANSWER, USER, THOUGHT, USER, REASONED, USER, ANSWER),
    (USER, CALLING, RESULT, CALLING, RESULT, RESULT, THOUGHT, USER, USER, ANSWER, ANSWER, USER, CALLING, RESULT),
    (USER, THOUGHT, USER, REASONED, USER, {"role": "user", "content": " i \n"}),
    (USER, CALLING, {"role": "tool", "tool_call_id": "call_1234", "content": "e"}, ANSWER),
)
CONTENTS = (
    "q1w2", " b\n", "\n", "None", "0", '{"c": [1]}', "<think>\nd\n</think>\n\ne", "<tool_call>f</tool_call>",
    "<tool_response>\ng\n</tool_response>", "<b>\u00e9</b>\r\n" * 999,
)  # fmt: skip


class IncrementalTemplate(ChatTemplate):
    """A chat template that renders only new messages, if it renders each message independently of the others.

    Whether it does is tested on `PROBES`. Consecutive tool messages count as one, because many templates frame them
    together. If a template copies user and tool contents unchanged (see `CONTENTS`), it runs once per kind of message.
    """

    def __init__(self, tokenizer, tools: list[dict] | None, arguments: dict[str, Any]):
        super().__init__(tokenizer, tools, arguments)
        verify_template(tokenizer)
        self._pieces = BoundedDict[Any, str](MAX_PIECES)
        self._frames: dict[tuple, tuple[str, str] | None] = {}
        self._shows_ids = True

    @cached_property
    def by_message(self) -> bool:
        """Whether the template renders each message independently."""
        conversations = [list(probe[:k]) for probe in PROBES for k in range(1, len(probe) + 1)]
        try:
            self._user = self.render([USER], add_generation_prompt=False)
            self.generation_prompt = self.render([USER])[len(self._user) :]
            same = all(self._in_pieces(c) == self.render(c) for c in conversations)
            self._shows_ids = self.render([USER, CALLING, RESULT]) != self.render([USER, OTHER_CALLING, OTHER_RESULT])
        except RequestError:
            return False
        return same

    def prompt(self, messages: list[dict]) -> str:
        """Return the text of the messages and the generation prompt. Raises: RequestError, as `render`."""
        if not self.by_message:
            return self.render(messages)
        return self._in_pieces(messages)

    def answered(self, prompt: str, messages: list[dict], answer: dict) -> str:
        """Return the text of the messages and the answer. prompt: the result of `prompt` for the messages."""
        if self.by_message:
            return prompt.removesuffix(self.generation_prompt) + self._piece([answer])
        return self.render([*messages, answer], add_generation_prompt=False)

    def turn(self, messages: list[dict]) -> tuple[list[int], list[int]]:
        """Return the ids of the prompt and of its answer, the last message. Raises: RequestError if a call is dropped."""
        *before, last = messages
        prompt, encode = self.prompt(before), self.control.ids
        whole, ids = self.answered(prompt, before, last), encode(prompt)
        names = [call.get("function", call)["name"] for call in last.get("tool_calls") or ()]
        # Some templates do not repeat the generation prompt, because they drop earlier thoughts or close an opened one.
        repeats = whole.startswith(prompt)
        base = prompt if repeats or not names else self.render(before, add_generation_prompt=False)
        if names and not (whole.startswith(base) and all(name in whole[len(base) :] for name in names)):
            raise RequestError(f"messages: this model's chat template drops a call of {names}: write it as content")
        if names and not repeats:
            answer = encode(whole)
            del answer[: common_prefix(ids, answer)]
        else:
            answer = encode(whole[len(prompt) :] if repeats else self.control.protect(last["content"]))
        answer.append(self._ends[0])
        # Text after the end token is the template's, not the policy's.
        return ids, answer[: 1 + next(i for i, token in enumerate(answer) if token in self._ends)]

    @cached_property
    def _ends(self) -> list[int]:
        """The tokens that end an answer: the control token that the template writes after it, if any, then the EOS token."""
        whole = self.render([USER, {**ANSWER, "content": CONTENTS[0]}], add_generation_prompt=False)
        after = self.control.ids("".join(whole.partition(CONTENTS[0])[2].split()[:1]))
        return [i for i in after[-1:] if i in self._tokenizer.added_tokens_decoder] + [self._tokenizer.eos_token_id]

    def _in_pieces(self, messages: list[dict]) -> str:
        first = self._piece(messages[:1], first=True)
        return "".join([first, *map(self._piece, _blocks(messages[1:])), self.generation_prompt])

    def _piece(self, block: list[dict], first: bool = False) -> str:
        """Return the text of one message, or of consecutive tool messages. first: the conversation begins with it."""
        if len(block) == 1 and block[0]["content"] and (frame := self._frame(block[0], first)):
            return self.control.protect(block[0]["content"]).join(frame)
        key = first, *map(self._key, block)
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = self._rendered(block, first)
        return piece

    def _rendered(self, block: list[dict], first: bool) -> str:
        if first:
            return self.render(block, add_generation_prompt=False)
        whole = self.render([USER, *block], add_generation_prompt=False)
        if not whole.startswith(self._user):
            raise RequestError(f"messages: this model's chat template moves a later message of role {block[0]['role']!r}")
        return whole[len(self._user) :]

    def _frame(self, message: dict, first: bool) -> tuple[str, str] | None:
        """Return the template's text before and after an unchanged content of a user or tool; None for other messages."""
        role = message["role"]
        if role not in ("user", "tool") or len(message) != (2 if self._shows_ids or "tool_call_id" not in message else 3):
            return None
        key = role, len(message), first
        if key not in self._frames:
            self._frames[key] = None
            with suppress(RequestError):  # the template refuses one of the contents, or the role
                texts = {content: self._rendered([{**message, "content": content}], first) for content in CONTENTS}
                before, _, after = texts[CONTENTS[0]].partition(CONTENTS[0])
                if all(text == before + content + after for content, text in texts.items()):
                    self._frames[key] = before, after
        return self._frames[key]

    def _key(self, message: dict) -> Any:
        """Return a cache key. Leaves out ids of tool calls, which are always new, if the template does not show them."""
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


def _blocks(messages: list[dict]) -> Iterator[list[dict]]:
    """Group consecutive tool messages; every other message is alone."""
    for is_tool, run in groupby(messages, key=lambda message: message["role"] == "tool"):
        block = list(run)
        yield from [block] if is_tool else [[message] for message in block]


@dataclass
class AnsweredConversation:
    """Token ids of a conversation without the answer's end token, its slot, and how many prompts have continued it."""

    ids: list[int]
    slot: int
    continued: int = 0


class PromptEncoder:
    """Encodes prompts, and stores the token ids of answered conversations.

    tokenizer: with a chat template; ends: the texts of the tokens that end an answer.
    """

    def __init__(self, tokenizer, ends: Iterable[str]):
        control = control_tokens(tokenizer)
        if "" in (ends := list(ends)):
            warnings.warn("the model's generation_config has an eos_token_id without a token: it is ignored", stacklevel=2)
        self._encode, self._tokenizer, self._ends = control.ids, tokenizer, [control.placeholder(e) for e in ends if e]
        self._templates = BoundedDict[str, IncrementalTemplate](MAX_TEMPLATES)
        self._answered = BoundedDict[str, list[AnsweredConversation]](MAX_CONVERSATIONS)

    def template(self, tools: list[dict] | None, arguments: dict[str, Any]) -> IncrementalTemplate:
        """Return the chat template with these tools and arguments. Raises: RequestError for invalid ones."""
        try:
            key = json.dumps([tools, arguments])  # a template shows the order of keys
        except (TypeError, ValueError) as error:
            raise RequestError(f"tools or chat_template_kwargs: expected plain JSON values ({error})") from error
        if key not in self._templates:
            self._templates[key] = IncrementalTemplate(self._tokenizer, tools, arguments)
        return self._templates[key]

    def encode(self, prompt: str) -> tuple[list[int], AnsweredConversation | None]:
        """Return the prompt's token ids, and the answered conversation that it continues, None if there is none.

        Of several such conversations, returns the one with the longest text; if tied, the first of those continued least.
        """
        cut = len(prompt)
        while (cut := max((prompt.rfind(end, 0, cut) for end in self._ends), default=-1)) >= 0:
            if same := self._answered.get(prompt[:cut]):
                known = min(same, key=lambda answered: answered.continued)
                # The rest begins with an end token, across which no tokenizer merges.
                return known.ids + self._encode(prompt[cut:]), known
        return self._encode(prompt), None

    def remember(self, prompt: str, text: str, ids: list[int], slot: int) -> None:
        """Store an answered conversation, unless the template renders its prompt differently when an answer follows.

        prompt: its text before the answer; text: with the answer; ids: its tokens without the end token; slot: of the cache.
        """
        cut = max((text.rfind(end) for end in self._ends), default=-1)
        if cut >= 0 and text.startswith(prompt):
            if text[:cut] not in self._answered:
                self._answered[text[:cut]] = []
            same = self._answered[text[:cut]]
            same.append(AnsweredConversation(ids, slot))
            del same[:-MAX_CONVERSATIONS_PER_TEXT]
