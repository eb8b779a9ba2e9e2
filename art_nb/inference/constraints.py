"""Constrained decoding: which tokens may come next where a request asks for JSON of a schema, or for a tool call.

The grammar is followed by llguidance, which also makes it of a JSON schema; what it knows of JSON schema:
https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md. Tool calls are written as `chat.parse_tool_calls`
reads them.
"""

from __future__ import annotations

import json
from functools import cached_property, lru_cache
from typing import Any

import torch

from art_nb.inference.chat import TOOL_END, TOOL_MARK, Options, RequestError
from art_nb.inference.control_tokens import control_tokens

# One blank, or a new line and its indentation: with more, a model that never saw JSON would write blanks without end.
BLANKS = {"whitespace_pattern": r" |\n {0,16}"}


class Constraint:
    """What one answer may still say. matcher: llguidance's, which follows the answer."""

    def __init__(self, matcher: Any):
        self._matcher = matcher

    def allowed(self, vocabulary: int) -> torch.Tensor:
        """Which tokens may come next: (vocabulary,) bool. Raises: RequestError where that is too much for llguidance."""
        bits = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        if self._matcher.is_error():
            raise _refused(self._matcher.get_error())
        allowed = (bits[:, None] >> torch.arange(8, dtype=torch.uint8) & 1).bool().flatten()[:vocabulary]
        return torch.nn.functional.pad(allowed, (0, vocabulary - len(allowed)))

    def take(self, token: int) -> None:
        """The answer goes on with this token."""
        self._matcher.consume_token(token)


class Constraints:
    """Those of a tokenizer. ends: the ids of the tokens that may end an answer."""

    def __init__(self, tokenizer: Any, ends: set[int]):
        self._tokenizer, self._ends = tokenizer, sorted(ends)
        self._compiled = lru_cache(64)(self._compile)

    def of(self, options: Options) -> Constraint | None:
        """The one that a request asks for. Raises: RequestError where its schema can't be followed."""
        grammar = self._grammar(options)
        return None if grammar is None else Constraint(self._compiled(grammar).deep_copy())

    def raw(self, token: int) -> bytes:
        """The bytes of a token that is text, or a part of a character."""
        return self._vocabulary.decode_bytes([token])

    def _grammar(self, options: Options) -> str | None:
        """In llguidance's dialect of Lark; None where any answer will do."""
        rules, starts = ['NEWLINE: "\\n"'], []
        if not options.must_call:
            if options.schema is None:
                return None
            rules.append(f"content: {_json(options.schema)}")
            starts.append("content")
        functions = [tool["function"] for tool in options.tools or []]
        if called := [f for f in functions if options.function in (None, f["name"])]:
            rules += [self._call(i, function) for i, function in enumerate(called)]
            rules.append(f"call: {' | '.join(f'call_{i}' for i in range(len(called)))}")
            many = options.parallel_tool_calls and options.function is None
            starts.append("call (NEWLINE? call)*" if many else "call")
        return "\n".join([f"start: {' | '.join(starts)}", *rules])

    def _call(self, i: int, function: dict[str, Any]) -> str:
        """The rules of a call of this function; its schema has a rule of its own, for references in it begin at its root."""
        begin = json.dumps(f'{{"name": {json.dumps(function["name"])}, "arguments": ')
        body = f'NEWLINE? {begin} arguments_{i} "}}" NEWLINE?'
        arguments = {"type": "object", **(function.get("parameters") or {})}
        return f"call_{i}: {self._mark(TOOL_MARK)} {body} {self._mark(TOOL_END)}\narguments_{i}: {_json(arguments)}"

    def _mark(self, mark: str) -> str:
        """A mark as the tokenizer writes it: by a token of its own, or as text."""
        ids = self._tokenizer.encode(mark, add_special_tokens=False)
        return f"<[{ids[0]}]>" if len(ids) == 1 else json.dumps(mark)

    @cached_property
    def _vocabulary(self) -> Any:
        """llguidance's view of the tokenizer; for a large one it takes a second."""
        import llguidance

        return llguidance.LLTokenizer(control_tokens(self._tokenizer).as_json(), eos_token=self._ends)

    def _compile(self, grammar: str) -> Any:
        import llguidance

        matcher = llguidance.LLMatcher(self._vocabulary, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
        if matcher.is_error():
            raise _refused(matcher.get_error())
        return matcher


def _json(schema: dict[str, Any]) -> str:
    try:
        return f"%json {json.dumps({'x-guidance': BLANKS, **schema}, allow_nan=False)}"
    except (TypeError, ValueError) as error:
        raise RequestError(f"response_format or tools: expected a JSON schema as plain JSON values ({error})") from error


def _refused(error: str) -> RequestError:
    return RequestError(f"response_format or tools: a schema in them can't be followed while decoding: {error}")
