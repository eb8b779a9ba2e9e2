"""Serve the tools of a world over MCP, the Model Context Protocol, on standard input and output:

    python -m customer_service.mcp_server retail [--data FOLDER] [--write]

Offers the tools that only read; with --write all tools. Changes are kept in memory and lost when the server ends: no file is
written. Needs the package `mcp` (the extra `mcp`).
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from customer_service.course import course_world
from customer_service.policy import POLICIES, READ_ONLY_TOOLS
from customer_service.world import World, is_error


def make_server(world: World, write: bool = False) -> Any:
    """Return an `mcp.server.Server` with the world's tools; its instructions are the policy.

    write: also offer the tools that change data. Raises: ImportError without the package `mcp`.
    """
    from mcp import types
    from mcp.server import Server

    offered = [tool["function"] for tool in world.tools if write or tool["function"]["name"] in READ_ONLY_TOOLS]

    async def list_tools(context: Any, params: Any) -> Any:
        tools = [
            types.Tool(
                name=tool["name"], description=tool["description"], input_schema=tool["parameters"],
                annotations=types.ToolAnnotations(read_only_hint=tool["name"] in READ_ONLY_TOOLS),
            )
            for tool in offered
        ]  # fmt: skip
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Any, params: Any) -> Any:
        allowed = params.name in {tool["name"] for tool in offered}
        answer = world.call(params.name, params.arguments or {}) if allowed else f"Unknown action {params.name}"
        return types.CallToolResult(content=[types.TextContent(text=answer)], is_error=is_error(answer))

    return Server(
        f"art_nb-{world.domain}", instructions=POLICIES[world.domain], on_list_tools=list_tools, on_call_tool=call_tool
    )


async def serve(world: World, write: bool) -> None:
    """Serve on standard input and output until the client disconnects."""
    from mcp.server.stdio import stdio_server

    server = make_server(world, write)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def main() -> None:
    """Run the command line above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("domain", choices=["retail", "airline"])
    parser.add_argument("--data", metavar="FOLDER", help="a data folder of tau-bench or tau2 (default: the course's data)")
    parser.add_argument("--write", action="store_true", help="also offer the tools that change data")
    a = parser.parse_args()
    try:
        world = World.load(a.domain, a.data) if a.data else course_world(a.domain)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    asyncio.run(serve(world, a.write))


if __name__ == "__main__":
    main()
