"""Batched decoding for agents: many coroutines ask, one forward answers, keys and values stay across turns.

The sampler knows nothing of training. It answers requests in OpenAI's shapes, each by the policy that it names; policies
that share a model share its forwards. A request's draws come from its own generator, seeded by the policy, the prompt
and how often this policy was asked it, so the same run gives the same rollouts, and who else is in the batch matters
only by rounding.
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
from art_nb.inference.chat import TOOL_END, Answer, RequestError, check, completion
from art_nb.inference.constraints import Constraints
from art_nb.inference.draws import draw
from art_nb.inference.policies import NamedPolicy
from art_nb.inference.prompts import Prompts, plain
from art_nb.inference.request import Request
from art_nb.inference.settling import settle
from art_nb.inference.slots import Slots, common
from art_nb.inference.streaming import Chunks
from art_nb.inference.texts import GrowingText, Texts

WORTH_WAITING = 32  # tokens; for a longer one that another request is about to compute, a forward is waited
HABIT = 3  # times that a token must have followed the same two tokens to be guessed
LONGEST_GUESS = 8
MOST_TOKENS = 32768  # of prompts that one forward takes in


@dataclass
class Memory:
    """What is kept of one policy beside keys and values.

    habits: what followed two tokens last, and how often in a row; asked: how often each prompt came, by its digest.
    """

    prompts: Prompts
    habits: dict[tuple[int, ...], tuple[int, int]] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)


class Sampler:
    """Decodes chat requests of any number of coroutines together.

    Args:
        model: a transformers causal LM whose attention implementation is `cache.ATTENTION`. It answers where a request
            names no policy; the policies that requests name are of its architecture.
        tokenizer: its tokenizer, with a chat template.
        slots: how many conversations are decoded (and remembered) at once; more requests wait their turn.
        seed: mixed into the draws where a request names no policy; any value with a repr.
    """

    def __init__(self, model, tokenizer, *, slots: int = 128, seed: object = 0):
        self.model, self.tokenizer, self.seed = model.eval(), tokenizer, seed
        self.context = model.config.max_position_embeddings
        ends = model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        self.end_tokens = {e for e in [*ends, tokenizer.eos_token_id] if e is not None}
        self.constraints = Constraints(tokenizer, self.end_tokens)
        self.texts = Texts(tokenizer)
        self.tokens_sampled, self.seconds = 0, 0.0  # since the start: what was sampled, and the time it took
        self.waiting: deque[Request] = deque()
        self.settle = settle  # awaited between two forwards; a server that has clients elsewhere puts its own here
        self.driver: asyncio.Task | None = None
        self._reset(slots)

    def _reset(self, slots: int) -> None:
        self.active: list[Request] = []
        self.cache = SlotCache(slots, self.model.config.num_hidden_layers, self.model.device)
        self.slots = Slots(slots)
        self.memories: dict[str, Memory] = {}

    def forget(self, policy: str | None = None) -> None:
        """Drop what one policy computed and said, or all did: as if it had never been asked."""
        for slot in self.slots.of(policy):
            self.slots.held[slot], self.cache.lengths[slot] = [], 0
        for request in self.active:
            if not self.slots.held[request.slot]:
                request.pending = request.prompt + request.tokens
        self.slots.free = dict.fromkeys(sorted(self.slots.free))
        self.memories = {name: memory for name, memory in self.memories.items() if policy not in (None, name)}

    def _memory(self, policy: NamedPolicy) -> Memory:
        if policy.name not in self.memories:
            ends = [self.texts.of_token(token) for token in sorted(self.end_tokens)]
            self.memories[policy.name] = Memory(Prompts(self.tokenizer, ends))
        return self.memories[policy.name]

    @property
    def idle(self) -> bool:
        """Whether nobody waits for an answer."""
        return self.driver is None or self.driver.done()

    async def create(
        self, *, messages, policy: NamedPolicy | None = None, times: int | None = None, asked_before: int = 0,
        **parameters
    ) -> ChatCompletion | Chunks:
        """Answer one chat completion request, as `openai.AsyncOpenAI().chat.completions.create` does.

        Each choice also carries `prompt_token_ids`, `token_ids`, `token_logprobs` (natural log, temperature 1, full
        distribution) and `token_texts`, so that training uses exactly what was sampled, and the name of the `policy`.
        With `stream=True` the answer comes in chunks; the one that ends a choice carries all that.

        times: how often this prompt was asked before, by the count of one who asks several samplers; None: counted here.
        asked_before: how often at least: what a client remembers of a sampler that was restarted.

        What `response_format`, `tool_choice` or `parallel_tool_calls` rule out is not drawn. `token_logprobs` still say
        how likely the policy made each token by itself, not how likely it was among those allowed. So training on such
        an answer is GRPO for the policy without the rule, from samples that it would not always have drawn: a token
        that it hardly would have said has a large gradient, and a reward teaches it to say that unasked.

        Raises:
            RequestError: a parameter is out of range or unknown, or the conversation does not fit the context.
        """
        options, messages = check(parameters), plain(messages)
        policy = policy or NamedPolicy("", self.seed, self.model)
        prompts = self._memory(policy).prompts
        template = prompts.template(options.tools, options.chat_template_kwargs)
        text = template.text(messages)
        prompt, slot = prompts.ids(text)
        room = self.context - len(prompt)
        if room < (options.max_tokens or 1):
            raise RequestError(
                f"the conversation has {len(prompt)} tokens and max_tokens is {options.max_tokens}, together more "
                f"than the model's context of {self.context}: shorten the conversation or lower max_tokens"
            )
        self._start()
        key = self._key(policy, template.control.shown(text), options.seed, times, asked_before)
        loop, longest = asyncio.get_running_loop(), options.max_tokens or room
        requests = [
            Request(
                policy, prompt, options, longest, random.Random(f"{key} {i}"), loop.create_future(), slot,
                GrowingText(self.texts), constraint=self.constraints.of(options),
            )
            for i in range(options.n)
        ]  # fmt: skip
        self.waiting += requests

        def whole() -> ChatCompletion:
            result = completion(key, options, [self._answer(request) for request in requests])
            for request, choice in zip(requests, result.choices, strict=True):
                said = choice.message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
                if not request.cut:
                    ids = request.prompt + request.tokens[: self._spoken(request)]
                    prompts.remember(text, template.answered(text, messages, said), ids, request.slot)
            return result

        if options.stream:
            return Chunks(requests, key, options, self._answer, whole)
        try:
            await asyncio.gather(*(request.done for request in requests))
        except BaseException:
            for request in requests:
                request.give_up()
            raise
        return whole()

    def _key(self, policy: NamedPolicy, text: str, seed: int | None, times: int | None, at_least: int) -> str:
        """Names the request and seeds its draws: by its seed if it has one, else by how often the prompt was asked."""
        words = f"{policy.seed!r} {seed} {text}".encode(errors="surrogatepass")
        digest, asked = hashlib.blake2b(words, digest_size=12).hexdigest(), self._memory(policy).asked
        counted = max(asked.get(digest, 0), at_least) if times is None else times
        times = 0 if seed is not None else counted
        asked[digest] = times + 1
        return f"{digest}{times}"

    def _start(self) -> None:
        """Make sure that somebody decodes, in the event loop of the one who asks."""
        loop = asyncio.get_running_loop()
        if self.driver is not None and not self.driver.done():
            if self.driver.get_loop() is loop:
                return
            if self.driver.get_loop().is_running():
                raise RuntimeError(
                    "the sampler is in use in another event loop: ask it from there, and run code that does not await "
                    "by `await asyncio.to_thread(function)`"
                )
            # That loop was abandoned, by an interrupt say, and with it everybody who asked.
            self.waiting.clear()
            self._reset(len(self.slots.held))
        self.driver = loop.create_task(self._drive())
        # An interrupt is raised where the loop runs; asyncio need not report it a second time.
        self.driver.add_done_callback(lambda driver: driver.cancelled() or driver.exception())

    async def _drive(self) -> None:
        """Decode until nobody waits. Between two forwards every coroutine that can run, runs, so that batches fill."""
        started = time.perf_counter()
        try:
            while self.waiting or self.active:
                await self.settle()
                self._drop_cancelled()
                self._admit()
                if self.active:
                    self._step()
        except BaseException as error:
            # An interrupt or a failed forward: nobody is left waiting, and nothing half-computed is kept.
            broken = [*self.active, *self.waiting]
            self.waiting.clear()
            self._reset(len(self.slots.held))
            for request in broken:
                if not request.done.done():
                    request.done.set_exception(_failure(error))
            if not isinstance(error, Exception):
                raise
        finally:
            self.seconds += time.perf_counter() - started

    def _drop_cancelled(self) -> None:
        self.slots.free |= {request.slot: None for request in self.active if request.finish_reason}
        self.active = [r for r in self.active if not r.finish_reason]
        self.waiting = deque(r for r in self.waiting if not r.finish_reason)

    def _admit(self) -> None:
        """Give waiting requests a slot each. A prompt's beginning that some slot holds is not computed again."""
        later: list[Request] = []
        started: list[Request] = []
        free = self.slots.free
        # Conversations that go on come first: each finds its slot as it left it. Those of a policy get neighbouring slots.
        asking = sorted(self.waiting, key=lambda request: (request.last_slot is None, request.policy.name))
        idle = iter(sorted(islice(free, len(asking))))
        for request in asking:
            if not free or sum(len(r.pending) for r in started) > MOST_TOKENS:
                later.append(request)
                continue
            name = request.policy.name
            source, shared = self.slots.source(name, request.prompt, request.last_slot)
            slot = source if source in free and shared == len(self.slots.held[source]) else None
            alike = [] if slot is not None or len(request.prompt) < WORTH_WAITING else started
            if any(r.policy.name == name and common(r.prompt, request.prompt) >= shared + WORTH_WAITING for r in alike):
                later.append(request)
                continue
            if slot is None:
                slot = next(one for one in idle if one in free)
            self._place(request, slot, source, shared)
            started.append(request)
        self.waiting = deque(later)
        self.active += started

    def _place(self, request: Request, slot: int, source: int | None, shared: int) -> None:
        if source is not None and slot != source and shared:
            self.cache.copy(source, slot, shared)
        # At least one token must be computed, to know what comes next.
        shared = min(shared, len(request.prompt) - 1)
        self.slots.take(slot, request.policy.name, request.prompt[:shared])
        self.cache.lengths[slot], request.pending, request.slot = shared, request.prompt[shared:], slot

    @torch.inference_mode()
    def _step(self) -> None:
        """One forward over the active requests of each model, for at least one token of each request."""
        self.active.sort(key=lambda request: request.slot)
        by_model: dict[int, list[Request]] = {}
        for request in self.active:
            request.guess = self._guess(request)
            by_model.setdefault(id(request.policy.model), []).append(request)
        for requests in by_model.values():
            self._sample(requests, self._logits(requests))
        self.active = [request for request in self.active if not request.finish_reason]

    def _logits(self, requests: list[Request]) -> torch.Tensor:
        """What one model says behind the last token that each of its requests knows, and behind each that it guesses."""
        policies, counts = [r.policy for r in requests], [len(r.pending) + len(r.guess) for r in requests]
        positions, outputs = self.cache.begin([r.slot for r in requests], counts, [1 + len(r.guess) for r in requests])
        ids = np.fromiter((t for r in requests for t in (*r.pending, *r.guess)), dtype=np.int64)
        adapted = policies[0].adapter is not None
        adapters = {"adapters": [policy.adapter for policy in policies], "counts": counts} if adapted else {}
        return policies[0].model(
            input_ids=torch.from_numpy(ids)[None].to(self.model.device), position_ids=positions, use_cache=True,
            past_key_values=self.cache, slot_cache=self.cache, logits_to_keep=outputs, **adapters,
        ).logits[0].float()  # fmt: skip

    def _guess(self, request: Request) -> list[int]:
        """What habit says comes next: the fixed words of a tool call, say. Each is only kept if it is drawn as well,
        so guesses change how many tokens a forward gives and not which."""
        guess: list[int] = []
        before, habits = request.last_two(), self._memory(request.policy).habits
        if request.constraint:
            return guess  # what may follow a guess is not known before it is drawn
        for _ in range(min(LONGEST_GUESS, request.max_tokens - len(request.tokens) - 1)):
            token, times = habits.get(before, (-1, 0))
            if times < HABIT:
                break
            guess.append(token)
            before = (*before, token)[-2:]
        return guess

    def _sample(self, requests: list[Request], logits: torch.Tensor) -> None:
        """Draw a token behind each output of the forward, and let each request take its own."""
        outputs = [(r.options, r.uniform(len(r.tokens) + i)) for r in requests for i in range(1 + len(r.guess))]
        controls = torch.tensor([(o.temperature, o.top_p, u) for o, u in outputs], dtype=torch.float64)
        logprobs = torch.log_softmax(logits, dim=-1)
        if logprobs.amax(-1).isnan().any():
            raise FloatingPointError("the model's output is not finite: its weights are broken")
        tokens = draw(self._allowed(requests, logits), *controls.to(logits.device).unbind(1))
        chosen = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        most = max(options.top_logprobs for options, _ in outputs)
        top: list[list[tuple[int, float]]] = [[]] * len(outputs)
        if most:
            best, which = (t.tolist() for t in logprobs.topk(most))
            top = [list(zip(*pair, strict=True)) for pair in zip(which, best, strict=True)]
        drawn = zip(tokens.tolist(), chosen, top, strict=True)
        for request in requests:
            own = list(islice(drawn, 1 + len(request.guess)))
            if not request.finish_reason:
                self._take(request, own)

    def _allowed(self, requests: list[Request], logits: torch.Tensor) -> torch.Tensor:
        """The logits, -inf where a request's constraint lets a token not be drawn."""
        if not any(request.constraint for request in requests):
            return logits
        masked, row = logits.clone(), 0
        for request in requests:
            if request.constraint:
                try:
                    masked[row, ~request.constraint.allowed(logits.shape[1]).to(logits.device)] = -torch.inf
                except RequestError as error:
                    self._end(request, "refused", error)
            row += 1 + len(request.guess)
        return masked

    def _take(self, request: Request, drawn: list[tuple[int, float, list]]) -> None:
        """Take drawn tokens for as long as what was guessed before them is what was drawn."""
        computed, habits = request.pending, self._memory(request.policy).habits
        for (token, logprob, top), guess in zip(drawn, [*request.guess, None], strict=True):
            usual, times = habits.get(request.last_two(), (token, 0))
            habits[request.last_two()] = (token, times + 1 if token == usual else 1)
            request.tokens.append(token)
            if request.constraint:
                request.constraint.take(token)
            request.logprobs.append(logprob)
            request.texts.append(self.texts.of_token(token))
            if request.options.logprobs:
                request.raw.append(self._raw(token))
                shown = top[: request.options.top_logprobs]
                request.alternatives.append([(self.texts.of_token(other), self._raw(other), p) for other, p in shown])
            self.tokens_sampled += 1
            if token == guess:
                computed = computed + [token]
            if self._finished(request) or token != guess:
                break
        request.pending = [token]
        self.slots.held[request.slot] += computed
        self.cache.lengths[request.slot] += len(computed)
        request.on_token()

    def _finished(self, request: Request) -> bool:
        """Whether the sequence ends with its last token."""
        stop, one_call = request.options.stop, request.options.tools and not request.options.parallel_tool_calls
        ended = request.tokens[-1] in self.end_tokens
        if (stop or one_call) and not ended:
            said = request.text.of(request.tokens, len(request.tokens))
            request.cut = any(text in said for text in stop)
            ended = request.cut or bool(one_call and TOOL_END in said)
        full = len(request.tokens) >= request.max_tokens
        if ended or full:
            self._end(request, "stop" if ended else "length")
        return ended or full

    def _end(self, request: Request, reason: str, error: Exception | None = None) -> None:
        """Its slot is free, and the one who asked wakes up."""
        request.finish_reason = reason
        self.slots.free[request.slot] = None
        if not request.done.done():
            request.done.set_exception(error) if error else request.done.set_result(None)

    def _answer(self, request: Request) -> Answer:
        """What it has got so far."""
        content = request.text.of(request.tokens, self._spoken(request))
        for stop in request.options.stop:
            content = content.partition(stop)[0]
        return Answer(
            policy=request.policy.name,
            prompt=request.prompt,
            content=content,
            finish_reason=request.finish_reason,
            tokens=request.tokens,
            logprobs=request.logprobs,
            texts=request.texts,
            raw=request.raw,
            alternatives=request.alternatives,
        )

    def _spoken(self, request: Request) -> int:
        """How many of its tokens are what it says: not the one that ends the answer; while it goes on, not the bytes at its
        end, for what comes next decides how they are shown."""
        tokens, count = request.tokens, len(request.tokens)
        if request.finish_reason:
            return count - (tokens[-1] in self.end_tokens)
        while count and tokens[count - 1] in self.texts.bytes:
            count -= 1
        return count

    def _raw(self, token: int) -> bytes:
        """The token's bytes; of one that is a part of a character they are not those of its text."""
        text = self.texts.of_token(token)
        return self.constraints.raw(token) if "\ufffd" in text else text.encode()


def _failure(error: BaseException) -> BaseException:
    if isinstance(error, Exception):
        return error
    return asyncio.CancelledError(f"sampling was stopped by {type(error).__name__}")
