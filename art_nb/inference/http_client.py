"""Clients for a server of chat completions, which note each answer where a trajectory is being recorded."""

import json
from typing import Any

import httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion import Choice

from art_nb.inference.chat import OF_SAMPLING
from art_nb.trajectories.recording import auto_trajectory, record

SECONDS = 1200  # a rollout among many may wait long for its turn at the server


def http_client(base_url: str, api_key: str) -> AsyncOpenAI:
    """`openai.AsyncOpenAI`, seen by `capture_auto_trajectory`; a streamed answer then arrives all at once."""
    noting = DefaultAsyncHttpxClient(event_hooks={"response": [note]}, timeout=SECONDS)
    return AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=SECONDS, http_client=noting)


def blocking_http_client(base_url: str, api_key: str) -> OpenAI:
    """The same for code that does not await."""
    noting = DefaultHttpxClient(event_hooks={"response": [_read_and_note]}, timeout=SECONDS)
    return OpenAI(base_url=base_url, api_key=api_key, timeout=SECONDS, http_client=noting)


async def note(response: httpx.Response) -> None:
    """Record a chat completion; anything else that a server says is left alone. For `event_hooks` of httpx."""
    if _is_noted(response):
        await response.aread()
        _note(response)


def _read_and_note(response: httpx.Response) -> None:
    if _is_noted(response):
        response.read()
        _note(response)


def _is_noted(response: httpx.Response) -> bool:
    asked_for_chat = response.request.url.path.endswith("/chat/completions")
    return auto_trajectory() is not None and response.is_success and asked_for_chat


def _note(response: httpx.Response) -> None:
    asked = json.loads(response.request.content)
    choice = _streamed(response.text) if asked.get("stream") else _whole(response.json())
    record(asked["messages"], asked.get("tools"), choice)


def _whole(completion: dict[str, Any]) -> Choice:
    """Its first choice, read as leniently as the client itself does."""
    return Choice.construct(**completion["choices"][0])


def _streamed(events: str) -> Choice:
    """The first choice of a stream of server-sent events; with what our own server says of its tokens."""
    from openai.lib.streaming.chat import ChatCompletionStreamState  # not loaded by openai itself

    state = ChatCompletionStreamState()
    sampling: dict[str, Any] = {}
    for line in events.splitlines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            chunk = json.loads(data)
            state.handle_chunk(ChatCompletionChunk.construct(**chunk))
            for choice in chunk["choices"][:1]:
                sampling |= {name: choice[name] for name in OF_SAMPLING & choice.keys() if choice["index"] == 0}
    said: dict[str, Any] = state.current_completion_snapshot.to_dict()
    return Choice.construct(**{**said["choices"][0], **sampling})
