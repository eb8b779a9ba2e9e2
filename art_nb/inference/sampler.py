"""Batched decoding for agents: many coroutines ask, one forward answers, keys and values stay across turns.

The sampler knows nothing of training. It holds a plain transformers model (adapter merged into the weights) and
answers requests in OpenAI's shapes. A request's draws come from its own generator, seeded by the prompt and by how
often this prompt was asked of these weights, so the same run gives the same rollouts, and who else is in the batch
matters only by rounding.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from openai.types.chat import ChatCompletion

from art_nb.inference.cache import SlotCache
from art_nb.inference.chat import Answer, Options, RequestError, check, completion, parse_tool_calls  # noqa: F401
from art_nb.inference.prompts import Prompts, plain

SETTLE = 8  # rounds of the event loop between two forwards, for those who were answered to ask again
WORTH_SHARING = 16  # tokens; a shorter common beginning is computed again
WORTH_WAITING = 64  # tokens; for a longer one that another request is about to compute, a forward is waited
HABIT = 3  # times that a token must have followed the same two tokens to be guessed
LONGEST_GUESS = 8
MOST_TOKENS = 32768  # of prompts that one forward takes in


@dataclass(eq=False)
class Request:
    """One sequence to decode (a request with n > 1 becomes n of these).

    pending: tokens that are known but not computed yet; guess: tokens computed on suspicion behind them.
    """

    prompt: list[int]
    options: Options
    max_tokens: int
    draws: random.Random
    done: asyncio.Future
    slot: int | None  # before admission: the one that may hold its conversation
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[list[tuple[int, float]]] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    guess: list[int] = field(default_factory=list)
    uniforms: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    cut: bool = False  # a stop string ended it

    def uniform(self, index: int) -> float:
        """The draw for the token with this index: the same however often it is asked for."""
        while len(self.uniforms) <= index:
            self.uniforms.append(self.draws.random())
        return self.uniforms[index]

    def last_two(self) -> tuple[int, ...]:
        return tuple((self.prompt[-2:] + self.tokens[-2:])[-2:])


class Sampler:
    """Decodes chat requests of any number of coroutines together.

    Args:
        model: a transformers causal LM whose attention implementation is `kv_cache.ATTENTION`.
        tokenizer: its tokenizer, with a chat template.
        slots: how many conversations are decoded (and remembered) at once; more requests wait their turn.
        seed: mixed into every request's own generator; any value with a repr.
    """

    def __init__(self, model, tokenizer, *, slots: int = 128, seed: object = 0):
        self.model, self.tokenizer, self.slots, self.seed = model.eval(), tokenizer, slots, seed
        self.context = model.config.max_position_embeddings
        ends = model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        self.end_tokens = {e for e in [*ends, tokenizer.eos_token_id] if e is not None}
        self.texts: dict[int, str] = {}
        self.prompts = Prompts(tokenizer, [self._text(token) for token in sorted(self.end_tokens)])
        self.tokens_sampled, self.seconds = 0, 0.0  # since the start: what was sampled, and the time it took
        self.waiting: deque[Request] = deque()
        self.driver: asyncio.Task | None = None
        self._reset()

    def forget(self) -> None:
        """Drop what was computed, keep its memory for what comes: call it when the weights have changed."""
        self.cache.lengths = [0] * self.slots
        self.held: list[list[int]] = [[] for _ in range(self.slots)]  # the tokens of each slot that are computed
        for request in self.active:
            request.pending = request.prompt + request.tokens
        busy = {request.slot for request in self.active}
        self.free = dict.fromkeys(slot for slot in range(self.slots) if slot not in busy)  # the longest idle first
        self.habits: dict[tuple[int, ...], tuple[int, int]] = {}
        self.asked: dict[bytes, int] = {}
        self.prompts.forget()

    def _reset(self) -> None:
        self.active: list[Request] = []
        self.cache = SlotCache(self.slots, self.model.config.num_hidden_layers, self.model.device)
        self.forget()

    async def create(self, *, messages, **parameters) -> ChatCompletion:
        """Answer one chat completion request, as `openai.AsyncOpenAI().chat.completions.create` does.

        Each choice also carries `prompt_token_ids`, `token_ids`, `token_logprobs` (natural log, temperature 1, full
        distribution) and `token_texts`, so that training uses exactly what was sampled.

        Raises:
            RequestError: a parameter is out of range or unknown, or the conversation does not fit the context.
        """
        options, messages = check(parameters), plain(messages)
        template = self.prompts.template(options.tools, options.chat_template_kwargs)
        text = template.text(messages)
        prompt, slot = self.prompts.ids(text)
        room = self.context - len(prompt)
        if room < (options.max_tokens or 1):
            raise RequestError(
                f"the conversation has {len(prompt)} tokens and max_tokens is {options.max_tokens}, together more "
                f"than the model's context of {self.context}: shorten the conversation or lower max_tokens"
            )
        self._start()
        key, loop = self._key(text, options.seed), asyncio.get_running_loop()
        requests = [
            Request(prompt, options, options.max_tokens or room, random.Random(f"{key} {i}"), loop.create_future(), slot)
            for i in range(options.n)
        ]
        self.waiting += requests
        try:
            await asyncio.gather(*(request.done for request in requests))
        except BaseException:
            for request in requests:
                request.finish_reason = request.finish_reason or "cancelled"
            raise
        answers = [self._answer(request) for request in requests]
        result = completion(key, options, answers)
        for request, choice in zip(requests, result.choices, strict=True):
            said = choice.message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
            if not request.cut:
                ids = request.prompt + self._spoken(request)
                self.prompts.remember(text, template.answered(text, messages, said), ids, request.slot)
        return result

    def _key(self, text: str, seed: int | None) -> str:
        """Names the request and seeds its draws: by its seed if it has one, else by how often the prompt was asked."""
        digest = hashlib.blake2b(f"{self.seed!r} {seed} {text}".encode(errors="surrogatepass"), digest_size=12).hexdigest()
        times = self.asked.get(digest, 0) if seed is None else 0
        self.asked[digest] = times + 1
        return f"{digest}{times}"

    def _start(self) -> None:
        """Make sure that somebody decodes, in the event loop of the one who asks."""
        loop = asyncio.get_running_loop()
        if self.driver is not None and not self.driver.done():
            if self.driver.get_loop() is loop:
                return
            if self.driver.get_loop().is_running():
                raise RuntimeError("the sampler is in use in another event loop: ask it from there")
            # That loop was abandoned, by an interrupt say, and with it everybody who asked.
            self.waiting.clear()
            self._reset()
        self.driver = loop.create_task(self._drive())
        # An interrupt is raised where the loop runs; asyncio need not report it a second time.
        self.driver.add_done_callback(lambda driver: driver.cancelled() or driver.exception())

    async def _drive(self) -> None:
        """Decode until nobody waits. Between two forwards every coroutine that can run, runs, so that batches fill."""
        started = time.perf_counter()
        try:
            while self.waiting or self.active:
                for _ in range(SETTLE):
                    await asyncio.sleep(0)
                self._drop_cancelled()
                self._admit()
                if self.active:
                    self._step()
        except BaseException as error:
            # An interrupt or a failed forward: nobody is left waiting, and nothing half-computed is kept.
            broken = [*self.active, *self.waiting]
            self.waiting.clear()
            self._reset()
            for request in broken:
                if not request.done.done():
                    request.done.set_exception(_failure(error))
            if not isinstance(error, Exception):
                raise
        finally:
            self.seconds += time.perf_counter() - started

    def _drop_cancelled(self) -> None:
        self.free |= {request.slot: None for request in self.active if request.finish_reason}
        self.active = [r for r in self.active if not r.finish_reason]
        self.waiting = deque(r for r in self.waiting if not r.finish_reason)

    def _admit(self) -> None:
        """Give waiting requests a slot each. A prompt's beginning that some slot holds is not computed again."""
        later, started = [], []
        # Conversations that go on come first: each finds its slot as it left it.
        asking = sorted(self.waiting, key=lambda request: request.slot is None)
        idle = deque(sorted(islice(self.free, len(asking))))
        for request in asking:
            if not self.free or sum(len(r.pending) for r in started) > MOST_TOKENS:
                later.append(request)
                continue
            source, shared = self._source(request)
            goes_on = source in self.free and shared == len(self.held[source])
            alike = [] if goes_on or len(request.prompt) < WORTH_WAITING else started
            if any(_common(r.prompt, request.prompt) >= shared + WORTH_WAITING for r in alike):
                later.append(request)
                continue
            while not goes_on and idle[0] not in self.free:
                idle.popleft()
            self._place(request, source if goes_on else idle.popleft(), source, shared)
            started.append(request)
        self.waiting = deque(later)
        self.active += started

    def _source(self, request: Request) -> tuple[int | None, int]:
        """The slot that holds most of the prompt's beginning, and how many tokens that is."""
        if request.slot in self.free and _starts(request.prompt, self.held[request.slot]):
            return request.slot, len(self.held[request.slot])
        start = request.prompt[:WORTH_SHARING]
        alike = [slot for slot, held in enumerate(self.held) if held[:WORTH_SHARING] == start]
        shared = {slot: _common(self.held[slot], request.prompt) for slot in alike}
        return max(shared.items(), key=lambda item: item[1], default=(None, 0))

    def _place(self, request: Request, slot: int, source: int | None, shared: int) -> None:
        if slot != source and shared:
            self.cache.copy(source, slot, shared)
        # At least one token must be computed, to know what comes next.
        shared = min(shared, len(request.prompt) - 1)
        self.held[slot], request.pending = request.prompt[:shared], request.prompt[shared:]
        self.cache.lengths[slot] = shared
        request.slot = slot
        del self.free[slot]

    @torch.inference_mode()
    def _step(self) -> None:
        """One forward over all active requests, for at least one token of each."""
        self.active.sort(key=lambda request: request.slot)
        for request in self.active:
            request.guess = self._guess(request)
        rows = [(r.slot, len(r.pending) + len(r.guess), 1 + len(r.guess)) for r in self.active]
        positions, outputs = self.cache.begin(*map(list, zip(*rows, strict=True)))
        ids = np.fromiter((t for r in self.active for t in (*r.pending, *r.guess)), dtype=np.int64)
        logits = self.model(
            input_ids=torch.from_numpy(ids)[None].to(self.model.device), position_ids=positions, use_cache=True,
            past_key_values=self.cache, slot_cache=self.cache, logits_to_keep=outputs,
        ).logits[0].float()  # fmt: skip
        self._sample(logits)
        self.active = [request for request in self.active if request.finish_reason is None]

    def _guess(self, request: Request) -> list[int]:
        """What habit says comes next: the fixed words of a tool call, say. Each is only kept if it is drawn as well,
        so guesses change how many tokens a forward gives and not which."""
        guess, before = [], request.last_two()
        for _ in range(min(LONGEST_GUESS, request.max_tokens - len(request.tokens) - 1)):
            token, times = self.habits.get(before, (None, 0))
            if times < HABIT:
                break
            guess.append(token)
            before = (*before, token)[-2:]
        return guess

    def _sample(self, logits: torch.Tensor) -> None:
        """Draw a token behind each output of the forward, and let each request take its own."""
        outputs = [(r.options, r.uniform(len(r.tokens) + i)) for r in self.active for i in range(1 + len(r.guess))]
        controls = torch.tensor([(o.temperature, o.top_p, u) for o, u in outputs], dtype=torch.float64)
        logprobs = torch.log_softmax(logits, dim=-1)
        if logprobs.amax(-1).isnan().any():
            raise FloatingPointError("the model's output is not finite: its weights are broken")
        tokens = draw(logits, *controls.to(logits.device).unbind(1))
        chosen = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        most = max(options.top_logprobs for options, _ in outputs)
        top = [[]] * len(outputs)
        if most:
            best, which = (t.tolist() for t in logprobs.topk(most))
            top = [list(zip(*pair, strict=True)) for pair in zip(which, best, strict=True)]
        drawn = zip(tokens.tolist(), chosen, top, strict=True)
        for request in self.active:
            self._take(request, list(islice(drawn, 1 + len(request.guess))))

    def _take(self, request: Request, drawn: list[tuple[int, float, list]]) -> None:
        """Take drawn tokens for as long as what was guessed before them is what was drawn."""
        computed = request.pending
        for (token, logprob, top), guess in zip(drawn, [*request.guess, None], strict=True):
            self._learn(request.last_two(), token)
            request.tokens.append(token)
            request.logprobs.append(logprob)
            request.alternatives.append(top[: request.options.top_logprobs])
            self.tokens_sampled += 1
            if token == guess:
                computed = computed + [token]
            if self._finished(request) or token != guess:
                break
        request.pending = [token]
        self.held[request.slot] += computed
        self.cache.lengths[request.slot] += len(computed)

    def _learn(self, before: tuple[int, ...], token: int) -> None:
        usual, times = self.habits.get(before, (token, 0))
        self.habits[before] = (token, times + 1 if token == usual else 1)

    def _finished(self, request: Request) -> bool:
        """Whether the sequence ends with its last token; if so its slot is free and the one who asked wakes up."""
        stop = request.options.stop
        if stop and request.tokens[-1] not in self.end_tokens:
            said = self.tokenizer.decode(request.tokens)
            request.cut = any(text in said for text in stop)
        if request.tokens[-1] in self.end_tokens or request.cut:
            request.finish_reason = "stop"
        elif len(request.tokens) >= request.max_tokens:
            request.finish_reason = "length"
        else:
            return False
        self.free[request.slot] = None
        if not request.done.done():
            request.done.set_result(None)
        return True

    def _answer(self, request: Request) -> Answer:
        content = self.tokenizer.decode(self._spoken(request))
        for stop in request.options.stop:
            content = content.partition(stop)[0]
        return Answer(
            prompt=request.prompt,
            content=content,
            finish_reason=request.finish_reason,
            tokens=request.tokens,
            logprobs=request.logprobs,
            texts=[self._text(token) for token in request.tokens],
            alternatives=[[(self._text(token), p) for token, p in top] for top in request.alternatives],
        )

    def _spoken(self, request: Request) -> list[int]:
        """What was sampled, without the token that ends the answer."""
        return request.tokens[:-1] if request.tokens[-1] in self.end_tokens else request.tokens

    def _text(self, token: int) -> str:
        if token not in self.texts:
            self.texts[token] = self.tokenizer.decode([token])
        return self.texts[token]


