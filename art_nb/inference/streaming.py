"""An answer in pieces: OpenAI's chunks while tokens come, and their form on the wire.

What was sent can't be taken back. So text waits for as long as it could still become something else: half of a
character, the beginning of a stop string or of a tool call. All chunks together say what the whole answer says.

Source: https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import Choice
from pydantic_core import to_json

from art_nb.inference.chat import OF_SAMPLING, TOOL_MARK, Answer, Options, choice, head, logprobs

if TYPE_CHECKING:
    from art_nb.inference.request import Request


class Chunks:
    """The chunks of one request, as they are sampled: iterate with `async for`, or give the rest up with `aclose()`.

    A chunk is the JSON of OpenAI's ChatCompletionChunk as a dict. It holds what was sampled since the last was asked for: a
    token, or more for who asks late.

    requests: one for each answer; key, options: as of `chat.completion`; read: the answer of one, as far as it is
    certain; whole: the completion, once all are done.
    on_completion: called with the completion before the chunk comes that ends its last answer.
    pace: gives the seconds from text to text, at least; what is sampled meanwhile comes together. The first text waits for
        nothing, nor does the end.
    """

    on_completion: Callable[[ChatCompletion], None] | None = None
    pace: Callable[[], float] = staticmethod(lambda: 0.0)

    def __init__(
        self,
        requests: list[Request],
        key: str,
        options: Options,
        read: Callable[[Request], Answer],
        whole: Callable[[], ChatCompletion],
    ):
        self._requests, self._key, self._options, self._read, self._whole = requests, key, options, read, whole
        self._head = {**head(key, options), "object": "chat.completion.chunk"}
        self._usage: dict[str, Any] | None = None
        self._news, self._due = asyncio.Event(), 0.0
        for request in requests:
            request.on_token = self._hear
            request.done.add_done_callback(lambda _: self._news.set())
        self._chunks = self._follow()

    def __aiter__(self) -> Chunks:
        return self

    async def __anext__(self) -> dict[str, Any]:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        """Stop sampling."""
        for request in self._requests:
            request.give_up()
        await self._chunks.aclose()

    def _hear(self) -> None:
        """There are new tokens."""
        if time.monotonic() >= self._due:
            self._news.set()

    async def _follow(self) -> AsyncGenerator[dict[str, Any], None]:
        left = {request: Pieces(i, self._options) for i, request in enumerate(self._requests)}
        try:
            for pieces in left.values():
                yield self._chunk(pieces.begin())
            while left:
                await self._news.wait()
                self._news.clear()
                for request, pieces in list(left.items()):
                    for piece in self._new(request, pieces, left):
                        self._due = time.monotonic() + self.pace()
                        yield self._chunk(piece)
            if self._options.include_usage:
                yield self._chunk(None)
        finally:
            for request in self._requests:
                request.give_up()

    def _new(self, request: Request, pieces: Pieces, left: dict[Request, Pieces]) -> Iterator[dict]:
        """What can be said of an answer since it was last looked at. Raises: what ended its sampling."""
        if not request.done.done():
            return pieces.more(self._read(request))
        request.done.result()
        del left[request]
        if not left:
            self._end(self._whole())
        answer = self._read(request)
        return pieces.end(answer, choice(self._key, pieces.index, answer, self._options))

    def _end(self, completion: ChatCompletion) -> None:
        self._usage = completion.usage.model_dump(exclude_none=True) if completion.usage else None
        if self.on_completion:
            self.on_completion(completion)

    def _chunk(self, piece: dict | None) -> dict[str, Any]:
        """One that holds a piece, or the usage alone."""
        usage = {"usage": None if piece else self._usage} if self._options.include_usage else {}
        return {**self._head, "choices": [piece] if piece else [], **usage}


class Pieces:
    """Cuts one answer into the choices of chunks. index: of the answer among those to its request."""

    def __init__(self, index: int, options: Options):
        self.index, self._options = index, options
        self._sent, self._reported = "", 0  # characters, tokens

    def begin(self) -> dict[str, Any]:
        return self._piece({"role": "assistant", "content": ""})

    def more(self, answer: Answer) -> Iterator[dict[str, Any]]:
        """For an answer that is not over yet."""
        yield from self._text(settled(answer.content, self._options), answer)

    def end(self, answer: Answer, whole: Choice) -> Iterator[dict[str, Any]]:
        """What is left of an answer that is over; `whole` is its choice."""
        yield from self._text(whole.message.content or "", answer, last=True)
        for i, call in enumerate(whole.message.model_dump()["tool_calls"] or []):
            arguments = call["function"].pop("arguments")
            yield self._piece({"tool_calls": [{"index": i, **call, "function": {**call["function"], "arguments": ""}}]})
            yield self._piece({"tool_calls": [{"index": i, "function": {"arguments": arguments}}]})
        yield self._piece({}, finish_reason=whole.finish_reason, **whole.model_dump(include=OF_SAMPLING))

    def _text(self, said: str, answer: Answer, last: bool = False) -> Iterator[dict[str, Any]]:
        new, self._sent = said[len(self._sent) :], said
        unreported = self._options.logprobs and self._reported < len(answer.tokens)
        if new or (last and unreported):
            told = {"logprobs": logprobs(answer, self._reported).model_dump()} if unreported else {}
            self._reported = len(answer.tokens)
            yield self._piece({"content": new}, **told)

    def _piece(self, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"index": self.index, "delta": delta, "finish_reason": None, "logprobs": None, **more}


def settled(text: str, options: Options) -> str:
    """The beginning of an unfinished answer that its content will begin with, whatever comes."""
    text = text.rstrip("\ufffd")  # the rest of a character may come
    marks = [*options.stop, TOOL_MARK] if options.tools else options.stop
    cut = min([len(text), *(_first(text, mark) for mark in marks)])
    return text[:cut].rstrip() if options.tools else text[:cut]  # blanks before a call are not content


def _first(text: str, mark: str) -> int:
    """Where the mark begins in the text, or may begin at its end."""
    ends = range(max(0, len(text) - len(mark) + 1), len(text))
    found = text.find(mark)
    return found if found >= 0 else next((i for i in ends if mark.startswith(text[i:])), len(text))


async def events(chunks: Chunks) -> AsyncGenerator[bytes, None]:
    """Chunks as a server sends them: `data: {...}` lines of server-sent events, `data: [DONE]` at the end."""
    async with aclosing(chunks):  # whoever stops listening stops the sampling
        async for chunk in chunks:
            yield b"data: " + to_json(chunk, inf_nan_mode="null") + b"\n\n"
    yield b"data: [DONE]\n\n"
