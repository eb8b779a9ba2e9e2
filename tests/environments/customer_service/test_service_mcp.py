"""The MCP server, with the protocol's client. tests/tool_episodes/test_mcp.py starts it as a subprocess."""

import asyncio

import pytest

from customer_service import course_tasks, course_world
from customer_service.mcp_server import make_server
from customer_service.policy import POLICIES, READ_ONLY_TOOLS

mcp = pytest.importorskip("mcp", reason="needs the extra mcp")


def exchange(server, *calls):
    """Return the tools that a client sees, (text, is_error) of each call, and the instructions."""

    async def run():
        async with mcp.Client(server) as client:
            tools = (await client.list_tools()).tools
            answers = [await client.call_tool(name, arguments) for name, arguments in calls]
            return tools, [(answer.content[0].text, answer.is_error) for answer in answers], client.instructions

    return asyncio.run(run())


@pytest.mark.parametrize("domain", ["retail", "airline"])
def test_only_reading_tools_are_offered_by_default(domain):
    world = course_world(domain)
    task = next(task for task in course_tasks(domain, "test") if task.actions)
    before = world.digest()
    tools, ((text, is_error),), policy = exchange(make_server(world), task.actions[0])
    assert {tool.name for tool in tools} == READ_ONLY_TOOLS & {tool["function"]["name"] for tool in world.tools}
    assert is_error and text == f"Unknown action {task.actions[0].name}" and world.digest() == before and policy == POLICIES[domain]
    tools, ((text, is_error),), _ = exchange(make_server(world, write=True), task.actions[0])
    assert {tool.name: tool.input_schema for tool in tools} == {t["function"]["name"]: t["function"]["parameters"] for t in world.tools}
    assert {tool.name for tool in tools if tool.annotations.read_only_hint} == READ_ONLY_TOOLS & {tool.name for tool in tools}
    assert not is_error and world.digest() == task.digest != before
