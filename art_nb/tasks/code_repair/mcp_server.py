"""The tools of one repair as an MCP server on standard input and output: `python -m art_nb.tasks.code_repair.mcp_server
PROBLEM`.

Any MCP client (an editor, another agent) can then repair the problem. Needs the extra `mcp`. Source:
https://modelcontextprotocol.io; the MCPServer of its Python SDK.
"""

from __future__ import annotations

import argparse
from typing import Any

from art_nb.tasks.code_repair.environment import TOOLS, CodeRepairEnvironment
from art_nb.tasks.code_repair.problems import load_problems


def server(problem: str, **options: Any) -> Any:
    """An MCP server whose tools are those of the environment, and whose instructions are the problem's first message.

    options: of CodeRepairEnvironment. Raises: KeyError for an unknown problem.
    """
    from mcp.server.mcpserver import MCPServer

    environment = CodeRepairEnvironment(**options)
    made = MCPServer("code_repair", instructions=environment.reset(problem))
    for tool in TOOLS:
        made.add_tool(getattr(environment, tool["function"]["name"]), description=tool["function"]["description"])
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problem", help="its id, such as count_vowels-0")
    given = parser.parse_args()
    if given.problem not in {problem.id for problem in load_problems()}:
        parser.error(f"no problem {given.problem!r}; ids are those of data/code_repair, such as count_vowels-0")
    server(given.problem).run()
