"""OpenAI's clients without a socket: a function in this process answers their requests."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from functools import lru_cache, partial
from typing import Any, Self, TypeVar

import httpx
from openai import APITimeoutError, AsyncOpenAI, AsyncStream, NotGiven, Omit, OpenAI, Stream, not_given
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from art_nb.inference.chat import URL, RequestError
from art_nb.inference.streaming import Chunks, events
from art_nb.trajectories.recording import auto_trajectory, record

T = TypeVar("T")
Create = Callable[..., Awaitable[ChatCompletion | Chunks]]
Names = Callable[[], list[str]]
Loop = asyncio.AbstractEventLoop
DEFAULTS: dict[str, Any] = {"api_key": "in-process", "base_url": URL.removesuffix("/chat/completions"), "timeout": None}
RAW_RESPONSE = "X-Stainless-Raw-Response"  # "true" from `with_raw_response`, "stream" from `with_streaming_response`
_LOOP_LOCK = threading.Lock()


class RawAnswer:
    """The result of `with_raw_response`: `parse()` returns the answer. In process there are no headers."""

    headers = httpx.Headers()

    def __init__(self, answer: Any):
        self._answer = answer

    def parse(self) -> Any:
        return self._answer


class _InProcess:
    """The code that both clients share. A subclass defines `_create`, for `chat.completions.create`."""

    def __init__(self, create: Create, names: Names, loop: Loop | None = None, **options: Any):
        super().__init__(**DEFAULTS | options)
        self._answer, self._names, self._loop = create, names, loop
        # Not through `request`, because that path copies and transforms every message in every turn.
        self.chat.completions.create = self._create  # type: ignore[attr-defined]

    def copy(self, **options: Any) -> Self:
        """Return a copy with another timeout or max_retries. Other options have no effect in process.

        Raises: RequestError for a base_url, websocket_base_url or http_client: they require a client that uses the network.
        """
        given = {name: value for name, value in options.items() if not isinstance(value, NotGiven | Omit)}
        for name in ("base_url", "websocket_base_url", "http_client"):
            if given.get(name) is not None:
                raise RequestError(f"{name}: this client uses no network; make an openai.AsyncOpenAI(...)")
        kept = {name: given.get(name, getattr(self, name)) for name in ("timeout", "max_retries")}
        return type(self)(self._answer, self._names, self._loop, http_client=self._client, **kept)  # type: ignore[attr-defined]

    with_options = copy

    def _models_page(self, page: Any, options: Any) -> Any:
        """Return openai's page of models for /models, None for /chat/completions. Raises: RequestError for any other URL."""
        if options.url not in ("/models", "/chat/completions"):
            raise RequestError(f"{options.url}: in process there are only chat completions and the list of models")
        models = [Model(id=name, created=0, object="model", owned_by="art_nb") for name in self._names()]
        return page(data=models, object="list") if options.url == "/models" else None


class InProcessClient(_InProcess, AsyncOpenAI):
    """`openai.AsyncOpenAI` whose chat completions come from `create(**parameters)`, whole or in chunks.

    names: returns the model names for `client.models.list()`.
    loop: the event loop in which the client returned by `blocking()` calls `create` (see `run_blocking`).
    options: `timeout` and `max_retries` as OpenAI documents them, except that there is no timeout by default and a retry
        starts at once; `http_client`, to share one.

    Raises: RequestError for endpoints other than chat completions and the list of models.
    """

    async def _create(self, *, timeout: Any = not_given, **parameters: Any) -> Any:
        seconds = timeout_seconds(timeout, self.timeout)
        answer = await create_with_retries(self._answer, parameters, seconds, self.max_retries)
        if isinstance(answer, ChatCompletion):
            return RawAnswer(answer) if _raw(parameters) else answer
        return AsyncStream(cast_to=ChatCompletionChunk, client=self, response=_response(EventStream(answer, seconds)))

    async def request(self, cast_to: Any, options: Any, **_: Any) -> Any:
        """Answer a request that another method of `openai.AsyncOpenAI` would send."""
        return self._models_page(cast_to, options) or _parsed(options, await self._create(**_parameters(options)))

    def blocking(self) -> OpenAI:
        """Return the synchronous counterpart of this client."""
        kept = {"timeout": self.timeout, "max_retries": self.max_retries}
        return BlockingClient(self._answer, self._names, self._loop, **kept)


class BlockingClient(_InProcess, OpenAI):
    """`openai.OpenAI` with the answers of an `InProcessClient`.

    Each call blocks its thread. Run every agent in a thread of its own (`asyncio.to_thread`), so that their conversations
    are decoded in one batch.
    """

    def _create(self, *, timeout: Any = not_given, **parameters: Any) -> Any:
        seconds, run = timeout_seconds(timeout, self.timeout), partial(run_blocking, loop=self._loop)
        answer = run(create_with_retries(self._answer, parameters, seconds, self.max_retries))
        if isinstance(answer, ChatCompletion):
            return RawAnswer(answer) if _raw(parameters) else answer
        stream = BlockingEventStream(EventStream(answer, seconds), run)
        return Stream(cast_to=ChatCompletionChunk, client=self, response=_response(stream))

    def request(self, cast_to: Any, options: Any, **_: Any) -> Any:
        return self._models_page(cast_to, options) or _parsed(options, self._create(**_parameters(options)))


