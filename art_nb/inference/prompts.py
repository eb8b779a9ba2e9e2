"""From messages to exact token ids: renders the chat template, and continues an answered conversation by its own ids.

The text of a conversation does not tell which tokens the model sampled, for the same text has many tokenisations. So
the ids of every answered conversation are remembered under its text, and a prompt that goes on from there starts
with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from art_nb.inference.chat import RequestError

USER, SYSTEM = {"role": "user", "content": "a"}, {"role": "system", "content": "b"}
ANSWER, TOOL = {"role": "assistant", "content": "c"}, {"role": "tool", "tool_call_id": "d", "content": "e"}
CALL = {
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


class Template:
    """The tokenizer's chat template with given tools and further arguments.

    Where the template writes each message by itself, only messages that it has not seen are rendered: a long
    conversation then costs its new messages. Whether it does so is found out by trying it on `PROBES`.
    """

    def __init__(self, tokenizer, tools: list[dict] | None, arguments: dict[str, Any]):
        self._tokenizer, self._arguments = tokenizer, {**arguments, "tools": tools, "tokenize": False}
        self._pieces: dict[Any, str] = {}
        self._shows_ids = True
        try:
            self._user = self.whole([USER], opening=False)
            self.opening = self.whole([USER])[len(self._user) :]
            conversations = [list(probe[:k]) for probe in PROBES for k in range(1, len(probe) + 1)]
            self.by_message = all(self._in_pieces(c) == self.whole(c) for c in conversations)
            self._shows_ids = self.whole([USER, CALL, TOOL]) != self.whole([USER, OTHER_CALL, OTHER_TOOL])
        except RequestError:
            self.by_message = False

    def text(self, messages: list[dict]) -> str:
        """The prompt: all messages, and the opening of the assistant's next one."""
        return self._in_pieces(messages) if self.by_message else self.whole(messages)

    def whole(self, messages: list[dict], opening: bool = True) -> str:
        """The same by the template alone. Raises RequestError where the template refuses the messages."""
        try:
            messages = [{**m, "tool_calls": _parsed(m["tool_calls"])} if m.get("tool_calls") else m for m in messages]
            return self._tokenizer.apply_chat_template(messages, add_generation_prompt=opening, **self._arguments)
        except Exception as error:  # a template may raise whatever it likes
            raise RequestError(f"messages: the chat template can't render them ({error})") from error

    def answered(self, prompt: str, messages: list[dict], answer: dict) -> str:
        """The text of a conversation whose prompt has been answered."""
        if self.by_message:
            return prompt.removesuffix(self.opening) + self._piece(answer)
        return self.whole([*messages, answer], opening=False)

    def _in_pieces(self, messages: list[dict]) -> str:
        pieces, seen = self._pieces, self._seen
        try:
            later = [pieces[seen(message)] for message in messages[1:]]
        except KeyError:
            later = [self._piece(message) for message in messages[1:]]
        return "".join([self._first_piece(messages[0]), *later, self.opening])

    def _first_piece(self, message: dict) -> str:
        key = "first", self._seen(message)
        if key not in self._pieces:
            self._pieces[key] = self.whole([message], opening=False)
        return self._pieces[key]

    def _piece(self, message: dict) -> str:
        key = self._seen(message)
        if key not in self._pieces:
            self._pieces[key] = self.whole([USER, message], opening=False).removeprefix(self._user)
        return self._pieces[key]

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
        self._tokenizer, self._ends, self._remembered = tokenizer, list(ends), remembered
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
                return known.ids + self._tokenizer.encode(text[cut:], add_special_tokens=False), known.slot
        return self._tokenizer.encode(text, add_special_tokens=False), None

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


def plain(messages: Any) -> list[dict]:
    """The messages as dicts with text as content.

    Raises:
        RequestError: there is none, or one is no message; it says which.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise RequestError(f"messages is {messages!r}: expected a list with at least one message")
    return [m if _is_plain(m) else _plain(m, i) for i, m in enumerate(messages)]


def _is_plain(message: Any) -> bool:
    if type(message) is not dict or not type(message.get("role")) is type(message.get("content")) is str:
        return False
    return "tool_calls" not in message or all(type(call) is dict for call in message["tool_calls"])


def _plain(message: Any, index: int) -> dict:
    message = message.model_dump(exclude_none=True) if hasattr(message, "model_dump") else message
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError(f"messages[{index}] is {message!r}: expected a dict with a role")
    content, calls = message.get("content") or "", message.get("tool_calls") or []
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise RequestError(f"messages[{index}]: content is {content!r}: expected a string or a list of text parts")
    calls = [call.model_dump() if hasattr(call, "model_dump") else call for call in calls]
    if not all(isinstance(call, dict) for call in calls):
        raise RequestError(f"messages[{index}]: tool_calls is {calls!r}: expected a list of dicts")
    message = {**message, "content": content, "tool_calls": calls}
    return message if calls else {k: v for k, v in message.items() if k != "tool_calls"}


def _parsed(calls: list[dict]) -> list[dict]:
    """Tool calls with their arguments as an object, as chat templates expect them; the API has them as a string."""
    parsed = []
    for call in calls:
        function = dict(call.get("function", call))
        try:
            function["arguments"] = json.loads(function["arguments"])
        except (TypeError, ValueError, KeyError):
            pass  # an object already, or nothing that could be one
        parsed.append({**call, "function": function})
    return parsed
