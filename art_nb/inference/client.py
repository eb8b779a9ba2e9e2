"""OpenAI's clients without a socket: what they are asked is answered by a function beside them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import lru_cache, partial
from typing import Any, TypeVar

import httpx
from openai import APITimeoutError, AsyncOpenAI, AsyncStream, NotGiven, Omit, OpenAI, Stream, not_given
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from art_nb.inference.chat import URL, RequestError
from art_nb.inference.streaming import Chunks, events
from art_nb.inference.timeouts import seconds, within
from art_nb.trajectories.recording import record

T = TypeVar("T")
Answers = Callable[..., Awaitable[ChatCompletion | Chunks]]
RAW_RESPONSE = "X-Stainless-Raw-Response"  # the header by which openai's methods tell how they were called
_STARTING = threading.Lock()
PLACE = URL.removesuffix("/chat/completions")


class InProcessClient(AsyncOpenAI):
    """`openai.AsyncOpenAI` whose chat completions come from `answer(**parameters)`, whole or in chunks.

    names: gives the models that can be asked, for `client.models.list()`.
    loop: where they are answered; that of `blocking()`'s client as well.
    options: `timeout` and `max_retries`, as OpenAI documents them, but an answer is waited for as long as it takes
        unless a timeout is given, and after one is asked for again at once; `http_client`, to share one.

    Raises: RequestError for everything else that OpenAI serves.
    """

    def __init__(
        self,
        answer: Answers,
        names: Callable[[], list[str]],
        loop: asyncio.AbstractEventLoop | None = None,
        **options: Any,
    ):
        super().__init__(**{"api_key": "in-process", "base_url": PLACE, "timeout": None, **options})
        self._answer, self._names, self._loop = answer, names, loop
        # Not through `request`: on the way there every message is copied and transformed, each turn anew.
        self.chat.completions.create = self._create  # type: ignore[method-assign]

    async def _create(self, *, timeout: Any = not_given, **parameters: Any) -> Any:
        allowed = seconds(timeout, self.timeout)
        answer = await patient(self._answer, parameters, allowed, self.max_retries)
        if isinstance(answer, ChatCompletion):
            return answer
        return AsyncStream(cast_to=ChatCompletionChunk, client=self, response=_response(Events(answer, allowed)))

    async def request(self, cast_to: Any, options: Any, **_: Any) -> Any:
        """What all methods but `chat.completions.create` come to."""
        asked = Asked(options)
        return asked.parsed(await self._create(**asked.body) if asked.for_chat else asked.models(cast_to, self._names()))

    def blocking(self) -> OpenAI:
        """The same for code that does not await."""
        return BlockingClient(self._answer, self._names, self._loop, **changed(self))

    def copy(self, **options: Any) -> InProcessClient:
        """The same with another timeout, other max_retries; who asks, as which headers say, makes no difference.

        Raises: RequestError for a base_url or an http_client: an answer from there is for a client of its own.
        """
        return InProcessClient(self._answer, self._names, self._loop, http_client=self._client, **changed(self, options))

    with_options = copy


class BlockingClient(OpenAI):
    """`openai.OpenAI` with the answers of an `InProcessClient`.

    A thread that asks waits. So let agents that ask it run in threads of their own (`asyncio.to_thread`): then their
    conversations are decoded together, and with those of agents that await.
    """

    def __init__(
        self,
        answer: Answers,
        names: Callable[[], list[str]],
        loop: asyncio.AbstractEventLoop | None = None,
        **options: Any,
    ):
        super().__init__(**{"api_key": "in-process", "base_url": PLACE, "timeout": None, **options})
        self._answer, self._names, self._loop, self._run = answer, names, loop, partial(run, loop=loop)
        self.chat.completions.create = self._create  # type: ignore[method-assign]

    def _create(self, *, timeout: Any = not_given, **parameters: Any) -> Any:
        allowed = seconds(timeout, self.timeout)
        answer = self._run(patient(self._answer, parameters, allowed, self.max_retries))
        if isinstance(answer, ChatCompletion):
            return answer
        stream = BlockingEvents(Events(answer, allowed), self._run)
        return Stream(cast_to=ChatCompletionChunk, client=self, response=_response(stream))

    def request(self, cast_to: Any, options: Any, **_: Any) -> Any:
        asked = Asked(options)
        return asked.parsed(self._create(**asked.body) if asked.for_chat else asked.models(cast_to, self._names()))

    def copy(self, **options: Any) -> BlockingClient:
        return BlockingClient(self._answer, self._names, self._loop, http_client=self._client, **changed(self, options))

    with_options = copy


def changed(client: AsyncOpenAI | OpenAI, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """The client's timeout and max_retries, after the options of `copy`."""
    given = {name: value for name, value in (options or {}).items() if not isinstance(value, NotGiven | Omit)}
    for name in ("base_url", "websocket_base_url", "http_client"):
        if given.get(name) is not None:
            raise RequestError(f"{name}: no network is asked by this client; make an openai.AsyncOpenAI(...)")
    return {name: given.get(name, getattr(client, name)) for name in ("timeout", "max_retries")}