def _parameters(options: Any) -> dict[str, Any]:
    """Return the parameters of a request that openai's client is about to send."""
    headers = {} if isinstance(options.headers, NotGiven) else options.headers
    return {**(options.json_data or {}), **(options.extra_json or {}), "extra_headers": headers, "timeout": options.timeout}


def _raw(parameters: dict[str, Any]) -> str | None:
    headers = parameters.get("extra_headers")
    return headers.get(RAW_RESPONSE) if isinstance(headers, Mapping) else None


def _parsed(options: Any, answer: Any) -> Any:
    """Apply the parser of the calling method, such as `parse`."""
    if isinstance(options.post_parser, NotGiven):
        return answer
    if isinstance(answer, RawAnswer):
        return RawAnswer(options.post_parser(answer.parse()))
    return options.post_parser(answer)


def timeout_seconds(timeout: Any, default: Any) -> float | None:
    """Return the seconds that `timeout`, or `default` if it is not given, allows; None: no limit.

    Raises: RequestError unless it is a non-negative number, an `httpx.Timeout` (its `read` counts) or None.
    """
    timeout = default if isinstance(timeout, NotGiven | Omit) else timeout
    allowed = timeout.read if isinstance(timeout, httpx.Timeout) else timeout
    is_number = isinstance(allowed, int | float) and not isinstance(allowed, bool)
    if allowed is not None and not (is_number and allowed >= 0):
        raise RequestError(f"timeout is {timeout!r}: expected seconds, an httpx.Timeout, or None for no limit")
    return allowed


@asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[None]:
    """Cancel the block after this many seconds; a running forward pass completes first. Raises: openai.APITimeoutError."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise APITimeoutError(request=httpx.Request("POST", URL)) from error


async def create_with_retries(
    create: Create, parameters: dict[str, Any], seconds: float | None, retries: int
) -> ChatCompletion | Chunks:
    """Call `create_recorded`. After `seconds` cancel it and retry, up to `retries` times; then raise APITimeoutError."""
    messages = parameters.get("messages")  # any iterable; a retry and the recording need it again
    if isinstance(messages, Iterable) and not isinstance(messages, str | Mapping):
        parameters = {**parameters, "messages": list(messages)}
    while True:
        try:
            async with time_limit(seconds):
                return await create_recorded(create, parameters)
        except APITimeoutError:
            if not retries:
                raise
            retries -= 1


async def create_recorded(create: Create, parameters: dict[str, Any]) -> ChatCompletion | Chunks:
    """Answer a request, and record the answer if a trajectory is being recorded."""
    raw = _raw(parameters)
    if raw and (raw != "true" or parameters.get("stream")):
        raise RequestError("with_streaming_response, or a raw stream: there is no HTTP response in process; leave it out")
    tools = parameters.get("tools")
    messages = parameters.get("messages", [])
    sent: Any = deepcopy(messages) if auto_trajectory() and isinstance(messages, list | tuple) else messages
    note = partial(record, sent, None if isinstance(tools, NotGiven | Omit) else tools)
    answer = await create(**parameters)
    if isinstance(answer, ChatCompletion):
        note(answer.choices[0])
    else:
        answer.on_completion = lambda completion: note(completion.choices[0])
    return answer


def run_blocking(coroutine: Coroutine[Any, Any, T], loop: Loop | None) -> T:
    """Run a coroutine from blocking code: in `loop` if that runs in another thread, else in a background thread."""
    try:
        current: Loop | None = asyncio.get_running_loop()
    except RuntimeError:
        current = None
    with _LOOP_LOCK:
        chosen = loop if loop and loop.is_running() and loop is not current else _background_loop()
    future = asyncio.run_coroutine_threadsafe(coroutine, chosen)
    try:
        return future.result()
    except BaseException:  # an interrupt, for example
        future.cancel()
        raise


@lru_cache(maxsize=1)
def _background_loop() -> Loop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="art_nb: blocking clients", daemon=True).start()
    return loop


class EventStream(httpx.AsyncByteStream):
    """A streamed answer as bytes. seconds: time limit of each event."""

    def __init__(self, chunks: Chunks, seconds: float | None):
        self._chunks, self._events, self._seconds = chunks, events(chunks), seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while event := await self.next():
            yield event

    async def next(self) -> bytes:
        """Return the next event, b"" at the end. Raises: openai.APITimeoutError, which ends the stream."""
        async with time_limit(self._seconds):
            return await anext(self._events, b"")

    async def aclose(self) -> None:
        await self._chunks.aclose()
        if not self._events.ag_running:  # type: ignore[attr-defined]  # else another task is reading: it ends by itself
            await self._events.aclose()


class BlockingEventStream(httpx.SyncByteStream):
    """An `EventStream` for code that does not await."""

    def __init__(self, stream: EventStream, run: Callable[[Coroutine], Any]):
        self._stream, self._run = stream, run

    def __iter__(self) -> Iterator[bytes]:
        while event := self._run(self._stream.next()):
            yield event

    def close(self) -> None:
        self._run(self._stream.aclose())


def _response(stream: httpx.AsyncByteStream | httpx.SyncByteStream) -> httpx.Response:
    return httpx.Response(200, stream=stream, request=httpx.Request("POST", URL))
