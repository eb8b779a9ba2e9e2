"""Batched decoding for agents: many coroutines ask, one forward answers, keys and values stay across turns.

The sampler knows nothing of training. It holds a plain transformers model (adapter merged into the weights) and
answers requests in OpenAI's shapes. A request's draws come from its own generator, seeded by the prompt and by how
often this prompt was asked of these weights, so the same run gives the same rollouts, and who else is in the batch
matters only by rounding.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import time
from dataclasses import dataclass, field

import torch
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob, TopLogprob
from openai.types.completion_usage import CompletionUsage

from art_nb.kv_cache import SlotCache

TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
IGNORED = {"model", "extra_headers", "extra_query", "timeout", "user", "store", "metadata", "service_tier"}


class RequestError(ValueError):
    """A request that can't be answered: says which parameter, what was expected, what to do."""


@dataclass
class Request:
    """One sequence to decode (a request with n > 1 becomes n of these)."""

    prompt: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    stop: list[str]
    top_logprobs: int
    draws: random.Random
    done: asyncio.Future
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[list[tuple[int, float]]] = field(default_factory=list)
    slot: int = -1
    finish_reason: str | None = None


class Sampler:
    """Decodes chat requests of any number of coroutines together.

    Args:
        model: a transformers causal LM whose attention implementation is `kv_cache.ATTENTION`.
        tokenizer: its tokenizer, with a chat template.
        slots: how many conversations are decoded (and remembered) at once; more requests wait their turn.
        seed: mixed into every request's own generator.
    """

    def __init__(self, model, tokenizer, *, slots: int = 128, seed: int = 0):
        self.model, self.tokenizer, self.slots, self.seed = model.eval(), tokenizer, slots, seed
        self.context = model.config.max_position_embeddings
        ends = model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        self.end_tokens = {e for e in [*ends, tokenizer.eos_token_id] if e is not None}
        self.tokens_sampled, self.seconds = 0, 0.0  # since the start: what was sampled, and the time it took
        self.waiting: list[Request] = []
        self.driver: asyncio.Task | None = None
        self.forget()

    def forget(self) -> None:
        """Drop every cached key and value: call it when the weights have changed."""
        self.cache = SlotCache(self.slots, self.model.dtype, self.model.device)
        self.held: list[list[int]] = [[] for _ in range(self.slots)]
        self.used = [0] * self.slots
        self.free = set(range(self.slots))
        self.texts: dict[int, tuple[str, list[int]]] = {}
        self.asked: dict[bytes, int] = {}
        self.clock = 0

    async def create(self, *, messages, **parameters) -> ChatCompletion:
        """Answer one chat completion request, as `openai.AsyncOpenAI().chat.completions.create` does.

        Each choice also carries `prompt_token_ids`, `token_ids`, `token_logprobs` (natural log, temperature 1, full
        distribution) and `token_texts`, so that training uses exactly what was sampled.

        Raises:
            RequestError: a parameter is out of range or unknown, or the conversation does not fit the context.
        """
        options = check(parameters, self.tokenizer)
        text, prompt = self.tokenize(messages, options["tools"])
        room = self.context - len(prompt)
        if room < 1 or (options["max_tokens"] or 1) > room:
            raise RequestError(
                f"the conversation has {len(prompt)} tokens and max_tokens is {options['max_tokens']}, together more "
                f"than the model's context of {self.context}: shorten the conversation or lower max_tokens"
            )
        loop = asyncio.get_running_loop()
        requests = []
        for _ in range(options["n"]):
            requests.append(
                Request(
                    prompt, options["max_tokens"] or room, options["temperature"], options["top_p"], options["stop"],
                    options["top_logprobs"], self._generator(prompt, options["seed"], len(requests)), loop.create_future(),
                )  # fmt: skip
            )
        self.waiting += requests
        if self.driver is None or self.driver.done():
            self.driver = loop.create_task(self._drive())
        try:
            await asyncio.gather(*(request.done for request in requests))
        except BaseException:
            for request in requests:
                request.finish_reason = request.finish_reason or "cancelled"
            raise
        return self._completion(text, requests, options)

    def tokenize(self, messages: list[dict], tools: list[dict] | None) -> tuple[str, list[int]]:
        """The prompt's text and token ids. A conversation that continues an answered one keeps that one's exact ids."""
        text = self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
        best = max(
            (entry for entry in self.texts.values() if text.startswith(entry[0])),
            key=lambda entry: len(entry[0]),
            default=("", []),
        )
        # The cut lies right behind an end-of-turn token, where tokenisation can't reach across.
        rest = self.tokenizer.encode(text[len(best[0]) :], add_special_tokens=False)
        return text, best[1] + rest

    def _generator(self, prompt: list[int], seed: int | None, index: int) -> random.Random:
        """The request's own generator: by its seed if it has one, else by prompt and how often that was asked."""
        key = hashlib.blake2b(repr((self.seed, seed, index, prompt)).encode(), digest_size=16).digest()
        times = 0 if seed is not None else self.asked.get(key, 0)
        self.asked[key] = times + 1
        return random.Random(key + times.to_bytes(8, "big"))

    async def _drive(self) -> None:
        """Decode until nobody waits. Between two forwards every coroutine that can run, runs, so that batches fill."""
        active: list[Request] = []
        started = time.perf_counter()
        try:
            while self.waiting or active:
                seen = -1
                while seen != len(self.waiting):
                    seen = len(self.waiting)
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                active += self._admit()
                active = [r for r in active if not self._cancelled(r)]
                if active:
                    self._step(active)
                    active = [r for r in active if r.finish_reason is None]
        except BaseException as error:
            # An interrupt or a failed forward: nobody is left waiting, and nothing half-computed is kept.
            broken, self.waiting = active + self.waiting, []
            self.forget()
            for request in broken:
                if not request.done.done():
                    request.done.set_exception(_failure(error))
            if not isinstance(error, Exception):
                raise
        finally:
            self.seconds += time.perf_counter() - started

    def _cancelled(self, request: Request) -> bool:
        if request.finish_reason is None and not request.done.cancelled():
            return False
        self._release(request)
        return True

    def _admit(self) -> list[Request]:
        """Give waiting requests a slot each: the free one that already holds most of the prompt, else the oldest."""
        admitted = []
        while self.waiting and self.free:
            request = self.waiting.pop(0)
            if request.done.cancelled():
                continue
            # Only a slot that begins alike is worth a closer look; most begin differently.
            alike = [s for s in self.free if self.held[s][:16] == request.prompt[:16]]
            shared = {s: _common_prefix(self.held[s], request.prompt) for s in alike}
            slot = max(self.free, key=lambda s: (shared.get(s, 0), -self.used[s], -s))
            self.free.discard(slot)
            self.texts.pop(slot, None)
            # At least one token must be computed, to know what comes next.
            keep = min(_common_prefix(self.held[slot], request.prompt), len(request.prompt) - 1)
            self.held[slot] = self.held[slot][:keep]
            self.cache.lengths[slot] = keep
            request.slot = slot
            admitted.append(request)
        return admitted

    def _release(self, request: Request) -> None:
        self.clock += 1
        self.used[request.slot] = self.clock
        self.free.add(request.slot)

    @torch.inference_mode()
    def _step(self, active: list[Request]) -> None:
        """One forward over every active request (new ones with their whole uncached prompt), one token sampled each."""
        active.sort(key=lambda request: request.slot)
        news = [(r.prompt + r.tokens)[self.cache.lengths[r.slot] :] for r in active]
        longest = max(map(len, news))
        ids = torch.tensor([new + [0] * (longest - len(new)) for new in news], device=self.model.device)
        rows = [r.slot for r in active]
        positions, mask = self.cache.begin(rows, [len(new) for new in news])
        hidden = self.model.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=self.cache, use_cache=True
        ).last_hidden_state
        last = torch.tensor([len(new) - 1 for new in news], device=self.model.device)
        logits = self.model.lm_head(hidden[torch.arange(len(active), device=last.device), last]).float()
        for request, new in zip(active, news, strict=True):
            self.cache.lengths[request.slot] += len(new)
            self.held[request.slot] += new
        self._sample(active, logits)

    def _sample(self, active: list[Request], logits: torch.Tensor) -> None:
        logprobs = torch.log_softmax(logits, dim=-1)
        tokens = draw(
            logits,
            torch.tensor([r.temperature for r in active], device=logits.device),
            torch.tensor([r.top_p for r in active], device=logits.device),
            torch.tensor([r.draws.random() for r in active], device=logits.device, dtype=torch.float64),
        )
        chosen = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        most = max(r.top_logprobs for r in active)
        top = logprobs.topk(most, dim=-1) if most else None
        self.tokens_sampled += len(active)
        for i, (request, token) in enumerate(zip(active, tokens.tolist(), strict=True)):
            request.tokens.append(token)
            request.logprobs.append(chosen[i])
            if request.top_logprobs:
                pairs = zip(top.indices[i].tolist(), top.values[i].tolist(), strict=True)
                request.alternatives.append(list(pairs)[: request.top_logprobs])
            self._finish(request, token)

    def _finish(self, request: Request, token: int) -> None:
        """Decide whether the sequence ends with this token; if so free its slot and wake the one who asked."""
        if token in self.end_tokens:
            request.finish_reason = "stop"
        elif request.stop and any(s in self.tokenizer.decode(request.tokens) for s in request.stop):
            request.finish_reason = "stop"
        elif len(request.tokens) >= request.max_tokens:
            request.finish_reason = "length"
        if request.finish_reason:
            self._release(request)
            if not request.done.done():
                request.done.set_result(None)

    def _completion(self, prompt_text: str, requests: list[Request], options: dict) -> ChatCompletion:
        choices = [self._choice(prompt_text, i, request, options) for i, request in enumerate(requests)]
        sampled = sum(len(r.tokens) for r in requests)
        asked = len(requests[0].prompt)
        return ChatCompletion(
            id=f"chatcmpl-{hashlib.blake2b(repr(requests[0].tokens).encode(), digest_size=8).hexdigest()}",
            object="chat.completion",
            created=int(time.time()),
            model=options["model"],
            choices=choices,
            usage=CompletionUsage(prompt_tokens=asked, completion_tokens=sampled, total_tokens=asked + sampled),
        )

    def _choice(self, prompt_text: str, index: int, request: Request, options: dict) -> Choice:
        texts = [self._text(token) for token in request.tokens]
        ended = request.tokens[-1] in self.end_tokens
        content = self.tokenizer.decode(request.tokens[:-1] if ended else request.tokens)
        if ended:
            # The next prompt of this conversation will start with exactly this text.
            self.texts[request.slot] = (prompt_text + content + texts[-1], request.prompt + request.tokens)
        for stop in request.stop:
            content = content.split(stop)[0]
        calls, said = parse_tool_calls(content) if options["tools"] else ([], content)
        choice = Choice(
            index=index,
            finish_reason="tool_calls" if calls else request.finish_reason,
            message=ChatCompletionMessage.model_validate(
                {"role": "assistant", "content": said, **({"tool_calls": calls} if calls else {})}
            ),
            logprobs=self._logprobs(request, texts) if options["logprobs"] else None,
        )
        choice.prompt_token_ids, choice.token_ids = request.prompt, request.tokens
        choice.token_logprobs, choice.token_texts = request.logprobs, texts
        return choice

    def _text(self, token: int) -> str:
        return self.tokenizer.decode([token])

    def _logprobs(self, request: Request, texts: list[str]) -> ChoiceLogprobs:
        content = []
        for i, (text, logprob) in enumerate(zip(texts, request.logprobs, strict=True)):
            alternatives = request.alternatives[i] if request.alternatives else []
            content.append(
                ChatCompletionTokenLogprob(
                    token=text, bytes=list(text.encode()), logprob=logprob,
                    top_logprobs=[TopLogprob(token=self._text(t), bytes=None, logprob=p) for t, p in alternatives],
                )  # fmt: skip
            )
        return ChoiceLogprobs(content=content)


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
    index = (mass <= uniform[:, None] * mass[:, -1:]).sum(-1).clamp(max=logits.shape[1] - 1)
    if order is not None:
        index = order.gather(1, index[:, None])[:, 0]
    return torch.where(temperature == 0, greedy, index)


