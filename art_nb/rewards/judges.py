"""Judges: what any of them gives (`Judgement`), and the one that asks a language model (`LLMJudge`)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import openai

from art_nb.rewards.judge_answers import BadAnswer, TrajectoryScore, parse, response_format
from art_nb.rewards.judge_calls import Busy, Reply, TooLong, call, context_tokens
from art_nb.rewards.judge_prompts import Question, TooLongForJudge, question
from art_nb.storage.checkpoints import write_file
from art_nb.trajectories import Trajectory

if TYPE_CHECKING:
    from openai import AsyncOpenAI

log = logging.getLogger(__name__)

UNKNOWN_CONTEXT = 32_000  # tokens, for a model that LiteLLM does not know
NOT_CONTENT = {"api_key", "timeout", "extra_headers"}  # parameters that change no answer


class JudgeError(RuntimeError):
    """A judge gave no usable scores for a group. It has none then: nothing is put in their place."""


@dataclass(frozen=True)
class Usage:
    """What judging took. cached: the answer came from the disk; cost_usd: None where a call's price is unknown."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = 0.0
    cached: bool = False

    def plus(self, reply: Reply) -> Usage:
        """With one more call."""
        return Usage(
            calls=self.calls + 1,
            prompt_tokens=self.prompt_tokens + reply.prompt_tokens,
            completion_tokens=self.completion_tokens + reply.completion_tokens,
            cost_usd=None if self.cost_usd is None or reply.cost_usd is None else self.cost_usd + reply.cost_usd,
        )


@dataclass(frozen=True)
class Judgement:
    """Scores of a group. scores: one per trajectory, in their order, `trajectory_id` counting from 1.

    places: for each trajectory, where the judge saw it, from 0; None for a judge that looks at one at a time.
    shortened: how many trajectories the judge saw in part only.
    """

    scores: list[TrajectoryScore]
    usage: Usage = Usage()
    places: list[int] | None = None
    shortened: int = 0


class Judge(Protocol):
    """What `judge_model` may be besides a model's name."""

    async def judge(self, trajectories: Sequence[Trajectory], rubric: str, order: int = 0, sample: int = 0) -> Judgement:
        """Score the trajectories of one group, at least one.

        order, sample: ask again with the trajectories in another order; for another sample of the answer.
        Raises: JudgeError.
        """


