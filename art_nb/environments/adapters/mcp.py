"""The tools of any MCP server, over stdio or HTTP, as an environment. Source: https://modelcontextprotocol.io."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

from art_nb.environments.adapters.base import ConnectedEnvironment, import_extra, with_tools
from art_nb.environments.isolation import BrokenEnvironment
from art_nb.mcp import complete_task_tool

COMPLETE_TASK = complete_task_tool.to_tool_schema()
Calls = list[tuple[str, dict, str]]
"""(tool, arguments, observation) of each call of an episode, in order; the last is `complete_task` if the model finished."""


def mcp_environment(
    server: Any, *, reward: Callable[[Calls], float] | None = None, leave_out: Iterable[str] = (), **options: Any
) -> type[McpEnvironment]:
    """Return an environment class with the tools of an MCP server, and `complete_task`, which ends an episode.

    server: a URL, an `mcp.StdioServerParameters`, or a function that returns what `mcp.Client` accepts, such as a new
        in-process server. This call connects once to list the tools; each episode connects again.
    reward: a function of an episode's calls; None: always 0, for a judge such as RULER to replace.
    leave_out: names of the tools to exclude. options: of `mcp.Client`, such as `read_timeout_seconds`.

    Raises: ImportError without the extra; ValueError for an unsupported tool name or schema, or an unknown name in
        `leave_out`; any connection error.
    """
    connect, excluded = Connector(server, options), set(leave_out)
    with ExitStack() as stack:
        tools = connect(stack)[2]
    if unknown := sorted(excluded - tools.keys()):
        raise ValueError(f"leave_out: the server has no tool {', '.join(unknown)}; it has {', '.join(tools)}")
    shown = [tool for name, tool in tools.items() if name not in excluded]
    if any(tool["function"]["name"] == COMPLETE_TASK["function"]["name"] for tool in shown):
        raise ValueError("the server already has a tool complete_task, which this environment adds: add it to leave_out")
    made = with_tools(McpEnvironment, "McpEnvironment", [*shown, COMPLETE_TASK])
    # In a tuple: as a class attribute of its own, a reward function would become a method.
    made._setup = (connect, tools, reward or (lambda calls: 0.0))  # type: ignore[attr-defined]
    return made


class Connector:
    """Opens connections to one server."""

    def __init__(self, server: Any, options: dict[str, Any]):
        self.server, self.options, self.package = server, options, import_extra("mcp", "mcp")

    def __call__(self, stack: ExitStack) -> tuple[Any, Any, dict[str, dict]]:
        """Open a connection that `stack` closes. Returns (client's event-loop portal, client, tools by name)."""
        from anyio.from_thread import start_blocking_portal

        portal = stack.enter_context(start_blocking_portal())
        client = self.package.Client(self.server() if callable(self.server) else self.server, **self.options)
        stack.enter_context(portal.wrap_async_context_manager(client))
        tools: dict[str, dict] = {}
        cursor = None
        while True:
            page = portal.call(partial(client.list_tools, cursor=cursor))
            for tool in page.tools:
                about = {"name": tool.name, "description": tool.description or tool.name, "parameters": tool.input_schema}
                tools[tool.name] = {"type": "function", "function": about}
            if not (cursor := page.next_cursor):
                return portal, client, tools


class McpEnvironment(ConnectedEnvironment):
    """One episode with an MCP server, over a connection of its own. Made by `mcp_environment`."""

    _setup: tuple[Connector, dict[str, dict], Callable[[Calls], float]]

    def reset(self, task: str = "", **row: Any) -> str:
        """Connect. Returns the server's instructions and the task; other columns are ignored."""
        self._stack.close()
        connect, known, _ = self._setup
        self._portal, self._client, tools = connect(self._stack)
        if tools != known:
            raise BrokenEnvironment("the server's tools have changed since they were listed: call mcp_environment again")
        self._calls: Calls = []
        self._errors, self.over = 0, False
        return "\n\n".join(filter(None, (self._client.instructions, task)))

    def _call(self, name: str, arguments: dict) -> str:
        if self.over:
            return "The task is finished."
        if name == "complete_task":
            self.over, text = True, "Thank you."
        else:
            needed = self._setup[1][name]["function"]["parameters"].get("required", ())
            text = self._request(name, {key: each for key, each in arguments.items() if each is not None or key in needed})
        self._calls.append((name, arguments, text))
        return text

    def _request(self, name: str, arguments: dict) -> str:
        try:
            result = self._portal.call(partial(self._client.call_tool, name, arguments))
        except self._setup[0].package.MCPError as error:
            if error.code == self._setup[0].package.types.CONNECTION_CLOSED:
                raise BrokenEnvironment(f"the MCP server closed the connection during {name}") from error
            self._errors += 1
            return f"Error: {error}"
        except RuntimeError as error:  # it does not fit the tool's own output schema
            raise BrokenEnvironment(f"the tool {name} returned an invalid result: {error}") from error
        self._errors += bool(result.is_error)
        parts = [part.resource if part.type == "resource" else part for part in result.content]  # an embedded file
        if other := {part.type for part, inner in zip(result.content, parts, strict=True) if not hasattr(inner, "text")}:
            raise BrokenEnvironment(f"the tool {name} returned {', '.join(sorted(other))}: only text can be shown")
        return "\n".join(part.text for part in parts)

    def get_reward(self) -> float:
        """Return the reward of the calls so far."""
        return float(self._setup[2](self._calls))

    @property
    def metrics(self) -> dict[str, float]:
        return {"calls": len(self._calls), "errors": self._errors, "completed": float(self.over)}
