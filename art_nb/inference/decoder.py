"""Continuous batching: one forward pass after another over all generations in progress, with n-gram speculative decoding.

Each generation has its own random draws, so the rest of the batch affects its tokens only through rounding.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from art_nb.inference.cache import SlotCache
from art_nb.inference.chat import RequestError
from art_nb.inference.generation import Generation
from art_nb.inference.last_layer import narrow_last_layer
from art_nb.inference.slots import Slots
from art_nb.rollouts.gathering import drain_event_loop

MIN_REPEATS = 3  # times in a row that a token must have followed the same two tokens to be proposed
MAX_SPECULATED = 8  # tokens
BLOCK = 256  # tokens per block of the vocabulary, see `sample_tokens`
PAUSE = 0.1  # seconds; a shorter gap between an answer and the next request counts as sampling time


class Decoder:
    """Completes generations: in this process (`BatchDecoder`) or on a server.

    waiting, active: generations; tokens_sampled, seconds: totals since the start. cache_tokens: see `Slots.admit`.
    threads: maximum number of torch threads during a forward; None: torch's setting.
    before_forward: awaited before each forward; lets callers submit further generations to the batch.
    on_submit: called after generations are submitted.
    on_reset: called when all generations are dropped after an interrupt.
    """

    def __init__(self) -> None:
        self.waiting: list[Generation] = []
        self.active: list[Generation] = []
        self.cache_tokens: int | None = None
        self.threads: int | None = None
        self.tokens_sampled, self.seconds = 0, 0.0
        self.before_forward: Callable[[], Awaitable[None]] = drain_event_loop
        self.on_submit: Callable[[], None] = lambda: None
        self.on_reset: Callable[[], None] = lambda: None

    @property
    def idle(self) -> bool:
        """Whether no generation is in progress."""
        return not (self.waiting or self.active)

    def forget(self, policy: str | None) -> None:
        """Drop the cached state of one policy, or of all."""

    def start(self) -> None:
        """Prepare for generations of the running event loop."""

    def submit(self, generations: list[Generation]) -> None:
        """Complete these generations, in the background."""
        raise NotImplementedError


class BatchDecoder(Decoder):
    """Decodes in this process, with all generations in progress in one batch."""

    def __init__(self, model: Any, slots: int):
        super().__init__()
        self._layers, self._device, self._count, self._ended = model.config.num_hidden_layers, model.device, slots, -PAUSE
        self.task: asyncio.Task[None] | None = None
        self._forgotten: Counter[str | None] = Counter()  # by policy; None: all of them at once
        self._reset()

    def _reset(self) -> None:
        self.waiting, self.active = [], []
        self.slots = Slots(SlotCache(self._count, self._layers, self._device))
        self._ngrams: defaultdict[str, NgramTable] = defaultdict(NgramTable)

    @property
    def idle(self) -> bool:
        return self.task is None or self.task.done()

    def forget(self, policy: str | None) -> None:
        """Drop the cached state of one policy, or of all. Generations in progress compute it again."""
        self.slots.clear(policy)
        self._forgotten[policy] += 1
        for generation in self.active:
            if not self.slots.held[generation.slot]:
                generation.pending = generation.prompt + generation.tokens
        for name in [name for name in self._ngrams if policy in (None, name)]:
            del self._ngrams[name]

    def start(self) -> None:
        """Start decoding in the running event loop. Raises: RuntimeError when it runs in another one."""
        loop = asyncio.get_running_loop()
        if self.task is not None and not self.task.done():
            if self.task.get_loop() is loop:
                return
            if self.task.get_loop().is_running():
                raise RuntimeError(
                    "the sampler is in use in another event loop: call it there; run blocking code in `asyncio.to_thread`"
                )
            self._reset()  # that loop was abandoned, after an interrupt for example, with everything that waited in it
            self.on_reset()
        self.task = loop.create_task(self._run())
        # An interrupt is raised where the loop runs; asyncio need not report it again.
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())

    def submit(self, generations: list[Generation]) -> None:
        for generation in generations:
            name = generation.policy.name
            generation.owner = name, self._forgotten[name] + self._forgotten[None]
        self.waiting += generations
        self.on_submit()

    async def _run(self) -> None:
        """Decode until no generation is left."""
        started = self._ended if time.perf_counter() - self._ended < PAUSE else time.perf_counter()
        try:
            while self.waiting or self.active:
                await self.before_forward()
                self._drop_cancelled()
                admitted, self.waiting = self.slots.admit(self.waiting, self.active, self.cache_tokens)
                self.active += admitted
                if self.active:
                    with at_most_threads(self.threads):
                        self._step()
        except BaseException as error:
            # After an interrupt or a failed forward no generation may hang, and no partial result may stay cached.
            broken = [*self.active, *self.waiting]
            self._reset()
            failed = isinstance(error, Exception)
            reason = error if failed else asyncio.CancelledError(f"sampling was stopped by {type(error).__name__}")
            for generation in broken:
                if not generation.done.done():
                    generation.done.set_exception(reason)
            if not failed:
                self.on_reset()
                raise
        finally:
            self.seconds, self._ended = self.seconds + time.perf_counter() - started, time.perf_counter()

    def _drop_cancelled(self) -> None:
        self.slots.free |= {generation.slot: None for generation in self.active if generation.finish_reason}
        self.active = [generation for generation in self.active if not generation.finish_reason]
        self.waiting = [generation for generation in self.waiting if not generation.finish_reason]

    @torch.inference_mode()
    def _step(self) -> None:
        """Run one forward per model, for at least one token of each active generation."""
        self.active.sort(key=lambda generation: generation.slot)
        by_model: defaultdict[int, list[Generation]] = defaultdict(list)
        for generation in self.active:
            generation.speculated = self._speculate(generation)
            by_model[id(generation.policy.model)].append(generation)
        for generations in by_model.values():
            self._sample(generations, self._forward(generations))
        self.active = [generation for generation in self.active if not generation.finish_reason]

    def _speculate(self, generation: Generation) -> list[int]:
        if generation.constraint:
            return []  # the tokens allowed after a speculated one are unknown until it is sampled
        left = generation.max_tokens - len(generation.tokens) - 1
        return self._ngrams[generation.policy.name].propose(generation.last_two(), left)

    def _forward(self, generations: list[Generation]) -> torch.Tensor:
        """Return logits (M, V) after the last pending token of each generation, and after each speculated one."""
        policies = [generation.policy for generation in generations]
        counts = [len(generation.pending) + len(generation.speculated) for generation in generations]
        outputs = [1 + len(generation.speculated) for generation in generations]
        cache = self.slots.cache
        positions, kept = cache.begin([generation.slot for generation in generations], counts, outputs)
        ids = np.fromiter((t for each in generations for t in (*each.pending, *each.speculated)), dtype=np.int64)
        adapted = policies[0].adapter is not None
        adapters = {"adapters": [policy.adapter for policy in policies], "counts": counts} if adapted else {}
        with ExitStack() as narrow:
            if len(kept) < len(ids) and not adapted:  # unmerged adapters need all tokens in order
                needed = torch.zeros(1, len(ids), dtype=torch.bool, device=self._device).index_fill(1, kept, True)
                narrow.enter_context(narrow_last_layer(policies[0].model.base_model, lambda: needed))
            logits = policies[0].model(
                input_ids=torch.from_numpy(ids)[None].to(self._device), position_ids=positions, use_cache=True,
                past_key_values=cache, slot_cache=cache, logits_to_keep=kept, **adapters,
            ).logits[0]  # fmt: skip
        if cache.attended != [*range(cache.last_layer + 1)]:
            raise ValueError(
                f"{type(policies[0].model).__name__} is not supported: expected a call of transformers' attention interface "
                "per layer, with the forward's arguments; use another model family"
            )
        return logits.float()

    def _sample(self, generations: list[Generation], logits: torch.Tensor) -> None:
        """Sample a token from each row of logits (M, V), and append to each generation those that are verified."""
        rows = [(g.options, g.uniform(len(g.tokens) + i)) for g in generations for i in range(1 + len(g.speculated))]
        controls = torch.tensor([(o.temperature, o.top_p, uniform) for o, uniform in rows], dtype=torch.float64)
        logprobs = torch.log_softmax(logits, dim=-1)
        if logprobs.amax(-1).isnan().any():
            raise FloatingPointError("the model's output is not finite: check its weights, or load an earlier checkpoint")
        tokens = sample_tokens(self._masked(generations, logits), *controls.to(logits.device).unbind(1))
        chosen = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        most = max(options.top_logprobs for options, _ in rows)
        top: list[list[tuple[int, float]]] = [[]] * len(rows)
        if most:
            best, which = (t.tolist() for t in logprobs.topk(most))
            top = [list(zip(*pair, strict=True)) for pair in zip(which, best, strict=True)]
        sampled = zip(tokens.tolist(), chosen, top, strict=True)
        for generation in generations:
            own = list(islice(sampled, 1 + len(generation.speculated)))
            if not generation.finish_reason:
                self._accept(generation, own)

    def _masked(self, generations: list[Generation], logits: torch.Tensor) -> torch.Tensor:
        """Set to -inf the logits of tokens that a constraint forbids. A constraint that fails ends its generation."""
        if not any(generation.constraint for generation in generations):
            return logits
        masked, row = logits.clone(), 0
        for generation in generations:
            if generation.constraint:
                try:
                    masked[row, ~generation.constraint.allowed(logits.shape[1]).to(logits.device)] = -torch.inf
                except RequestError as error:
                    generation.finish("refused", error)
                    self.slots.free[generation.slot] = None
            row += 1 + len(generation.speculated)
        return masked

    def _accept(self, generation: Generation, sampled: list[tuple[int, float, list]]) -> None:
        """Append sampled tokens up to and including the first that differs from its speculated token."""
        computed, ngrams = generation.pending, self._ngrams[generation.policy.name]
        for (token, logprob, top), speculated in zip(sampled, [*generation.speculated, None], strict=True):
            ngrams.observe(generation.last_two(), token)
            generation.append(token, logprob, top[: generation.options.top_logprobs])
            self.tokens_sampled += 1
            if token == speculated:
                computed = [*computed, token]
            if generation.finish_reason or token != speculated:
                break
        generation.pending = [token]
        self.slots.extend(generation.slot, computed)
        if generation.finish_reason:
            self.slots.free[generation.slot] = None
        generation.on_token()


@contextmanager
def at_most_threads(most: int | None) -> Iterator[None]:
    """Limit torch to `most` threads during the block; None: keep torch's setting."""
    before = torch.get_num_threads()
    if most is None or most >= before:
        yield
        return
    torch.set_num_threads(most)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class NgramTable:
    """Proposes tokens that usually follow the last two. Stores which token last followed each pair, and how often in a row.

    A proposed token is kept only if it is also drawn. Speculation therefore changes how many tokens a forward yields,
    but not which ones. Fixed text, such as the frame of a tool call, is proposed correctly most of the time.
    """

    def __init__(self) -> None:
        self._followers: dict[tuple[int, ...], tuple[int, int]] = {}

    def propose(self, context: tuple[int, ...], limit: int) -> list[int]:
        """Return at most `limit` tokens that probably follow `context`, the last two tokens."""
        proposed: list[int] = []
        while len(proposed) < min(limit, MAX_SPECULATED):
            token, repeats = self._followers.get(context, (-1, 0))
            if repeats < MIN_REPEATS:
                break
            proposed.append(token)
            context = (*context, token)[-2:]
        return proposed

    def observe(self, context: tuple[int, ...], token: int) -> None:
        """Count that `token` followed `context`."""
        previous, repeats = self._followers.get(context, (token, 0))
        self._followers[context] = token, repeats + 1 if token == previous else 1