@dataclass(frozen=True)
class LLMJudge:
    """A language model as judge; `judge_model="openai/o3"` is short for `LLMJudge("openai/o3")`.

    model: for LiteLLM, provider/model; for `client`, the name its server knows.
    params: further arguments of the request: temperature, max_tokens, api_base, api_key, ... A server that can't be held
        to a JSON schema wants {"response_format": None}.
    client: an `openai` client to ask instead: any server that speaks OpenAI's API, or `model.openai_client()`.
    cache: the folder of answers by content; None keeps none.
    max_concurrent: groups judged by this model at a time.
    max_attempts: calls for one group, the first included. After 408, 409, 425, 429, 5xx, a lost connection or a timeout
        the next follows after `delay`, twice that, ... seconds, or when the server says; after an answer that can't be
        used it follows at once and says what was wrong.
    timeout: seconds for one call.
    context_tokens: of the model; None takes LiteLLM's figure, or 32,000. The longest trajectories of a group lose their
        middle until it fits by an estimate of 3 bytes a token. If the server finds it too long all the same, half is tried.
    """

    model: str
    params: Mapping[str, Any] = field(default_factory=dict)
    client: AsyncOpenAI | None = None
    cache: Path | str | None = Path(".art/judge")
    max_concurrent: int = 8
    max_attempts: int = 5
    delay: float = 1.0
    timeout: float = 120.0
    context_tokens: int | None = None

    def __post_init__(self):
        for name, value in (("max_concurrent", self.max_concurrent), ("max_attempts", self.max_attempts)):
            if value < 1:
                raise ValueError(f"LLMJudge: {name} is {value}; give 1 or more.")

    async def judge(self, trajectories: Sequence[Trajectory], rubric: str, order: int = 0, sample: int = 0) -> Judgement:
        """Ask the model, or the cache."""
        tokens = self._room(len(trajectories))

        def ask(tokens: int) -> Question:
            try:
                return question(trajectories, rubric, tokens, order)
            except TooLongForJudge as error:
                raise JudgeError(f"{error} to the {tokens} tokens that {self.model} has for the question") from error

        asked = ask(tokens)
        path = self._path(asked, sample)
        if path and path.exists():
            return _judgement(_read(path, asked.asked), asked, Usage(cached=True))
        async with _slot(self):
            answer, usage, asked = await self._answer(ask, tokens)
        if path:
            write_file(path, json.dumps({"model": self.model, "answer": answer}).encode())
        return _judgement(parse(answer, asked.asked), asked, usage)

    async def _answer(self, ask: Callable[[int], Question], tokens: int) -> tuple[str, Usage, Question]:
        """The first usable answer, what all calls took, and the question as it was asked in the end."""
        asked, usage, problem = ask(tokens), Usage(), ""
        complaint: list[dict[str, str]] = []
        for attempt in range(self.max_attempts):
            try:
                async with asyncio.timeout(self.params.get("timeout") or self.timeout):
                    reply = await call(self.model, asked.messages + complaint, self._params(asked), self.client)
                usage = usage.plus(reply)
                _check(reply, asked.asked)
                return reply.text, usage, asked
            except BadAnswer as error:
                problem, wait, complaint = str(error), 0.0, [_complaint(error)]
            except TooLong as error:
                problem, wait, tokens = str(error), 0.0, tokens // 2
                asked = ask(tokens)
            except (Busy, TimeoutError) as error:
                problem, wanted = str(error) or "no answer in time", getattr(error, "wait", None)
                wait = self.delay * 2**attempt if wanted is None else wanted
            except openai.APIError as error:
                raise JudgeError(f"{self.model} refuses the request: {type(error).__name__}: {error}") from error
            if attempt + 1 < self.max_attempts:
                log.warning("judge %s, attempt %d of %d: %s", self.model, attempt + 1, self.max_attempts, problem)
                await asyncio.sleep(wait)
        raise JudgeError(f"{self.model} gave no usable scores in {self.max_attempts} attempts; the last: {problem}")

    def _params(self, asked: Question) -> dict[str, Any]:
        params = {name: value for name, value in self.params.items() if name != "timeout"}
        return {"response_format": response_format(asked.asked), **params}

    def _room(self, attempts: int) -> int:
        """Tokens for the question: the context less what the answer needs."""
        known = self.context_tokens or (context_tokens(self.model) if self.client is None else None)
        answer = self.params.get("max_tokens") or self.params.get("max_completion_tokens") or 300 + 150 * attempts
        return (known or UNKNOWN_CONTEXT) - answer

    def _path(self, asked: Question, sample: int) -> Path | None:
        """The answer's file, named by all that the answer depends on."""
        if self.cache is None:
            return None
        params = {name: value for name, value in self._params(asked).items() if name not in NOT_CONTENT}
        server = str(self.client.base_url) if self.client else None
        content = json.dumps([self.model, server, asked.messages, params, sample], sort_keys=True, default=repr)
        return Path(self.cache) / f"{hashlib.sha256(content.encode()).hexdigest()}.json"


_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple, asyncio.Semaphore]] = WeakKeyDictionary()


def _slot(judge: LLMJudge) -> asyncio.Semaphore:
    """Shared by all judges of one model and limit: a judge named by a string is made anew for each group."""
    slots = _slots.setdefault(asyncio.get_running_loop(), {})
    return slots.setdefault((judge.model, judge.max_concurrent), asyncio.Semaphore(judge.max_concurrent))


def _check(reply: Reply, ids: Sequence[str]) -> None:
    """Raises: BadAnswer, with the cause that the provider gives."""
    try:
        parse(reply.text, ids)
    except BadAnswer as error:
        if reply.refusal or reply.finish_reason == "content_filter":
            raise BadAnswer(f"it refused: {(reply.refusal or reply.text)[:200]!r}") from error
        if reply.finish_reason == "length":
            raise BadAnswer(f"it was cut off after {reply.completion_tokens} tokens; max_tokens allows no more") from error
        raise


def _complaint(error: BadAnswer) -> dict[str, str]:
    text = f"Your last answer could not be used: {error}. Answer again, with one JSON object as described and nothing else."
    return {"role": "user", "content": text}


def _judgement(scores: Sequence[TrajectoryScore], asked: Question, usage: Usage) -> Judgement:
    """The answer brought back from the judge's order to the group's."""
    by_id = {score.trajectory_id: score for score in scores}
    return Judgement(
        scores=[by_id[i].model_copy(update={"trajectory_id": str(n)}) for n, i in enumerate(asked.ids, start=1)],
        usage=usage,
        places=[asked.asked.index(i) for i in asked.ids],
        shortened=asked.left_out,
    )


def _read(path: Path, ids: Sequence[str]) -> list[TrajectoryScore]:
    try:
        return parse(json.loads(path.read_bytes())["answer"], ids)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no answer to its question ({error!r}): delete it to ask again.") from error
