"""Several samplers behind one interface. The least loaded one gets a new conversation, and keeps it while it is alive.

The choice of sampler does not change the draws, because the repetitions of each prompt are counted here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

from openai.types.chat import ChatCompletion

from art_nb.backends.connection import Gone, digest
from art_nb.backends.lockstep import LockstepClient
from art_nb.backends.ray.calls import until_ready
from art_nb.inference.bounded import MAX_PROMPTS, BoundedDict
from art_nb.inference.chat import RequestError
from art_nb.inference.messages import normalize
from art_nb.rollouts.gathering import GatherResetDetector
from art_nb.training.names import PolicyNames

RETRY_PAUSE = 0.01  # seconds until an exchange that overtook its predecessor is sent again
MAX_CONVERSATIONS = 10_000  # conversations whose sampler is stored
ADAPTER_FILE = "adapter_model.safetensors"
KEPT_ADAPTERS = 8  # references; the most recently used are kept


class SamplerLost(ConnectionError):
    """The sampler died during the request."""


class Adapters:
    """References to the adapters of one model in Ray's object store, by the policy's name.

    An adapter is put there, as the content of its file, when a sampler needs it and no reference to it is kept.
    """

    def __init__(self, names: PolicyNames):
        self._names = names
        self._refs: dict[str, Any] = {}

    def __call__(self, policies: set[str]) -> dict[str, Any]:
        """Return Ray's references to the adapters of these policies, by name; the base model has none."""
        import ray

        steps = {name: step for name in policies if (step := self._names.step_of(name)) is not None}
        for name in steps.keys() - self._refs.keys():
            self._refs[name] = ray.put((self._names.checkpoint(steps[name]) / ADAPTER_FILE).read_bytes())
        found = {name: self._refs.pop(name) for name in steps}
        self._refs |= found
        while len(self._refs) > max(KEPT_ADAPTERS, len(steps)):
            del self._refs[next(iter(self._refs))]
        return found

    def add(self, refs: dict[str, Any]) -> None:
        """Add references that another process has created, by the policy's name."""
        self._refs |= refs

    def clear(self) -> None:
        """Drop all references, because the files have been replaced."""
        self._refs.clear()


