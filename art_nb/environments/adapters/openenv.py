"""An environment for any OpenEnv server, given its URL. Source: the package `openenv` 0.10."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import httpx

from art_nb.environments.adapters.base import ConnectedEnvironment, import_extra, with_tools
from art_nb.environments.isolation import BrokenEnvironment

OVER = "The episode is over."
ABOUT_THE_STEP = ("done", "reward", "metadata", "terminated", "truncated")


def openenv_environment(
    url: str, *, describe: Callable[[dict], str] | None = None, headers: dict[str, str] | None = None, **options: Any
) -> type[OpenEnvEnvironment]:
    """Return an environment class for a running server; each episode has a server session of its own.

    If the server's actions are calls of MCP tools (`CallToolAction`), these are the environment's tools. Otherwise it has
    one tool, `step`, with the parameters of the server's action schema.

    url: http:// or https://. describe: returns the text of an observation (a dict); default: its only field if that is text,
    else JSON. headers: of every request. options: of OpenEnv's `GenericEnvClient`, such as `message_timeout_s`.

    Raises: ImportError without the package; httpx.HTTPError if the request for the action schema fails; ValueError for an
    action or a tool that cannot be a method.
    """
    package = import_extra("openenv.core", "openenv")
    answer = httpx.get(f"{url.rstrip('/')}/schema", headers=headers, timeout=options.get("message_timeout_s", 60.0))
    action = answer.raise_for_status().json()["action"]
    # In a tuple, so that `describe` does not become a method, which TRL would list as a tool.
    setup = (package.GenericEnvClient, {"base_url": url, "headers": headers, **options}, describe or _text)
    by_tools = {"tool_name", "arguments"} <= set(action["properties"])
    if by_tools:
        with ExitStack() as stack:
            seen = stack.enter_context(setup[0](**setup[1]).sync()).step({"type": "list_tools"}).observation
        tools = [
            {"name": tool["name"], "description": tool.get("description"), "parameters": tool.get("input_schema", {})}
            for tool in seen["tools"]
        ]
    else:
        kept = {name: schema for name, schema in action["properties"].items() if name != "metadata"}
        about = action.get("description", "Act.")
        tools = [{"name": "step", "description": about, "parameters": action | {"properties": kept}}]
    made = with_tools(OpenEnvEnvironment, "OpenEnvEnvironment", [{"type": "function", "function": tool} for tool in tools])
    made._setup, made._by_tools = setup, by_tools  # type: ignore[attr-defined]
    return made


def _text(observation: dict) -> str:
    """Return the result or error of an MCP tool; else the observation's only field if that is text, else JSON."""
    if "tool_name" in observation:
        result = observation.get("error") or observation.get("result")
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    left = {name: value for name, value in observation.items() if name not in ABOUT_THE_STEP}
    texts = [value for value in left.values() if isinstance(value, str)]
    return texts[0] if len(texts) == len(left) == 1 else json.dumps(left, ensure_ascii=False) if left else ""


class OpenEnvEnvironment(ConnectedEnvironment):
    """One episode in a session of an OpenEnv server. `openenv_environment` creates subclasses of it.

    The reward is the sum of the rewards of reset and steps. OpenEnv reports the end as `done`; an episode that is done
    counts as truncated if the observation or the metadata has a true `truncated`, else as terminated.
    """

    _setup: tuple[Any, dict[str, Any], Callable[[dict], str]]
    _by_tools: bool

    def reset(self, **row: Any) -> str:
        """Open a session and reset it with the row, without `prompt` and None values. Returns the first observation."""
        self._stack.close()
        self._reward, self._steps, self.over, self._truncated = 0.0, 0, False, False
        client, options, _ = self._setup
        self._client = self._stack.enter_context(client(**options).sync())
        self._client.async_client._ensure_connected = partial(asyncio.sleep, 0)  # no reconnection: new sessions aren't reset
        given = {name: value for name, value in row.items() if name != "prompt" and value is not None}
        return self._seen(self._client.reset(**given))

    def _call(self, name: str, arguments: dict) -> str:
        if self.over:
            return OVER
        given = {key: value for key, value in arguments.items() if value is not None}
        action = {"type": "call_tool", "tool_name": name, "arguments": given} if self._by_tools else given
        self._steps += 1
        try:
            return self._seen(self._client.step(action))
        except (OSError, import_extra("websockets", "openenv").ConnectionClosed) as error:
            raise BrokenEnvironment(f"the OpenEnv server failed during {name}: {error}") from error

    def _seen(self, result: Any) -> str:
        self._reward += float(result.reward or 0.0)
        metadata = (result.metadata or {}) | (result.observation.get("metadata") or {})
        self.over = bool(result.done)
        self._truncated = self.over and bool(result.observation.get("truncated") or metadata.get("truncated"))
        return self._setup[2](result.observation)

    def get_reward(self) -> float:
        """Return the sum of the rewards so far."""
        return self._reward

    @property
    def metrics(self) -> dict[str, float]:
        terminated = self.over and not self._truncated
        return {"steps": self._steps, "terminated": float(terminated), "truncated": float(self._truncated)}
