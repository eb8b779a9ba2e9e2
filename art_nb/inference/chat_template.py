"""A tokenizer's chat template: renders conversations so that only the template itself can write control tokens.

The result equals that of `apply_chat_template`, token for token, unless a message contains a control token's text, which
remains ordinary text. Only tokens can be protected: where a template marks roles by ordinary text (Vicuna's `USER:`,
Zephyr's `<|user|>`), the same text in a message cannot be distinguished from a marker.
"""

from itertools import product
from typing import Any

from art_nb.inference.chat import RequestError
from art_nb.inference.control_tokens import control_tokens
from art_nb.inference.messages import ROLES, with_parsed_arguments
from art_nb.inference.provenance import TaintedStr

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


class ChatTemplate:
    """The chat template of a tokenizer, with the tools and template arguments of a request.

    Rendered text is protected: control tokens are represented by placeholders, see `control_tokens`.

    Raises: RequestError for an argument that a request may not set.
    """

    def __init__(self, tokenizer, tools: list[dict] | None, arguments: dict[str, Any]):
        if reserved := sorted(RESERVED & set(arguments)):
            raise RequestError(f"chat_template_kwargs: a request can't set {', '.join(reserved)}; leave it out")
        self.control = control_tokens(tokenizer)
        self._tokenizer, self._tools, self._arguments = tokenizer, tools, arguments
        self._checked_roles: set[str] = set()

    def render(self, messages: list[dict], add_generation_prompt: bool = True) -> str:
        """Return the protected text of the messages.

        Raises: RequestError when the template refuses the messages or drops all messages of a role, or for a lone surrogate.
        """
        for role in {message["role"] for message in messages} - self._checked_roles:
            self._check_role(role)
        try:
            special = {name: self.control.literal(text) for name, text in self._tokenizer.special_tokens_map.items()}
            arguments = {**special, "documents": None, **self._arguments, "add_generation_prompt": add_generation_prompt}
            arguments |= {"messages": list(map(self._tainted, messages)), "tools": self._tools}
            text = self.control.compiled(self._tokenizer.get_chat_template(None, self._tools)).render(arguments)
        except Exception as error:  # a template may raise anything
            raise RequestError(f"messages: the chat template can't render them ({error})") from error
        return self.control.protect(text)

    def _tainted(self, message: dict) -> dict:
        """Convert a message for the template. Its role counts as the template's text, its content as input."""
        message = with_parsed_arguments(message)
        mask = b"\2" * len(message["content"]) if message["role"] == "assistant" else None
        message["content"] = TaintedStr(message["content"], mask)  # mask 2: templates may search it for </think>
        if message["role"] in ROLES:
            message["role"] = self.control.literal(message["role"])
        return message

    def _check_role(self, role: str) -> None:
        """Raise a RequestError if the template silently drops the messages of this role."""
        self._checked_roles.add(role)
        before: list[dict[str, Any]] = [USER, CALLING] if role == "tool" else []
        message = RESULT if role == "tool" else {"role": role}
        try:
            text = self.render([*before, {**message, "content": "included?"}, USER], True)
        except RequestError:
            return  # refused, which is not silent
        if "included?" not in text:
            self._checked_roles.remove(role)
            raise RequestError(f"messages: this model's chat template drops messages of role {role!r}: use another role")


def verify_template(tokenizer) -> None:
    """Compare the token ids of a few simple conversations with transformers'. Raises: RequestError if they differ."""
    source, verified = str(tokenizer.chat_template), control_tokens(tokenizer).verified
    if source in verified:
        return
    for tools, messages in product((None, TOOLS), CONVERSATIONS):
        template = ChatTemplate(tokenizer, tools, {})
        try:
            ids = template.control.ids(template.render(messages))
        except RequestError:
            continue  # this template refuses such a conversation
        plain = list(map(with_parsed_arguments, messages))
        if ids != tokenizer.apply_chat_template(plain, tools=tools, add_generation_prompt=True, return_dict=False):
            raise RequestError(
                "messages: this model's chat template builds control tokens in a way that can't be tracked, so they can't "
                f"be distinguished from the text of messages; the template begins with {source[:80]!r}"
            )
    verified.add(source)
