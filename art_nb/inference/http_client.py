"""OpenAI clients over HTTP that add each answer to the current recording, see `trajectories.recording`."""

import json
from typing import Any

import httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion import Choice

from art_nb.inference.chat import SAMPLING_FIELDS
from art_nb.trajectories.recording import auto_trajectory, record

TIMEOUT = 1200  # seconds; one of many rollouts may wait a long time for its turn at the server


def http_client(base_url: str, api_key: str) -> AsyncOpenAI:
    """Return an `openai.AsyncOpenAI` that records its answers. While recording, a streamed answer arrives all at once."""
    http = DefaultAsyncHttpxClient(event_hooks={"response": [record_response]}, timeout=TIMEOUT)
    return AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=TIMEOUT, http_client=http)


def blocking_http_client(base_url: str, api_key: str) -> OpenAI:
    """Return an `openai.OpenAI` that records its answers as `http_client` does."""
    http = DefaultHttpxClient(event_hooks={"response": [_record_blocking]}, timeout=TIMEOUT)
    return OpenAI(base_url=base_url, api_key=api_key, timeout=TIMEOUT, http_client=http)


async def record_response(response: httpx.Response) -> None:
    """Add the first choice of a successful chat completion to the current recording, if any. For httpx's `event_hooks`."""
    if _is_recorded(response):
        await response.aread()
        _record(response)


def _record_blocking(response: httpx.Response) -> None:
    if _is_recorded(response):
        response.read()
        _record(response)


def _is_recorded(response: httpx.Response) -> bool:
    is_chat = response.request.url.path.endswith("/chat/completions")
    return auto_trajectory() is not None and response.is_success and is_chat


def _record(response: httpx.Response) -> None:
    request = json.loads(response.request.content)
    if choices := _streamed(response.text) if request.get("stream") else response.json().get("choices"):
        # As lenient with other servers' answers as the client itself.
        record(request["messages"], request.get("tools"), Choice.construct(**choices[0]))


def _streamed(events: str) -> list[dict[str, Any]]:
    """Return a list with the first choice of server-sent events, if complete, including our sampler's additional fields."""
    from openai.lib.streaming.chat import ChatCompletionStreamState  # `import openai` does not import it

    state = ChatCompletionStreamState()
    sampling: dict[str, Any] | None = None
    for line in events.split("\n"):  # `splitlines` would also split inside texts, for example at U+2028
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            chunk = json.loads(data)
            for choice in chunk.get("choices") or ():  # an error event, which the client raises, has no choices
                if choice["index"] == 0:
                    state.handle_chunk(ChatCompletionChunk.construct(**{**chunk, "choices": [choice]}))
                    sampling = (sampling or {}) | {name: choice[name] for name in SAMPLING_FIELDS & choice.keys()}
    found = [] if sampling is None else [{**state.current_completion_snapshot.choices[0].to_dict(), **sampling}]
    return [choice for choice in found if choice.get("finish_reason")]