def parse_tool_calls(text: str) -> tuple[list[dict], str]:
    """Tool calls written as <tool_call>{"name": ..., "arguments": {...}}</tool_call> (Hermes, Qwen), and the other text.

    A malformed call is left in the text, where whoever reads the answer can see it.
    """
    calls = []
    for match in TOOL_CALL.finditer(text):
        try:
            call = json.loads(match[1])
        except json.JSONDecodeError:
            return [], text
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return [], text
        function = {"name": call["name"], "arguments": json.dumps(call.get("arguments", {}))}
        calls.append({"id": f"call_{len(calls)}", "type": "function", "function": function})
    return calls, TOOL_CALL.sub("", text).strip() if calls else text


def check(parameters: dict, tokenizer) -> dict:
    """The request's options with defaults, or a RequestError that names the parameter."""
    given = {k: v for k, v in parameters.items() if v is not None and type(v).__name__ not in ("NotGiven", "Omit")}
    if given.pop("stream", False):
        raise RequestError("stream=True is not supported in process: leave it out, the answer comes whole")
    given |= given.pop("extra_body", {})
    options = {
        "model": str(given.pop("model", "")),
        "temperature": _number(given, "temperature", 1.0, 0.0, 100.0),
        "top_p": _number(given, "top_p", 1.0, 1e-6, 1.0),
        "n": _integer(given, "n", 1, 1, 1024),
        "seed": _integer(given, "seed", None, -(2**63), 2**63),
        "top_logprobs": _integer(given, "top_logprobs", 0, 0, 20),
        "logprobs": bool(given.pop("logprobs", False)),
        "tools": given.pop("tools", None) or None,
    }
    lengths = [_integer(given, name, None, 1, 2**31) for name in ("max_tokens", "max_completion_tokens")]
    options["max_tokens"] = next((length for length in lengths if length is not None), None)
    stop = given.pop("stop", [])
    options["stop"] = [stop] if isinstance(stop, str) else list(stop)
    if not all(isinstance(s, str) and s for s in options["stop"]):
        raise RequestError(f"stop is {stop!r}: expected a non-empty string or a list of them")
    if given.pop("tool_choice", "auto") == "none":
        options["tools"] = None
    given.pop("parallel_tool_calls", None)
    if unknown := set(given) - IGNORED:
        raise RequestError(f"unknown parameter {sorted(unknown)}: this sampler knows {sorted([*options, 'extra_body'])}")
    return options


def _number(given: dict, name: str, default: float, low: float, high: float) -> float:
    value = given.pop(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RequestError(f"{name} is {value!r}: expected a number from {low:g} to {high:g}")
    return float(value)


def _integer(given: dict, name: str, default: int | None, low: int, high: int) -> int | None:
    value = given.pop(name, default)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high):
        raise RequestError(f"{name} is {value!r}: expected an integer from {low} to {high}")
    return value


def _common_prefix(held: list[int], prompt: list[int]) -> int:
    shared = min(len(held), len(prompt))
    if held[:shared] == prompt[:shared]:
        return shared
    return next(i for i in range(shared) if held[i] != prompt[i])


def _failure(error: BaseException) -> BaseException:
    if isinstance(error, Exception):
        return error
    return asyncio.CancelledError(f"sampling was stopped by {type(error).__name__}")
