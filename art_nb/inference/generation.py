"""One completion in progress: its prompt, its sampled tokens, and when it ends."""

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob, TopLogprob

from art_nb.inference.chat import TOOL_END, ChatOptions, parse_tool_calls
from art_nb.inference.constraints import Constraint
from art_nb.inference.policies import NamedPolicy
from art_nb.inference.vocabulary import IncrementalText, Vocabulary

Owner = tuple[str, int]


@dataclass(eq=False)
class Generation:
    """One completion in progress; a request for n completions has n of these.

    draws: its source of uniform random numbers; done: resolved when it ends, unless it is cancelled.
    constraint: restricts the tokens that may be sampled; previous_slot: the slot of the conversation's last turn.
    client: the name of the requesting client; clients take turns when slots are scarce.
    owner: (policy name, how often its cache was dropped before submission); generations with the same owner share keys
        and values.
    pending: tokens whose keys and values are not computed yet; speculated: proposed tokens after them, see `NgramTable`.
    on_token: called after tokens were added, one or several at a time.
    """

    policy: NamedPolicy
    prompt: list[int]
    options: ChatOptions
    max_tokens: int
    draws: random.Random
    done: asyncio.Future[None]
    vocabulary: Vocabulary
    constraint: Constraint | None = None
    previous_slot: int | None = None
    client: str | None = None
    slot: int = -1  # until it is admitted
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    token_details: list[ChatCompletionTokenLogprob] = field(default_factory=list)  # with `logprobs=True`
    pending: list[int] = field(default_factory=list)
    speculated: list[int] = field(default_factory=list)
    finish_reason: str = ""  # while it is in progress
    stopped: bool = False  # ended by a stop string
    on_token: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._text = IncrementalText(self.vocabulary)
        self._uniforms: list[float] = []
        self.owner: Owner = self.policy.name, 0

    def uniform(self, index: int) -> float:
        """Return the uniform random number for the token at `index`; it is the same in every call."""
        while len(self._uniforms) <= index:
            self._uniforms.append(self.draws.random())
        return self._uniforms[index]

    def last_two(self) -> tuple[int, ...]:
        return tuple((self.prompt[-2:] + self.tokens[-2:])[-2:])

    def append(self, token: int, logprob: float, top: Iterable[tuple[int, float]]) -> None:
        """Add a sampled token, and finish if it is the last. top: the most likely tokens and their log-probabilities."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.constraint:
            self.constraint.advance(token)
        if self.options.logprobs:
            alternatives = [TopLogprob(**self._described(*each)) for each in top]
            detail = ChatCompletionTokenLogprob(**self._described(token, logprob), top_logprobs=alternatives)
            self.token_details.append(detail)
        if token in self.vocabulary.end_tokens or self._stops():
            self.finish("stop")
        elif len(self.tokens) >= self.max_tokens:
            self.finish("length")

    def _described(self, token: int, logprob: float) -> dict:
        text = self.vocabulary.token_text(token)
        return {"token": text, "bytes": list(self.vocabulary.token_bytes(token)), "logprob": logprob}

    def _stops(self) -> bool:
        """Whether the text contains a stop string (stored as `stopped`), or a complete tool call if only one is allowed."""
        one_call = self.options.tools and not self.options.parallel_tool_calls
        if not self.options.stop and not one_call:
            return False
        text = self._text.of(self.tokens, len(self.tokens))
        self.stopped = any(stop in text for stop in self.options.stop)
        ended = one_call and TOOL_END in text and (self.tokens[-1] == self.vocabulary.tool_end or parse_tool_calls(text)[0])
        return self.stopped or bool(ended)

    def finish(self, reason: str, error: BaseException | None = None) -> None:
        """End the generation: resolve `done`, with the error if there is one."""
        self.finish_reason = reason
        if not self.done.done():
            self.done.set_exception(error) if error else self.done.set_result(None)

    def cancel(self) -> None:
        """Stop sampling, because the caller no longer waits."""
        self.finish_reason = self.finish_reason or "cancelled"
        if not self.done.get_loop().is_closed():  # a closed loop raises when callbacks are scheduled
            self.done.cancel()

    def content_length(self) -> int:
        """Return the number of tokens that are content: all but the end token.

        While it is in progress, trailing byte tokens are left out, because the next token decides how they decode.
        """
        count = len(self.tokens)
        if self.finish_reason:
            return count - (self.tokens[-1] in self.vocabulary.end_tokens)
        while count and self.tokens[count - 1] in self.vocabulary.byte_tokens:
            count -= 1
        return count

    def content(self) -> str:
        """Return the text sampled so far, up to the first stop string."""
        text = self._text.of(self.tokens, self.content_length())
        return text[: min((text.index(stop) for stop in self.options.stop if stop in text), default=None)]
