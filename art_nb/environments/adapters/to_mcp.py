"""Serve one episode of a TRL-style environment to any MCP client. Source: https://modelcontextprotocol.io."""

from __future__ import annotations

from typing import Any

from art_nb.environments.adapters.base import call_and_await, import_extra, listed_tools
from art_nb.environments.contract import environment_tools, observation_text
from art_nb.environments.tools import parse_arguments


def mcp_server(environment: Any, name: str = "environment", /, **row: Any) -> Any:
    """Return an `mcp.server.Server` with the tools of an environment; its instructions are the result of `reset(**row)`.

    Run it with `mcp.server.stdio.stdio_server`, or mount it as a web application. A call that is malformed or raises returns
    an error, which the model reads. The reward is `environment.get_reward()`. Enter a context-manager environment first.

    Raises: ImportError without the extra; as `reset`; BrokenEnvironment if it is async or returns neither text nor JSON.
    """
    types, server = import_extra("mcp.types", "mcp"), import_extra("mcp.server", "mcp")
    first, tools = observation_text("reset", environment.reset(**row)), environment_tools(environment)

    async def list_tools(context: Any, params: Any) -> Any:
        return types.ListToolsResult(tools=listed_tools(types.Tool, tools))

    async def call_tool(context: Any, params: Any) -> Any:
        try:
            arguments = parse_arguments(tools.values(), params.name, params.arguments or {})
            result = await call_and_await(getattr(environment, params.name), **arguments)
            text, failed = observation_text(params.name, result), False
        except Exception as error:  # the client's model reads the message
            text, failed = str(error), True
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=failed)

    return server.Server(name, instructions=first, on_list_tools=list_tools, on_call_tool=call_tool)