def sample_tokens(
    logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, uniform: torch.Tensor
) -> torch.Tensor:
    """Sample one token per row by inverting the cumulative distribution.

    logits: (B, V); temperature: (B,), 0 means greedy; top_p: (B,) nucleus mass; uniform: (B,) in [0, 1). Returns (B,).
    """
    greedy = temperature == 0
    if bool(greedy.all()):
        return logits.argmax(-1)
    scale = temperature.clamp(min=1e-6).to(logits.dtype)
    probabilities = torch.softmax(logits / scale[:, None], dim=-1)
    if bool((top_p < 1).any()):
        ranked, order = probabilities.sort(dim=-1, descending=True, stable=True)
        before = ranked.cumsum(-1, dtype=torch.float64) - ranked
        kept = (before < top_p[:, None]) | (top_p[:, None] >= 1)
        # In the order of the vocabulary, so that other requests' top_p changes no token.
        probabilities = probabilities * torch.zeros_like(kept).scatter_(1, order, kept)
    # A cumulative sum over a large vocabulary is slow: the first is over blocks of tokens, the second within the chosen one.
    blocks = pad(probabilities, (0, -logits.shape[1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    mass = blocks.sum(-1, dtype=torch.float64).cumsum(-1)  # float64, because many small numbers are summed
    point = _below(uniform[:, None] * mass[:, -1:], mass)
    block = torch.searchsorted(mass, point, right=True)
    within = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0].cumsum(-1, dtype=torch.float64)
    rest = _below(point - pad(mass, (1, 0)).gather(1, block), within)
    index = block * BLOCK + torch.searchsorted(within, rest, right=True)
    return torch.where(greedy, logits.argmax(-1), index[:, 0]) if bool(greedy.any()) else index[:, 0]


def _below(point: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """Limit points strictly below the total of a cumulative sum, also after rounding: no impossible token is sampled."""
    total = mass[:, -1:]
    return torch.minimum(point, torch.nextafter(total, torch.zeros_like(total)))
