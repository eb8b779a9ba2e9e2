"""The routes of OpenAI's API: models, and chat completions, whole or streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, ConfigDict, Field

from art_nb.backends.errors import StatusError, logged_error
from art_nb.inference.streaming import Chunks, events
from art_nb.serving.state import ServerState

T = TypeVar("T")
# Least time between two chunks of a stream, for each open stream: more chunks would cost as much CPU time as sampling.
SECONDS_PER_STREAM = 0.004


class ChatRequest(BaseModel):
    """A request of https://platform.openai.com/docs/api-reference/chat/create; unsupported fields are rejected by name."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(max_length=500, description="a name that GET /v1/models lists")
    messages: list[dict[str, Any]] = Field(min_length=1)
    stream: bool | None = None


def routes(state: ServerState) -> APIRouter:
    """Return the routes GET /v1/models, GET /v1/models/{name} and POST /v1/chat/completions."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.get("/models")
    def models(project: str = "") -> dict[str, Any]:
        """List all policies: models at their latest step, their stored checkpoints, base models."""
        return {"object": "list", "data": [_model(name) for name in state.models.policy_names(project)]}

    @router.get("/models/{name:path}", responses={404: {}})
    def model(name: str, project: str = "") -> dict[str, Any]:
        """Return one policy."""
        if name not in state.models.policy_names(project):
            raise StatusError(404, f"no model {name!r:.200}; GET /v1/models lists all")
        return _model(name)

    @router.post("/chat/completions", responses={400: {}, 404: {}, 499: {}, 500: {}}, response_model=None)
    async def chat_completions(body: ChatRequest, request: Request, project: str = "") -> Response:
        """Create a chat completion; each choice has its `policy`. Under /projects/{project}, names refer to that project."""
        client = request.client.host if request.client else None
        start = partial(_complete, state, body.model_dump(exclude_none=True), project, client)
        if body.stream:
            return await _stream(state.thread.stream(start, events))
        completion: ChatCompletion = await _while_connected(request, state.thread.run(start()))
        return Response(completion.model_dump_json(), media_type="application/json")

    return router


async def _complete(state: ServerState, request: dict[str, Any], project: str, client: str | None) -> Any:
    model, name = await state.models.resolve(request["model"], project)
    answer = await state.models.complete(model, {**request, "model": name}, client)
    if isinstance(answer, Chunks):
        answer.min_interval = lambda: SECONDS_PER_STREAM * state.thread.open_streams
    return answer


async def _stream(events: AsyncGenerator[list[bytes], None]) -> Response:
    """Send server-sent events. An error before the first event sets the status; a later one is sent as an event."""
    first = await anext(events)

    async def body() -> AsyncIterator[bytes]:
        async with aclosing(events):  # a client that disconnects stops its sampling
            yield b"".join(first)
            try:
                async for more in events:
                    yield b"".join(more)
            except Exception as error:
                yield f"data: {json.dumps(logged_error(error, 'a stream'))}\n\n".encode()

    return StreamingResponse(body(), media_type="text/event-stream")


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the client disconnects first, cancel it and raise StatusError 499."""
    working = asyncio.create_task(work)
    disconnect = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({working, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise StatusError(499, "the client disconnected")
    finally:
        working.cancel()
        disconnect.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "created": 0, "object": "model", "owned_by": "art_nb"}
