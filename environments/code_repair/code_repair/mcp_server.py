"""Serve the tools of one repair over MCP on standard input and output: `python -m code_repair.mcp_server PROBLEM`.

Any MCP client (an editor, another agent) can then repair the problem. Needs the extra `mcp`. Source:
https://modelcontextprotocol.io; the MCPServer of its Python SDK.
"""

from __future__ import annotations

import argparse
from typing import Any

from code_repair.environment import TOOLS, CodeRepairEnvironment
from code_repair.problems import load_problems


def server(problem: str, **options: Any) -> Any:
    """Return an MCP server with the tools of the environment; its instructions are the problem's first message.

    options: of CodeRepairEnvironment. Raises: ValueError for an unknown problem.
    """
    from mcp.server.mcpserver import MCPServer

    environment = CodeRepairEnvironment(**options)
    result = MCPServer("code_repair", instructions=environment.reset(problem))
    for tool in TOOLS:
        result.add_tool(getattr(environment, tool["function"]["name"]), description=tool["function"]["description"])
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problem", help="id of a problem, such as count_vowels-0")
    given = parser.parse_args()
    if given.problem not in {problem.id for problem in load_problems()}:
        parser.error(f"unknown problem {given.problem!r}; pass the id of a problem, such as count_vowels-0")
    server(given.problem).run()