class PooledSampler:
    """One `SamplerActor` and the clients to it. adapters: returns references by the names of policies."""

    def __init__(self, actor: Any, adapters: Callable[[set[str]], dict[str, Any]]):
        self.actor, self._adapters = actor, adapters
        self.open_requests = 0
        self.restart: asyncio.Task[Any] | None = None  # while Ray restarts the actor
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, LockstepClient] = WeakKeyDictionary()

    def is_alive(self) -> bool:
        """Return whether the actor can be called. Raises: RayActorError when it could not be restarted."""
        if self.restart is not None and self.restart.done():
            self.restart.result()
            self.restart = None
        return self.restart is None

    async def create(self, **parameters: Any) -> ChatCompletion:
        """Answer a request. Raises: SamplerLost; others as `LockstepClient.create`."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = LockstepClient(self.exchange)
        self.open_requests += 1
        try:
            return await self._clients[loop].create(**parameters)
        finally:
            self.open_requests -= 1

    async def exchange(self, key: str, exchange: dict[str, Any]) -> list[dict]:
        """Send an exchange of a `LockstepClient` to the actor. Raises: SamplerLost; Gone when the session is unknown."""
        import ray

        adapters = self._adapters({each["request"]["model"] for each in exchange["requests"]})
        while True:
            try:
                return await self.actor.exchange.remote(key, exchange, adapters)
            except ray.exceptions.RayActorError as error:
                if self.restart is None:
                    self.restart = asyncio.create_task(until_ready(self.actor))
                raise SamplerLost(str(error)) from error
            except ray.exceptions.RayTaskError as error:
                status = getattr(error.cause, "status", None)
                if status == 410:  # the actor was restarted, or the session timed out
                    raise Gone from error
                if status != 425:  # too early: Ray does not guarantee the order of calls
                    raise
                await asyncio.sleep(RETRY_PAUSE)


def _canonical(value: Any, *without: str) -> Any:
    """Return messages with sorted keys, at any depth; leave out these keys, and those whose value is None or []."""
    if isinstance(value, dict):
        return {k: _canonical(value[k], *without) for k in sorted(value) if k not in without and value[k] not in (None, [])}
    return [_canonical(each, *without) for each in value] if isinstance(value, list) else value


class SamplerPool:
    """The samplers of one model.

    first: initial count of every prompt, so that pools in several processes draw differently.
    tokens_sampled: of all answers. seconds: time with at least one open request or running actor rollout.
    """

    def __init__(self, samplers: list[PooledSampler], names: PolicyNames, first: int = 0):
        self.samplers, self.names, self._first = samplers, names, first
        self.tokens_sampled, self.seconds = 0, 0.0
        self._open, self._since = 0, 0.0
        self._gather_resets = GatherResetDetector()
        self._occurrences: dict[str, dict[str, int]] = {}  # by policy and prompt
        self._owners: dict[str, PooledSampler] = BoundedDict(MAX_CONVERSATIONS)  # by the conversation up to the last answer

    def forget(self, policy: str) -> None:
        """Reset the counts of a policy's prompts, unless requests are open, whose draws later requests would then repeat."""
        if not self._open:
            self._occurrences.pop(policy, None)

    async def create(self, *, messages: Any, model: str | None = None, **parameters: Any) -> ChatCompletion:
        """Answer a chat completion request; send it again if its sampler dies. model: None: the latest policy.

        Raises: RayActorError when Ray cannot restart a sampler; others as `LockstepClient.create`.
        """
        if parameters.get("stream") is True:
            raise RequestError("stream=True: a RayBackend does not stream; leave it out, or use a LocalBackend")
        name, conversation = self.names.resolve(model), normalize(messages)
        if self._gather_resets.should_reset(idle=not self._open):
            self._occurrences.clear()
        occurrence = self._count(name, conversation, parameters)
        request = {**parameters, "messages": conversation, "model": name, "occurrence": occurrence}
        with self.counted():
            answer: ChatCompletion | None = None
            while answer is None:
                sampler = await self.choose(conversation)
                with suppress(SamplerLost):
                    answer = await sampler.create(**request)
        for choice in answer.choices:
            self.tokens_sampled += len(getattr(choice, "token_ids", None) or ())
            message = choice.message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
            self._owners[digest(_canonical([*conversation, *normalize([message])]))] = sampler
        return answer

    def _count(self, policy: str, conversation: list[dict], parameters: dict[str, Any]) -> int:
        """Count a request; return `first` plus the number of earlier requests with this policy, messages and tools."""
        shown = {name: parameters.get(name) or None for name in ("tools", "extra_body", "chat_template_kwargs")}
        prompt = digest([_canonical(conversation, "id", "tool_call_id"), shown])  # templates do not render the ids
        counts = self._occurrences.setdefault(policy, BoundedDict(MAX_PROMPTS))
        counts[prompt] = occurrence = counts.get(prompt, self._first - 1) + 1
        return occurrence

    async def choose(self, conversation: list[dict]) -> PooledSampler:
        """Return the sampler of the conversation's last answer, or the least loaded one. Waits while all restart."""
        while not (living := [sampler for sampler in self.samplers if sampler.is_alive()]):
            restarts = [sampler.restart for sampler in self.samplers if sampler.restart]
            await asyncio.wait(restarts, return_when=asyncio.FIRST_COMPLETED)
        answers = [i for i, message in enumerate(conversation) if message["role"] == "assistant"]
        owner = self._owners.get(digest(_canonical(conversation[: answers[-1] + 1]))) if answers else None
        return owner if owner in living else min(living, key=lambda sampler: sampler.open_requests)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Add to `seconds` the time during which at least one such block runs."""
        if not self._open:
            self._since = time.perf_counter()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self.seconds += time.perf_counter() - self._since
