"""OpenAI's client for a model on a server: whole answers come many at a time, streams and all else by plain HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from openai import AsyncOpenAI, NotGiven, Omit, not_given
from openai.types.chat import ChatCompletion

from art_nb.inference.client import recorded
from art_nb.inference.http_client import http_client


def remote_client(answer: Callable[..., Awaitable[ChatCompletion]], base_url: str, api_key: str) -> AsyncOpenAI:
    """A client of the server at `base_url` that gets whole completions from `answer(**parameters)`."""
    client = http_client(base_url, api_key)
    over_http = client.chat.completions.create

    async def create(**request: Any) -> Any:
        timed = not isinstance(request.get("timeout", not_given), NotGiven | Omit)
        if request.get("stream") is True or request.get("extra_headers") or timed:
            return await over_http(**request)
        return await recorded(answer, request)

    client.chat.completions.create = create  # type: ignore[method-assign]
    return client
