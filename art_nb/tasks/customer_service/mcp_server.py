"""The tools of a world over MCP, the Model Context Protocol, for agents of any make:

    python -m art_nb.tasks.customer_service.mcp_server retail [--data FOLDER] [--write]

It speaks over its standard input and output, as a client that starts it expects. Only tools that change nothing are offered;
with --write all of them are, and what they change is forgotten when the server ends: no file is ever written. It needs the
package `mcp` (the extra `mcp`).
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from art_nb.tasks.customer_service.course import course_world
from art_nb.tasks.customer_service.policy import POLICIES, READS, refused
from art_nb.tasks.customer_service.world import World


def make_server(world: World, write: bool = False) -> Any:
    """An `mcp.server.Server` of the world's tools; the policy is its instructions.

    write: offers also those that change the data. Raises: ImportError without the package `mcp`.
    """
    from mcp import types
    from mcp.server import Server

    offered = [tool["function"] for tool in world.tools if write or tool["function"]["name"] in READS]

    async def list_tools(context: Any, params: Any) -> Any:
        tools = [
            types.Tool(
                name=tool["name"], description=tool["description"], input_schema=tool["parameters"],
                annotations=types.ToolAnnotations(read_only_hint=tool["name"] in READS),
            )
            for tool in offered
        ]  # fmt: skip
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Any, params: Any) -> Any:
        allowed = params.name in {tool["name"] for tool in offered}
        answer = world.call(params.name, params.arguments or {}) if allowed else f"Unknown action {params.name}"
        return types.CallToolResult(content=[types.TextContent(text=answer)], is_error=refused(answer))

    return Server(
        f"art_nb-{world.domain}", instructions=POLICIES[world.domain], on_list_tools=list_tools, on_call_tool=call_tool
    )


async def serve(world: World, write: bool) -> None:
    """Serves over standard input and output until the client leaves."""
    from mcp.server.stdio import stdio_server

    server = make_server(world, write)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("domain", choices=["retail", "airline"])
    parser.add_argument("--data", metavar="FOLDER", help="tau-bench's or tau2's data in place of the course's")
    parser.add_argument("--write", action="store_true", help="offer also the tools that change data")
    a = parser.parse_args()
    world = World.load(a.domain, a.data) if a.data else course_world(a.domain)
    asyncio.run(serve(world, a.write))


if __name__ == "__main__":
    main()
