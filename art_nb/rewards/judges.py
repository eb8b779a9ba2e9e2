"""The interface of judges (`Judge`, `Judgement`), and a language model as judge (`LLMJudge`)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import openai

from art_nb.inference.client import InProcessClient
from art_nb.metrics import JUDGE, MetricsBuilder
from art_nb.rewards.judge_answers import TrajectoryScore, UnusableAnswer, parse, response_format
from art_nb.rewards.judge_calls import ContextExceeded, JudgeReply, JudgeUnavailable, call_judge, context_tokens
from art_nb.rewards.judge_prompts import BYTES_PER_TOKEN, GroupTooLong, JudgePrompt, judge_prompt
from art_nb.storage.checkpoints import write_file
from art_nb.trajectories import Trajectory

log = logging.getLogger(__name__)

UNKNOWN_CONTEXT = 32_000  # tokens, for models not in LiteLLM's table and those behind a `client`
COMPLAINT = "Your last answer could not be used: {}. Answer again, with one JSON object as described and nothing else."
NOT_CONTENT = {"api_key", "timeout", "extra_headers"}  # parameters that do not affect the answer


class JudgeError(RuntimeError):
    """A judge gave no usable scores for a group."""


@dataclass(frozen=True)
class Usage:
    """Calls and tokens of a judgement. cached: the answer came from the cache; cost_usd: None if a price is unknown."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = 0.0
    cached: bool = False

    def plus(self, reply: JudgeReply) -> Usage:
        """Return the usage including one more call."""
        cost = None if self.cost_usd is None or reply.cost_usd is None else self.cost_usd + reply.cost_usd
        tokens = self.prompt_tokens + reply.prompt_tokens, self.completion_tokens + reply.completion_tokens
        return Usage(self.calls + 1, *tokens, cost)

    def add_cost(self) -> None:
        """Add the cost to the active `MetricsBuilder`, if any."""
        if (builder := MetricsBuilder.active_or_none()) and self.cost_usd is not None:
            builder.add_cost(f"{builder.cost_context}/{JUDGE}", self.cost_usd)


@dataclass(frozen=True)
class Judgement:
    """Scores of a group: one per trajectory, in their order, with `trajectory_id` counting from 1.

    places: each trajectory's position in the prompt, from 0; None for judges that score one trajectory at a time.
    shortened: number of attempts that were shortened in the prompt; identical trajectories are one attempt.
    """

    scores: list[TrajectoryScore]
    usage: Usage = Usage()
    places: list[int] | None = None
    shortened: int = 0


class Judge(Protocol):
    """The interface of judges: a `judge_model` argument is a judge or a model's name."""

    async def judge(self, trajectories: Sequence[Trajectory], rubric: str, order: int = 0, sample: int = 0) -> Judgement:
        """Score the trajectories (at least one) of a group.

        order: seed for the order of the trajectories in the prompt. sample: index of a judgement that is repeated.
        Raises: JudgeError.
        """


