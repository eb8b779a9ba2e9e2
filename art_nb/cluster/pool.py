"""Several samplers asked as one: the least loaded takes a conversation and keeps it, and another one when it dies.

Which sampler answers makes no difference to what is drawn: how often a prompt was asked is counted here.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from openai.types.chat import ChatCompletion

from art_nb.cluster.calls import until_back
from art_nb.inference.chat import RequestError
from art_nb.inference.messages import plain
from art_nb.remote.connection import Gone
from art_nb.remote.line import Line
from art_nb.rollouts.gathering import Fresh
from art_nb.training.names import Names

AGAIN = 0.01  # seconds until what came too early is said again
REMEMBERED = 10_000  # conversations of which is known who has them


class SamplerLost(ConnectionError):
    """The sampler died with the request."""


class Member:
    """One sampler: a Ray actor and the lines to it.

    adapters: gives for names of policies where the object store has theirs.
    """

    def __init__(self, actor: Any, adapters: Callable[[set[str]], dict[str, Any]]):
        self.actor, self._adapters = actor, adapters
        self.open = 0  # requests
        self.back: asyncio.Task[None] | None = None  # while it is started anew
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, Line] = WeakKeyDictionary()

    @property
    def lives(self) -> bool:
        if self.back is not None and self.back.done():
            self.back.result()  # raises where it can't be started
            self.back = None
        return self.back is None

    async def create(self, **parameters: Any) -> ChatCompletion:
        """Raises: SamplerLost; RequestError where the sampler refuses it."""
        loop = asyncio.get_running_loop()
        if loop not in self._lines:
            self._lines[loop] = Line(self, "")
        self.open += 1
        try:
            return await self._lines[loop].create(**parameters)
        finally:
            self.open -= 1

    async def ask(self, method: str, path: str, body: Any) -> Any:
        """The transport of a `Line`."""
        import ray

        key = path.rpartition("/")[2]
        adapters = self._adapters({ask["request"]["model"] for ask in body["asks"]})
        while True:
            try:
                return {"answers": await self.actor.exchange.remote(key, body, adapters)}
            except ray.exceptions.RayActorError as error:
                if self.back is None:
                    self.back = asyncio.create_task(until_back(self.actor))
                raise SamplerLost(str(error)) from error
            except ray.exceptions.RayTaskError as error:
                status = getattr(error.cause, "status", None)
                if status == 410:  # started anew before its end was noticed
                    raise Gone from error
                if status != 425:  # Ray promises no order: one that has overtaken another comes again
                    raise
                await asyncio.sleep(AGAIN)


class Pool:
    """The samplers of one model.

    first: how often a prompt counts as asked already, so that pools of several processes draw differently.
    tokens_sampled, seconds: as a `Sampler` counts them.
    """

    def __init__(self, members: list[Member], names: Names, first: int = 0):
        self.members, self.names, self._first = members, names, first
        self.tokens_sampled, self.seconds = 0, 0.0
        self._open, self._since = 0, 0.0
        self._fresh = Fresh()
        self._asked: dict[str, dict[str, int]] = {}  # by policy and prompt: how often
        self._last: OrderedDict[str, Member] = OrderedDict()  # by the conversation up to the last answer

    def forget(self, policy: str) -> None:
        """Count its prompts anew. Not while somebody asks: what goes on with it would be drawn as others were."""
        if not self._open:
            self._asked.pop(policy, None)

    async def create(self, *, messages: Any, model: str | None = None, **parameters: Any) -> ChatCompletion:
        """Answer a request of OpenAI's chat completions, whoever of the samplers lives.

        Raises: RequestError, which says what to change; RayActorError when Ray can't start a sampler any more.
        """
        if parameters.get("stream") is True:
            raise RequestError("stream=True: samplers behind Ray answer whole; leave it out, or ask a LocalBackend")
        name, conversation = self.names.resolve(model), plain(list(messages))
        if self._fresh.begins(idle=not self._open):
            self._asked.clear()
        times = self._times(name, conversation, parameters)
        asked = {**parameters, "messages": conversation, "model": name, "times": times}
        with self.counted():
            while True:
                member = await self._choose(conversation)
                try:
                    answer = await member.create(**asked)
                    break
                except SamplerLost:
                    continue
        for choice in answer.choices:
            self.tokens_sampled += len(getattr(choice, "token_ids", ()))
            said = choice.message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
            self._last[_digest([*conversation, *plain([said])])] = member
        while len(self._last) > REMEMBERED:
            self._last.popitem(last=False)
        return answer

    def _times(self, policy: str, conversation: list[dict], parameters: dict[str, Any]) -> int:
        """How often the policy was asked this prompt before, and counts this time."""
        shown = {name: parameters.get(name) or None for name in ("tools", "extra_body", "chat_template_kwargs")}
        counts, prompt = self._asked.setdefault(policy, {}), _digest([conversation, shown])
        counts[prompt] = times = counts.get(prompt, self._first - 1) + 1
        return times

    async def _choose(self, conversation: list[dict]) -> Member:
        """The one that has the conversation, or the least loaded one."""
        while not (living := [member for member in self.members if member.lives]):
            await asyncio.wait([member.back for member in self.members if member.back], return_when="FIRST_COMPLETED")
        answers = [i for i, message in enumerate(conversation) if message["role"] == "assistant"]
        last = self._last.get(_digest(conversation[: answers[-1] + 1])) if answers else None
        return last if last in living else min(living, key=lambda member: member.open)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """The seconds in which at least one request is open."""
        if not self._open:
            self._since = time.perf_counter()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self.seconds += time.perf_counter() - self._since


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, default=repr).encode(), digest_size=12).hexdigest()
