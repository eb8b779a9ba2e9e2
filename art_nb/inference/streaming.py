"""Answers in OpenAI's format: whole, or in chunks while they are sampled, also as server-sent events.

A chunk that was sent cannot be changed. Text is therefore held back while further tokens could change it: an incomplete
character, or the beginning of a stop string or of a tool call. The chunks add up to exactly the whole answer.

Source: https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from openai.types.chat import ChatCompletion, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.completion_usage import CompletionUsage
from pydantic_core import to_json

from art_nb.inference.chat import SAMPLING_FIELDS, TOOL_START, ChatOptions, parse_tool_calls

if TYPE_CHECKING:  # its module imports torch, which a client does not need
    from art_nb.inference.generation import Generation


def build_completion(key: str, options: ChatOptions, generations: list[Generation]) -> ChatCompletion:
    """Build the completion of one request. key: from `RequestKeys`; part of the completion's and its tool calls' ids."""
    prompt, sampled = len(generations[0].prompt), sum(len(generation.tokens) for generation in generations)
    return ChatCompletion(
        **build_header(key, options),
        object="chat.completion",
        choices=[build_choice(key, i, generation) for i, generation in enumerate(generations)],
        usage=CompletionUsage(prompt_tokens=prompt, completion_tokens=sampled, total_tokens=prompt + sampled),
    )


def build_header(key: str, options: ChatOptions) -> dict[str, Any]:
    """Return the fields that completions and chunks have in common."""
    return {"id": f"chatcmpl-{key}", "created": int(time.time()), "model": options.model}


def build_choice(key: str, index: int, generation: Generation) -> Choice:
    """Build one choice, with the fields of a `SampledChoice`."""
    options, content = generation.options, generation.content()
    calls, content = parse_tool_calls(content) if options.tools else ([], content)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [{**call, "id": f"{call['id']}_{key}-{index}"} for call in calls]
    return Choice(
        index=index,
        finish_reason="tool_calls" if calls else generation.finish_reason,
        message=ChatCompletionMessage.model_validate(message),
        logprobs=ChoiceLogprobs(content=generation.token_details) if options.logprobs else None,
        prompt_token_ids=generation.prompt,
        token_ids=generation.tokens,
        token_logprobs=generation.logprobs,
        token_texts=[generation.vocabulary.token_text(token) for token in generation.tokens],
        policy=generation.policy.name,
    )


class Chunks:
    """Asynchronous iterator over the chunks of one request; `aclose()` cancels the rest.

    Each chunk is a dict in the form of OpenAI's ChatCompletionChunk, with the new text of one choice.

    generations: one per choice; key, options: see `build_completion`; complete: builds the completion at the end.
    on_completion: called with the completion when the last choice has ended, before its remaining chunks.
    min_interval: returns the minimum number of seconds from a chunk to the next one that new tokens cause. The first text
        and the end of a choice are sent at once, with any new text of the other choices.
    """

    on_completion: Callable[[ChatCompletion], None] | None = None
    min_interval: Callable[[], float] = staticmethod(lambda: 0.0)

    def __init__(
        self, generations: list[Generation], key: str, options: ChatOptions, complete: Callable[[], ChatCompletion]
    ):
        self._generations, self._key, self._options, self._complete = generations, key, options, complete
        self._header = {**build_header(key, options), "object": "chat.completion.chunk"}
        self._usage: dict[str, Any] | None = None
        self._new, self._due = asyncio.Event(), 0.0
        for generation in generations:
            generation.on_token = self._on_token
            generation.done.add_done_callback(self._on_done)
        self._chunks = self._generate()

    def __aiter__(self) -> Chunks:
        return self

    async def __anext__(self) -> dict[str, Any]:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        """Stop sampling."""
        for generation in self._generations:
            generation.cancel()
        self._new.set()
        if not self._chunks.ag_running:  # type: ignore[attr-defined]  # else another task is reading: its iteration ends
            await self._chunks.aclose()

    def _on_done(self, done: asyncio.Future) -> None:
        if not done.cancelled():
            done.exception()  # marks it as retrieved, even if another choice raises its own first
        self._new.set()

    def _on_token(self) -> None:
        if time.monotonic() >= self._due:
            self._new.set()

    async def _generate(self) -> AsyncGenerator[dict[str, Any], None]:
        left = {generation: ChoiceChunks(i, generation) for i, generation in enumerate(self._generations)}
        try:
            for chunks in left.values():
                yield self._chunk(chunks.first())
            while left:
                await self._new.wait()
                self._new.clear()
                if any(generation.finish_reason == "cancelled" for generation in self._generations):
                    return
                for generation, chunks in list(left.items()):
                    for choice in self._next(generation, chunks, left):
                        self._due = time.monotonic() + self.min_interval()
                        yield self._chunk(choice)
            if self._options.include_usage:
                yield self._chunk(None)
        finally:
            for generation in self._generations:
                generation.cancel()

    def _next(self, generation: Generation, chunks: ChoiceChunks, left: dict[Generation, ChoiceChunks]) -> Iterator[dict]:
        """Return the new chunk choices of one choice. Raises: the error that ended its sampling."""
        if not generation.done.done():
            return chunks.more()
        generation.done.result()
        del left[generation]
        if not left:
            completion = self._complete()
            self._usage = completion.usage.model_dump(exclude_none=True) if completion.usage else None
            if self.on_completion:
                self.on_completion(completion)
        return chunks.last(build_choice(self._key, chunks.index, generation))

    def _chunk(self, choice: dict | None) -> dict[str, Any]:
        """Build a chunk with one choice, or with the usage alone."""
        usage = {"usage": None if choice else self._usage} if self._options.include_usage else {}
        return {**self._header, "choices": [choice] if choice else [], **usage}


class ChoiceChunks:
    """Splits one choice into the choices of chunks, as dicts. index: of the choice."""

    def __init__(self, index: int, generation: Generation):
        self.index, self._generation = index, generation
        self._sent, self._details_sent = "", 0

    def first(self) -> dict[str, Any]:
        return self._delta({"role": "assistant", "content": ""})

    def more(self) -> Iterator[dict[str, Any]]:
        """Yield the new text of a generation in progress, if any."""
        yield from self._text(stable_prefix(self._generation.content(), self._generation.options))

    def last(self, whole: Choice) -> Iterator[dict[str, Any]]:
        """Yield the rest of a finished generation: text, tool calls, finish reason. whole: its choice."""
        yield from self._text(whole.message.content or "", last=True)
        for i, call in enumerate(whole.message.model_dump()["tool_calls"] or []):
            arguments = call["function"].pop("arguments")
            yield self._delta({"tool_calls": [{"index": i, **call, "function": {**call["function"], "arguments": ""}}]})
            yield self._delta({"tool_calls": [{"index": i, "function": {"arguments": arguments}}]})
        yield self._delta({}, finish_reason=whole.finish_reason, **whole.model_dump(include=SAMPLING_FIELDS))

    def _text(self, content: str, last: bool = False) -> Iterator[dict[str, Any]]:
        new, self._sent = content[len(self._sent) :], content
        details = self._generation.token_details[self._details_sent :]
        if new or (last and details):
            logprobs = {"logprobs": ChoiceLogprobs(content=details).model_dump()} if details else {}
            self._details_sent += len(details)
            yield self._delta({"content": new}, **logprobs)

    def _delta(self, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"index": self.index, "delta": delta, "finish_reason": None, "logprobs": None, **more}


def stable_prefix(text: str, options: ChatOptions) -> str:
    """Return the part of an unfinished answer's text that no further token can change."""
    text = text.rstrip("\ufffd")  # the rest of a character may follow
    marks = [*options.stop, TOOL_START] if options.tools else options.stop
    cut = min([len(text), *(_start_of(mark, text) for mark in marks)])
    return text[:cut].rstrip() if options.tools else text[:cut]  # whitespace before a tool call is not content


def _start_of(mark: str, text: str) -> int:
    """Return the index at which the mark starts, or at which its beginning ends the text; else the length of the text."""
    ends = range(max(0, len(text) - len(mark) + 1), len(text))
    found = text.find(mark)
    return found if found >= 0 else next((i for i in ends if mark.startswith(text[i:])), len(text))


async def events(chunks: Chunks) -> AsyncGenerator[bytes, None]:
    """Encode chunks as server-sent events: `data: {...}`, and `data: [DONE]` at the end."""
    async with aclosing(chunks):  # a client that disconnects stops the sampling
        async for chunk in chunks:
            yield b"data: " + to_json(chunk, inf_nan_mode="null") + b"\n\n"
    yield b"data: [DONE]\n\n"
