"""A tokenizer's chat template applied to a conversation: what it writes, and the token ids of that.

What comes out is what `apply_chat_template` gives, token for token, as long as no message spells out a control token.
One that does stays text. The template sees the texts as they are, so one that looks for thoughts in what the assistant
said finds them; what others said holds no control token for it to find.

Only tokens can be kept apart. Where a template marks messages by words that are no tokens (Vicuna's `USER:`, Zephyr's
`<|user|>`), a text that says the same is the same.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import jinja2

from art_nb.inference.chat import RequestError
from art_nb.inference.control_tokens import control_tokens
from art_nb.inference.messages import ROLES, for_template, half_pair
from art_nb.inference.tracing import Traced, compiled

USER: dict[str, Any] = {"role": "user", "content": "a"}
FUNCTION = {"name": "f", "description": "b", "parameters": {"type": "object", "properties": {"c": {"type": "string"}}}}
CALL = {"id": "call_1234", "type": "function", "function": {"name": "f", "arguments": '{"c": "d"}'}}
CALLING: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "call_1234", "name": "f", "content": "e"}
TOOLS = [{"type": "function", "function": FUNCTION}]
CONVERSATIONS: tuple[list[dict], ...] = (
    [{"role": "system", "content": "g"}, USER],
    [USER, {"role": "assistant", "content": "h"}, USER],
    [USER, {"role": "assistant", "content": "h", "reasoning_content": "i"}, USER],
    [USER, CALLING, RESULT],
)
RESERVED = {"messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message"}


class Rendering:
    """The chat template with given tools and further arguments.

    Raises: RequestError when an argument is not a request's to choose.
    """

    def __init__(self, tokenizer, tools: list[dict] | None, arguments: dict[str, Any]):
        if refused := sorted(RESERVED & set(arguments)):
            raise RequestError(f"chat_template_kwargs: a request can't set {', '.join(refused)} there")
        self.control = control_tokens(tokenizer)
        self._tokenizer, self._tools, self._arguments = tokenizer, tools, arguments
        self._heard: set[str] = set()

    def whole(self, messages: list[dict], opening: bool = True) -> str:
        """What the template writes, its control tokens under their names; with the opening of the assistant's next message.

        Raises: RequestError where the template refuses the messages, or they hold what is no text.
        """
        try:
            return self.rendered(messages, opening)
        except UnicodeEncodeError as error:
            raise self.refused(messages) from error

    def refused(self, messages: list[dict]) -> RequestError:
        """Names the half of a surrogate pair that they hold."""
        return RequestError(half_pair(messages, tools=self._tools, chat_template_kwargs=self._arguments))

    def rendered(self, messages: list[dict], opening: bool = True) -> str:
        """The same. Raises also: UnicodeEncodeError where they hold half of a surrogate pair."""
        for role in {message["role"] for message in messages} - self._heard:
            self._hear(role)
        try:
            special = {name: self.control.written(text) for name, text in self._tokenizer.special_tokens_map.items()}
            arguments = {**special, "documents": None, **self._arguments, "add_generation_prompt": opening}
            arguments |= {"messages": list(map(self._seen_by_template, messages)), "tools": self._tools}
            text = self._compiled().render(arguments)
        except Exception as error:  # a template may raise whatever it likes
            raise RequestError(f"messages: the chat template can't render them ({error})") from error
        return self.control.named(text)

    def _compiled(self) -> jinja2.Template:
        source, known = self._tokenizer.get_chat_template(None, self._tools), self.control.templates
        if source not in known:
            known[source] = compiled(source, self.control.written)
        return known[source]

    def _seen_by_template(self, message: dict) -> dict:
        """Roles are names that stand in templates. What others than the assistant say is `Traced`, for none of it is."""
        message = for_template(message)
        if message["role"] != "assistant":
            message["content"] = Traced(message["content"])
        if message["role"] in ROLES:
            message["role"] = self.control.written(message["role"])
        return message

    def _hear(self, role: str) -> None:
        """Raises: RequestError if the template leaves out, without a word, what this role says."""
        self._heard.add(role)
        before: list[dict[str, Any]] = [USER, CALLING] if role == "tool" else []
        said = RESULT if role == "tool" else {"role": role}
        try:
            text = self.rendered([*before, {**said, "content": "heard?"}, USER])
        except RequestError:
            return  # it does not pass over it without a word
        if "heard?" not in text:
            self._heard.remove(role)
            raise RequestError(f"messages: this model's chat template leaves out what the role {role!r} says: use another")


def check_template(tokenizer) -> None:
    """Raises: RequestError if what comes out is not what transformers gives, for a few plain conversations."""
    source, checked = str(tokenizer.chat_template), control_tokens(tokenizer).checked
    if source in checked:
        return
    for tools, messages in product((None, TOOLS), CONVERSATIONS):
        rendering = Rendering(tokenizer, tools, {})
        try:
            ids = rendering.control.ids(rendering.whole(messages))
        except RequestError:
            continue  # this template refuses such a conversation
        given = list(map(for_template, messages))
        if ids != tokenizer.apply_chat_template(given, tools=tools, add_generation_prompt=True, return_dict=False):
            raise RequestError(
                "messages: this model's chat template makes control tokens in a way that can't be followed, so they can't "
                f"be told from what messages say; it is one that begins with {source[:80]!r}"
            )
    checked.add(source)
