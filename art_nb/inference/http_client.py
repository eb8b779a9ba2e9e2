"""A client for a server of chat completions, which notes each answer where a trajectory is being recorded."""

import json
from typing import Any

import httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion import Choice

from art_nb.trajectories.recording import auto_trajectory, record


def http_client(base_url: str, api_key: str) -> AsyncOpenAI:
    """`openai.AsyncOpenAI`, seen by `capture_auto_trajectory`; a streamed answer then arrives all at once."""
    # in seconds; a rollout among many may wait long for its turn at the server
    noting = DefaultAsyncHttpxClient(event_hooks={"response": [note]}, timeout=1200)
    return AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=1200, http_client=noting)


async def note(response: httpx.Response) -> None:
    """Record a chat completion; anything else that a server says is left alone. For `event_hooks` of httpx."""
    asked_for_chat = response.request.url.path.endswith("/chat/completions")
    if auto_trajectory() is None or not response.is_success or not asked_for_chat:
        return
    await response.aread()
    asked = json.loads(response.request.content)
    choice = _streamed(response.text) if asked.get("stream") else _whole(response.json())
    record(asked["messages"], asked.get("tools"), choice)


def _whole(completion: dict[str, Any]) -> Choice:
    """Its first choice, read as leniently as the client itself does."""
    return Choice.construct(**completion["choices"][0])


def _streamed(events: str) -> Choice:
    """The first choice of a stream of server-sent events."""
    from openai.lib.streaming.chat import ChatCompletionStreamState  # not loaded by openai itself

    state = ChatCompletionStreamState()
    for line in events.splitlines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            state.handle_chunk(ChatCompletionChunk.construct(**json.loads(data)))
    return _whole(state.current_completion_snapshot.to_dict())
