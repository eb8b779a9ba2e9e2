"""OpenAI's clients without a socket: what they are asked is answered by a function beside them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import lru_cache, partial
from typing import Any, TypeVar

import httpx
from openai import AsyncOpenAI, AsyncStream, NotGiven, Omit, OpenAI, Stream
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from art_nb.inference.chat import URL, RequestError
from art_nb.inference.streaming import Chunks, events
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

    Raises: RequestError for everything else that OpenAI serves.
    """

    def __init__(self, answer: Answers, names: Callable[[], list[str]], loop: asyncio.AbstractEventLoop | None = None):
        super().__init__(api_key="in-process", base_url=PLACE)
        self._answer, self._names, self._loop = answer, names, loop
        # Not through `request`: on the way there every message is copied and transformed, each turn anew.
        self.chat.completions.create = self._create  # type: ignore[method-assign]

    async def _create(self, **parameters: Any) -> Any:
        answer = await recorded(self._answer, parameters)
        if isinstance(answer, ChatCompletion):
            return answer
        return AsyncStream(cast_to=ChatCompletionChunk, client=self, response=_response(Events(answer)))

    async def request(self, cast_to: Any, options: Any, **_: Any) -> Any:
        """What all methods but `chat.completions.create` come to."""
        asked = Asked(options)
        return asked.parsed(await self._create(**asked.body) if asked.for_chat else asked.models(cast_to, self._names()))

    def blocking(self) -> OpenAI:
        """The same for code that does not await."""
        return BlockingClient(self._answer, self._names, self._loop)

    def copy(self, **_: Any) -> InProcessClient:
        """Itself: timeouts, retries and headers mean nothing without a socket."""
        return self

    with_options = copy


class BlockingClient(OpenAI):
    """`openai.OpenAI` with the answers of an `InProcessClient`.

    A thread that asks waits. So let agents that ask it run in threads of their own (`asyncio.to_thread`): then their
    conversations are decoded together, and with those of agents that await.
    """

    def __init__(self, answer: Answers, names: Callable[[], list[str]], loop: asyncio.AbstractEventLoop | None = None):
        super().__init__(api_key="in-process", base_url=PLACE)
        self._answer, self._names, self._run = answer, names, partial(run, loop=loop)
        self.chat.completions.create = self._create  # type: ignore[method-assign]

    def _create(self, **parameters: Any) -> Any:
        answer = self._run(recorded(self._answer, parameters))
        if isinstance(answer, ChatCompletion):
            return answer
        return Stream(cast_to=ChatCompletionChunk, client=self, response=_response(BlockingEvents(answer, self._run)))

    def request(self, cast_to: Any, options: Any, **_: Any) -> Any:
        asked = Asked(options)
        return asked.parsed(self._create(**asked.body) if asked.for_chat else asked.models(cast_to, self._names()))

    def copy(self, **_: Any) -> BlockingClient:
        return self

    with_options = copy


class Asked:
    """A request as openai's clients are about to send it."""

    def __init__(self, options: Any):
        self.for_chat = options.url == "/chat/completions"
        if not self.for_chat and options.url != "/models":
            raise RequestError(f"{options.url}: in process there are chat completions and the list of models, nothing else")
        self._parser = options.post_parser
        headers = {} if isinstance(options.headers, NotGiven) else options.headers
        self.body = {**(options.json_data or {}), **(options.extra_json or {}), "extra_headers": headers}

    def models(self, page: Any, names: list[str]) -> Any:
        """The page of a list of models."""
        return page(data=[Model(id=name, created=0, object="model", owned_by="art_nb") for name in names], object="list")

    def parsed(self, answer: T) -> T:
        """The answer as the method that asked wants it."""
        return answer if isinstance(self._parser, NotGiven) else self._parser(answer)


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
    """The bytes of a streamed answer."""

    def __init__(self, chunks: Chunks):
        self._chunks, self._events = chunks, events(chunks)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for event in self._events:
            yield event

    async def next(self) -> bytes:
        """None are left when it is empty."""
        return await anext(self._events, b"")

    async def aclose(self) -> None:
        await self._events.aclose()
        await self._chunks.aclose()


class BlockingEvents(httpx.SyncByteStream):
    """The same, waited for by `run`."""

    def __init__(self, chunks: Chunks, run: Callable[[Coroutine], Any]):
        self._events, self._run = Events(chunks), run

    def __iter__(self) -> Iterator[bytes]:
        while event := self._run(self._events.next()):
            yield event

    def close(self) -> None:
        self._run(self._events.aclose())


def _response(stream: httpx.AsyncByteStream | httpx.SyncByteStream) -> httpx.Response:
    return httpx.Response(200, stream=stream, request=httpx.Request("POST", URL))