def draw(logits, temperature, top_p, uniform) -> torch.Tensor:
    """Sample one token per row by inverting the cumulative distribution.

    logits: (B, V); temperature: (B,), 0 means greedy; top_p: (B,) nucleus mass; uniform: (B,) in [0, 1). Returns (B,).
    """
    greedy = logits.argmax(-1)
    if bool((temperature == 0).all()):
        return greedy
    probabilities = torch.softmax(logits.double() / temperature.clamp(min=1e-6)[:, None], dim=-1)
    order = None
    if bool((top_p < 1).any()):
        probabilities, order = probabilities.sort(dim=-1, descending=True)
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities * (before < top_p[:, None])
    mass = probabilities.cumsum(-1)
    whole = mass[:, -1:]
    # Below the whole mass even when rounded, so that no token of probability 0 is ever drawn.
    point = torch.minimum(uniform[:, None] * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    index = torch.searchsorted(mass, point, right=True)
    if order is not None:
        index = order.gather(1, index)
    return torch.where(temperature == 0, greedy, index[:, 0])


def _starts(prompt: list[int], held: list[int]) -> bool:
    return len(held) > 0 and prompt[: len(held)] == held


def _common(a: list[int], b: list[int]) -> int:
    """The length of the common beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def _failure(error: BaseException) -> BaseException:
    if isinstance(error, Exception):
        return error
    return asyncio.CancelledError(f"sampling was stopped by {type(error).__name__}")