class Asked:
    """A request as openai's clients are about to send it."""

    def __init__(self, options: Any):
        self.for_chat = options.url == "/chat/completions"
        if not self.for_chat and options.url != "/models":
            raise RequestError(f"{options.url}: in process there are chat completions and the list of models, nothing else")
        self._parser = options.post_parser
        headers = {} if isinstance(options.headers, NotGiven) else options.headers
        own = {"extra_headers": headers, "timeout": options.timeout}
        self.body = {**(options.json_data or {}), **(options.extra_json or {}), **own}

    def models(self, page: Any, names: list[str]) -> Any:
        """The page of a list of models."""
        return page(data=[Model(id=name, created=0, object="model", owned_by="art_nb") for name in names], object="list")

    def parsed(self, answer: T) -> T:
        """The answer as the method that asked wants it."""
        return answer if isinstance(self._parser, NotGiven) else self._parser(answer)


async def patient(
    answer: Answers, parameters: dict[str, Any], allowed: float | None, retries: int
) -> ChatCompletion | Chunks:
    """`recorded`, asked for once more and so many times again when it takes longer than `allowed` seconds."""
    while True:
        try:
            async with within(allowed):
                return await recorded(answer, parameters)
        except APITimeoutError:
            if not retries:
                raise
            retries -= 1


async def recorded(answer: Answers, parameters: dict[str, Any]) -> ChatCompletion | Chunks:
    """The answer to a request, noted where a trajectory is being recorded."""
    if RAW_RESPONSE in (parameters.get("extra_headers") or {}):
        raise RequestError("with_raw_response, with_streaming_response: no response of HTTP in process; leave them out")
    tools = parameters.get("tools")
    note = partial(record, parameters.get("messages", []), None if isinstance(tools, NotGiven | Omit) else tools)
    said = await answer(**parameters)
    if isinstance(said, ChatCompletion):
        note(said.choices[0])
    else:
        said.on_completion = lambda completion: note(completion.choices[0])
    return said


def run(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None) -> T:
    """Its result, waited for: in `loop` if that runs in another thread, else in a loop of our own."""
    try:
        here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    elsewhere = loop is not None and loop.is_running() and loop is not here
    with _STARTING:
        chosen = loop if loop and elsewhere else _side_loop()
    future = asyncio.run_coroutine_threadsafe(coroutine, chosen)
    try:
        return future.result()
    except BaseException:  # an interrupt, say
        future.cancel()
        raise


@lru_cache(maxsize=1)
def _side_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="art_nb: blocking clients", daemon=True).start()
    return loop


class Events(httpx.AsyncByteStream):
    """The bytes of a streamed answer. allowed: seconds that the next ones may take."""

    def __init__(self, chunks: Chunks, allowed: float | None):
        self._chunks, self._events, self._allowed = chunks, events(chunks), allowed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while event := await self.next():
            yield event

    async def next(self) -> bytes:
        """None are left when it is empty. Raises: openai.APITimeoutError, which ends the answer."""
        async with within(self._allowed):
            return await anext(self._events, b"")

    async def aclose(self) -> None:
        await self._events.aclose()
        await self._chunks.aclose()


class BlockingEvents(httpx.SyncByteStream):
    """The same, waited for by `run`."""

    def __init__(self, stream: Events, run: Callable[[Coroutine], Any]):
        self._events, self._run = stream, run

    def __iter__(self) -> Iterator[bytes]:
        while event := self._run(self._events.next()):
            yield event

    def close(self) -> None:
        self._run(self._events.aclose())


def _response(stream: httpx.AsyncByteStream | httpx.SyncByteStream) -> httpx.Response:
    return httpx.Response(200, stream=stream, request=httpx.Request("POST", URL))
