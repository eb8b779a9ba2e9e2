"""What any OpenAI client asks: models, and chat completions, whole or streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from openai.types import Model
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, ConfigDict, Field

from art_nb.inference.streaming import Chunks, events
from art_nb.server.errors import Refused, error_body
from art_nb.server.served import Served

T = TypeVar("T")
# Seconds from text to text of a stream, for each that is open. Alone it comes token by token. Many nobody reads along with,
# and a chunk takes a client's processor as long as a token takes the model's.
PACE = 0.002


class ChatRequest(BaseModel):
    """A request for chat completions. Further fields are OpenAI's; what the sampler does not know it refuses by name.

    Source: https://platform.openai.com/docs/api-reference/chat/create
    """

    model_config = ConfigDict(extra="allow")

    model: str = Field(max_length=500, description="a name that GET /v1/models lists")
    messages: list[dict[str, Any]] = Field(min_length=1)
    stream: bool | None = None


def routes(served: Served) -> APIRouter:
    """GET /v1/models and /v1/models/{name}, POST /v1/chat/completions."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.get("/models")
    def models() -> dict[str, Any]:
        """Every policy that can be asked: models as they are now, their kept checkpoints, base models."""
        return {"object": "list", "data": [_model(name) for name in served.registry.names()]}

    @router.get("/models/{name:path}", responses={404: {}})
    def model(name: str) -> dict[str, Any]:
        """One policy, if it is there."""
        if name not in served.registry.names():
            raise Refused(404, f"model {name!r:.200} is not here")
        return _model(name)

    @router.post("/chat/completions", responses={400: {}, 404: {}, 499: {}, 500: {}}, response_model=None)
    async def chat_completions(asked: ChatRequest, request: Request) -> Response:
        """Answer a conversation. Each choice says in `policy` whose answer it is: "name@step"."""
        start = partial(_answer, served, asked.model_dump(exclude_none=True))
        if asked.stream:
            return await _streamed(served.engine.stream(start, events))
        completion: ChatCompletion = await while_connected(request, served.engine.run(start()))
        return Response(completion.model_dump_json(), media_type="application/json")

    return router


async def _answer(served: Served, asked: dict[str, Any]) -> Any:
    model, name = await served.registry.asked(asked.pop("model"))
    answer = await served.registry.answer(model, name, asked)
    if isinstance(answer, Chunks):
        answer.pace = lambda: PACE * served.engine.streams
    return answer


async def _streamed(pieces: AsyncGenerator[list[bytes], None]) -> Response:
    """Pieces as server-sent events. What goes wrong before the first one has its status; later it is an event."""
    first = await anext(pieces)

    async def all_of_them() -> AsyncIterator[bytes]:
        async with aclosing(pieces):  # who leaves stops the sampling
            yield b"".join(first)
            try:
                async for more in pieces:
                    yield b"".join(more)
            except Exception as error:
                yield f"data: {json.dumps(error_body(error))}\n\n".encode()

    return StreamingResponse(all_of_them(), media_type="text/event-stream")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, or cancel it when nobody listens any more."""
    working = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Refused(499, "the client has gone")
    finally:
        working.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _model(name: str) -> dict[str, Any]:
    return Model(id=name, created=0, object="model", owned_by="art_nb").model_dump()
