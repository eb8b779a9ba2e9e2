"""Constrained decoding: the tokens that may come next when a request requires JSON that fits a schema, or a tool call.

llguidance compiles the grammars and computes the allowed tokens. It supports these JSON schema features:
https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md. Tool calls have the format that
`chat.parse_tool_calls` reads.
"""

import json
from functools import lru_cache
from typing import Any

import torch

from art_nb.inference.chat import TOOL_END, TOOL_START, ChatOptions, RequestError
from art_nb.inference.vocabulary import Vocabulary

# One space, or a new line and its indentation. Without a limit, a model that never saw JSON may sample whitespace forever.
WHITESPACE = {"whitespace_pattern": r" |\n {0,16}"}


class Constraint:
    """The state of one answer's grammar. matcher: an `llguidance.LLMatcher`."""

    def __init__(self, matcher: Any):
        self._matcher = matcher

    def allowed(self, vocabulary: int) -> torch.Tensor:
        """Return a mask of allowed next tokens: (vocabulary,) bool. Raises: RequestError when the grammar is too complex."""
        bits = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        if self._matcher.is_error():
            raise _unsupported(self._matcher.get_error())
        allowed = (bits[:, None] >> torch.arange(8, dtype=torch.uint8) & 1).bool().flatten()[:vocabulary]
        return torch.nn.functional.pad(allowed, (0, vocabulary - len(allowed)))

    def advance(self, token: int) -> None:
        """Advance by a token of the answer."""
        self._matcher.consume_token(token)


class Constraints:
    """Compiles the constraints of requests, for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._compiled = lru_cache(64)(self._compile)

    def for_options(self, options: ChatOptions) -> Constraint | None:
        """Return a new constraint for one answer; None if there is none. Raises: RequestError for an unsupported schema."""
        grammar = self._grammar(options)
        return None if grammar is None else Constraint(self._compiled(grammar).deep_copy())

    def _grammar(self, options: ChatOptions) -> str | None:
        """Return the constraint in llguidance's variant of Lark; None if there is none."""
        rules, starts = ['NEWLINE: "\\n"'], []
        if not options.must_call:
            if options.response_format is None:
                return None
            rules.append(f"content: {_json(options.response_format)}")
            starts.append("content")
        functions = [tool["function"] for tool in options.tools or []]
        if callable_ones := [f for f in functions if options.function in (None, f["name"])]:
            rules += [self._call(i, function) for i, function in enumerate(callable_ones)]
            rules.append(f"call: {' | '.join(f'call_{i}' for i in range(len(callable_ones)))}")
            many = options.parallel_tool_calls and options.function is None
            starts.append("call (NEWLINE? call)*" if many else "call")
        return "\n".join([f"start: {' | '.join(starts)}", *rules])

    def _call(self, i: int, function: dict[str, Any]) -> str:
        """Return the rules of a call to a function. Its schema has its own rule: `$ref` is relative to the schema's root."""
        begin = json.dumps(f'{{"name": {json.dumps(function["name"])}, "arguments": ')
        body = f'NEWLINE? {begin} arguments_{i} "}}" NEWLINE?'
        arguments = {"type": "object", **(function.get("parameters") or {})}
        return f"call_{i}: {self._tag(TOOL_START)} {body} {self._tag(TOOL_END)}\narguments_{i}: {_json(arguments)}"

    def _tag(self, tag: str) -> str:
        """Return the grammar's symbol for a tag: its token if the tokenizer encodes it as one, else its text."""
        ids = self._vocabulary.tokenizer.encode(tag, add_special_tokens=False)
        return f"<[{ids[0]}]>" if len(ids) == 1 else json.dumps(tag)

    def _compile(self, grammar: str) -> Any:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._vocabulary.llguidance, LLMatcher.grammar_from_lark(grammar), log_level=0)
        if matcher.is_error():
            raise _unsupported(matcher.get_error())
        return matcher


def _json(schema: dict[str, Any]) -> str:
    try:
        return f"%json {json.dumps({'x-guidance': WHITESPACE, **schema}, allow_nan=False)}"
    except (TypeError, ValueError) as error:
        raise RequestError(f"response_format or tools: expected a JSON schema as plain JSON values ({error})") from error


def _unsupported(error: str) -> RequestError:
    return RequestError(f"response_format or tools: a schema in them is not supported for constrained decoding: {error}")