@dataclass(frozen=True)
class LLMJudge:
    """A language model as judge; `judge_model="openai/o3"` is short for `LLMJudge("openai/o3")`.

    model: provider/model for LiteLLM; with `client`, the server's name for it.
    params: further arguments of the request: temperature, max_tokens, api_base, api_key, ... For a server without support
        for JSON schemas, give {"response_format": None}.
    client: an `openai` client for any server with OpenAI's API, or `model.openai_client()`; None: LiteLLM.
    cache: folder for answers, by a hash of the request; None: no cache. Answers of an in-process client are not cached: its
        model may change under the same name. For a model that is trained on a server, add the step to its name: "name@3".
    max_concurrent: groups judged by this model at a time.
    max_attempts: calls per group, including the first. After 408, 409, 425, 429, 5xx, a lost connection or a timeout the
        next call follows after `delay`, twice that, ... seconds, or the server's retry-after (at most 60); after an unusable
        answer it follows at once and includes the reason.
    timeout: seconds per call, unless `params` has one.
    context_tokens: of the model; None: LiteLLM's figure, or 32,000 (also with `client`). The longest trajectories are cut in
        the middle to fit, at an estimated 3 bytes per token. If the server finds the prompt too long, it is halved.
    """

    model: str
    params: Mapping[str, Any] = field(default_factory=dict)
    client: openai.AsyncOpenAI | None = None
    cache: Path | str | None = Path(".art/judge")
    max_concurrent: int = 8
    max_attempts: int = 5
    delay: float = 1.0
    timeout: float = 120.0
    context_tokens: int | None = None

    def __post_init__(self):
        if min(self.max_concurrent, self.max_attempts) < 1:
            limits = f"max_concurrent is {self.max_concurrent}, max_attempts is {self.max_attempts}"
            raise ValueError(f"LLMJudge: {limits}; expected 1 or more.")

    async def judge(self, trajectories: Sequence[Trajectory], rubric: str, order: int = 0, sample: int = 0) -> Judgement:
        """Return scores from model or cache. Raises: JudgeError, ImportError; ValueError: bad cache file or max_tokens."""
        context = self.context_tokens or (context_tokens(self.model) if self.client is None else None) or UNKNOWN_CONTEXT
        given = self.params.get("max_tokens") or self.params.get("max_completion_tokens")
        tokens = context - (given or 300 + 150 * len(trajectories))  # for the prompt
        if given and tokens <= 0:
            less = f"expected less than the context of {self.model}, {context} tokens"
            raise ValueError(f"max_tokens is {given}: {less}. Lower it, or set LLMJudge(context_tokens=...).")

        def make_prompt(tokens: int, usage: Usage = Usage(), problem: str = "") -> JudgePrompt:
            try:
                return judge_prompt(trajectories, rubric, tokens, order)
            except GroupTooLong as error:
                usage.add_cost()
                raise JudgeError(f"{error} to {tokens} tokens for {self.model}{problem}: use smaller groups") from error

        prompt = make_prompt(tokens)
        path = self._cache_file(prompt, sample)
        if path and path.exists():
            return _judgement(_read(path, prompt.shown), prompt, Usage(cached=True))
        async with _slot(self):
            answer, usage, prompt = await self._answer(make_prompt, tokens)
        if path:
            write_file(path, json.dumps({"model": self.model, "answer": answer}).encode())
        return _judgement(parse(answer, prompt.shown), prompt, usage)

    async def _answer(self, make_prompt: Callable[..., JudgePrompt], tokens: int) -> tuple[str, Usage, JudgePrompt]:
        """Return the first usable answer, the usage of all calls, and the prompt of the last."""
        prompt, usage, problem = make_prompt(tokens), Usage(), ""
        complaint: list[dict[str, str]] = []
        for attempt in range(self.max_attempts):
            try:
                async with asyncio.timeout(self.params.get("timeout") or self.timeout):
                    reply = await call_judge(self.model, prompt.messages + complaint, self._params(prompt), self.client)
                usage = usage.plus(reply)
                _check(reply, prompt.shown)
                return reply.text, usage, prompt
            except UnusableAnswer as error:
                problem, wait, complaint = str(error), 0.0, [{"role": "user", "content": COMPLAINT.format(error)}]
            except ContextExceeded as error:
                size = sum(len(message["content"].encode()) for message in prompt.messages) // BYTES_PER_TOKEN
                problem, wait, tokens = str(error), 0.0, min(tokens, size) // 2
                prompt = make_prompt(tokens, usage, f" ({error})")
            except (JudgeUnavailable, TimeoutError) as error:
                problem, retry_after = str(error) or "timed out", getattr(error, "wait", None)
                wait = self.delay * 2**attempt if retry_after is None else retry_after
            except openai.APIError as error:
                usage.add_cost()
                raise JudgeError(f"{self.model} rejects the request: {type(error).__name__}: {error}") from error
            if attempt + 1 < self.max_attempts:
                log.warning("judge %s, attempt %d of %d: %s", self.model, attempt + 1, self.max_attempts, problem)
                await asyncio.sleep(wait)
        usage.add_cost()
        raise JudgeError(f"{self.model} gave no usable scores in {self.max_attempts} attempts; the last: {problem}")

    def _params(self, prompt: JudgePrompt) -> dict[str, Any]:
        params = {name: value for name, value in self.params.items() if name != "timeout"}
        return {"response_format": response_format(prompt.shown), **params}

    def _cache_file(self, prompt: JudgePrompt, sample: int) -> Path | None:
        """Return the path of the cached answer, a hash of everything that it depends on; None: do not cache."""
        if self.cache is None or isinstance(self.client, InProcessClient):
            return None
        params = {name: value for name, value in self._params(prompt).items() if name not in NOT_CONTENT}
        server = str(self.client.base_url) if self.client else None
        content = json.dumps([self.model, server, prompt.messages, params, sample], sort_keys=True, default=repr)
        return Path(self.cache) / f"{hashlib.sha256(content.encode()).hexdigest()}.json"


_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple, asyncio.Semaphore]] = WeakKeyDictionary()


def _slot(judge: LLMJudge) -> asyncio.Semaphore:
    """Return the event loop's semaphore for a model and limit. Judges share it: one given by name is created per group."""
    slots = _slots.setdefault(asyncio.get_running_loop(), {})
    return slots.setdefault((judge.model, judge.max_concurrent), asyncio.Semaphore(judge.max_concurrent))


def _check(reply: JudgeReply, ids: Sequence[str]) -> None:
    """Check that the answer can be parsed. Raises: UnusableAnswer, with the provider's reason if it gives one."""
    try:
        parse(reply.text, ids)
    except UnusableAnswer as error:
        if reply.refusal or reply.finish_reason == "content_filter":
            raise UnusableAnswer(f"it refused: {(reply.refusal or reply.text)[:200]!r}") from error
        if reply.finish_reason == "length":
            raise UnusableAnswer(f"it was truncated after {reply.completion_tokens} tokens; raise max_tokens") from error
        raise


def _judgement(scores: Sequence[TrajectoryScore], prompt: JudgePrompt, usage: Usage) -> Judgement:
    """Return the judgement: the scores reordered from the prompt's order to the group's, with usage and places."""
    by_id = {score.trajectory_id: score for score in scores}
    in_order = [by_id[i].model_copy(update={"trajectory_id": str(n)}) for n, i in enumerate(prompt.ids, start=1)]
    return Judgement(in_order, usage, [prompt.shown.index(i) for i in prompt.ids], prompt.shortened)


def _read(path: Path, ids: Sequence[str]) -> list[TrajectoryScore]:
    try:
        return parse(json.loads(path.read_bytes())["answer"], ids)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} contains no usable answer ({error!r}): delete it to repeat the request.") from error
