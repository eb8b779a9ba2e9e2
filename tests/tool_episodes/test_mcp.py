"""The adapter of MCP servers, with the protocol's own servers: in process, as a subprocess, and over HTTP."""

import asyncio
import json
import sys
from typing import Literal

import pytest
from own_environments import own_environments
from scripted_client import ScriptedClient
from serving_app import serving_app

from art_nb.environments import BrokenEnvironment, environment_tools, rollout_environment
from art_nb.environments.adapters.mcp import mcp_environment
from art_nb.environments.adapters.to_mcp import mcp_server
from customer_service import course_tasks, course_world
from customer_service.mcp_server import make_server

mcp = pytest.importorskip("mcp", reason="needs the extra mcp")

from mcp.server.mcpserver import Image, MCPServer  # noqa: E402
from pydantic import BaseModel  # noqa: E402

OWN = own_environments()


class Place(BaseModel):
    city: str
    days: int = 1


def weather():
    server = MCPServer("weather", instructions="You report the weather.")

    @server.tool()
    def forecast(place: Place, unit: Literal["C", "F"] = "C") -> str:
        """Return the forecast."""
        if place.city == "Atlantis":
            raise ValueError("no such city")
        return f"{place.city}: 20 {unit} for {place.days} days"

    @server.tool()
    def photo() -> Image:
        """Return a photo."""
        return Image(data=b"x", format="png")

    return server


def play(environment, *answers, **options):
    return asyncio.run(rollout_environment(ScriptedClient(*answers), environment, model="m", **options))


def test_an_episode_at_a_server():
    environment = mcp_environment(weather, reward=lambda calls: float("20 C" in calls[-1][1]["summary"]))
    ask = [("forecast", {"place": {"city": "Rome", "days": 2}})]
    trajectory = play(environment, ask, [("complete_task", {"summary": "20 C"})], row={"task": "Weather in Rome?"})
    texts = [m["content"] for m in trajectory.messages()]
    assert texts[0] == "You report the weather.\n\nWeather in Rome?" and texts[2] == "Rome: 20 C for 2 days"
    assert trajectory.reward == 1.0 and trajectory.metrics["completed"] and trajectory.metrics["turns"] == 2
    schema = environment_tools(environment())["forecast"]["function"]["parameters"]["properties"]
    assert schema["place"]["properties"]["city"]["type"] == "string" and schema["unit"]["enum"] == ["C", "F"]


def test_errors_of_the_server_and_malformed_calls_are_observations():
    environment = mcp_environment(weather, leave_out=["photo"])
    calls = [("forecast", {"place": {"city": "Atlantis"}}), ("forecast", {"place": {"days": 1}}), ("photo", {})]
    trajectory = play(environment, calls, "It rains.")
    _, _, refused, malformed, unknown, _ = [m["content"] for m in trajectory.messages()]
    assert "Error executing tool forecast" in refused and malformed.startswith("Malformed: place must be") and "there is no tool" in unknown
    assert trajectory.metrics["errors"] == 1 and trajectory.metrics["tool_failures"] == 2 and not trajectory.metrics["completed"]


def test_an_image_is_refused():
    with pytest.raises(BrokenEnvironment, match="the tool photo returned image: only text can be shown"):
        play(mcp_environment(weather), [("photo", {})])


def test_the_text_of_an_embedded_resource_is_shown():
    def server():
        made = MCPServer("files")
        resource = mcp.types.TextResourceContents(uri="file:///a.txt", text="its text")
        content = [mcp.types.TextContent(text="a file:"), mcp.types.EmbeddedResource(resource=resource)]
        made.add_tool(lambda: mcp.types.CallToolResult(content=content), name="fetch_file", description="Fetch a file.")
        return made

    assert play(mcp_environment(server), [("fetch_file", {})], "done").messages()[2]["content"] == "a file:\nits text"


def test_null_is_sent_for_a_required_parameter_only():
    def server():
        made = MCPServer("hotels")

        @made.tool()
        def book(days: int | None, city: str | None = "Rome") -> str:
            """Book a room."""
            return f"{city}: {days}"

        return made

    trajectory = play(mcp_environment(server), [("book", {"days": None}), ("book", {"days": 2, "city": None})], "done")
    assert [m["content"] for m in trajectory.messages() if m["role"] == "tool"] == ["Rome: None", "Rome: 2"]
    assert trajectory.metrics["errors"] == 0


def test_a_result_that_violates_the_tools_own_schema_costs_the_rollout():
    schema = {"type": "object", "properties": {"degrees": {"type": "number"}}, "required": ["degrees"]}
    tool = mcp.types.Tool(name="forecast", input_schema={"type": "object"}, output_schema=schema)

    async def list_tools(context, params):
        return mcp.ListToolsResult(tools=[tool])

    async def call_tool(context, params):
        return mcp.types.CallToolResult(content=[mcp.types.TextContent(text="hot")], structured_content={"degrees": "hot"})

    environment = mcp_environment(lambda: mcp.server.Server("weather", on_list_tools=list_tools, on_call_tool=call_tool))
    with pytest.raises(BrokenEnvironment, match="the tool forecast returned an invalid result: .*'hot' is not of type 'number'"):
        play(environment, [("forecast", {})])


def test_an_unknown_name_in_leave_out_is_refused():
    with pytest.raises(ValueError, match="leave_out: the server has no tool photos; it has forecast, photo"):
        mcp_environment(weather, leave_out=["photo", "photos"])


def test_a_tool_that_the_contract_excludes_is_refused():
    def server():
        made = MCPServer("bad")
        made.add_tool(lambda: "x", name="reset")
        return made

    with pytest.raises(ValueError, match="a tool cannot be named 'reset'"):
        mcp_environment(server)
    assert mcp_environment(server, leave_out=["reset"])


def test_names_of_tools_may_have_hyphens_and_those_of_parameters_may_not():
    made = MCPServer("issues")
    made.add_tool(lambda: "two issues", name="list-issues", description="List the issues.")
    trajectory = play(mcp_environment(lambda: made), [("list-issues", {})], "done")
    assert trajectory.messages()[2]["content"] == "two issues" and trajectory.tools[1]["function"]["name"] == "list-issues"

    for parameter in ("from", "self", "reply to"):
        schema = {"type": "object", "properties": {parameter: {"type": "string"}}}
        listed = mcp.ListToolsResult(tools=[mcp.types.Tool(name="send", description="Send.", input_schema=schema)])

        async def list_tools(context, params, listed=listed):
            return listed

        with pytest.raises(ValueError, match=f"the tool send has the invalid parameter name '{parameter}'"):
            mcp_environment(lambda list_tools=list_tools: mcp.server.Server("mails", on_list_tools=list_tools))


def test_a_server_that_changed_its_tools_costs_the_rollout():
    made = []

    def server():
        made.append(MCPServer("growing"))
        for i in range(len(made)):
            made[-1].add_tool(lambda: "x", name=f"tool_{i}", description="A tool.")
        return made[-1]

    with pytest.raises(BrokenEnvironment, match="the server's tools have changed since they were listed"):
        play(mcp_environment(server), "hello")


def test_the_tools_of_the_shop_in_a_subprocess():
    """Notebook 08's server, used as anybody's: it answers as the world does."""
    world = course_world("retail")
    user_id = course_tasks("retail", "test", 1)[0].user_id
    server = mcp.StdioServerParameters(command=sys.executable, args=["-m", "customer_service.mcp_server", "retail"])
    calls = [("get_user_details", {"user_id": user_id}), ("get_user_details", {"user_id": "x"}), ("list_all_product_types", {})]
    trajectory = play(mcp_environment(server), calls, "done")
    user, unknown, types = [m["content"] for m in trajectory.messages() if m["role"] == "tool"]
    assert user == json.dumps(world.records("users")[user_id]) and types == world.call(*calls[2])
    assert unknown == "Error: user not found" and trajectory.metrics["errors"] == 1
    names = {tool["function"]["name"] for tool in trajectory.tools}
    assert names > {"get_user_details", "complete_task"} and len(names) == len(environment_tools(mcp_environment(lambda: make_server(world))()))


def test_a_server_over_http():
    pytest.importorskip("uvicorn", reason="needs the extra server")
    with serving_app(weather().streamable_http_app()) as url:
        trajectory = play(mcp_environment(f"{url}/mcp"), [("forecast", {"place": {"city": "Oslo"}})], "done")
    assert trajectory.messages()[2]["content"] == "Oslo: 20 C for 1 days"


@pytest.mark.parametrize("name", OWN)
def test_any_client_plays_our_environments(name):
    """The protocol's own client gets what the environment's methods return."""
    own = OWN[name]
    expected, played = own.played()
    environment = own.factory()

    async def exchange():
        async with mcp.Client(mcp_server(environment, name, **own.row)) as client:
            tools = (await client.list_tools()).tools
            answers = [await client.call_tool(tool, arguments) for tool, arguments in own.calls]
            wrong = await client.call_tool(tools[0].name, {"no_such_argument": 1})
            return client.instructions, tools, answers, wrong

    instructions, tools, answers, wrong = asyncio.run(exchange())
    assert [instructions, *(answer.content[0].text for answer in answers)] == expected and not any(a.is_error for a in answers)
    assert environment.get_reward() == played.get_reward() and wrong.is_error
    assert {tool.name: tool.input_schema for tool in tools} == {n: s["function"]["parameters"] for n, s in environment_tools(environment).items()}


class Weather:
    """An environment whose tools return a dict, as JSON values may be returned, and are async."""

    def reset(self) -> None:
        self.asked = 0

    async def forecast(self, days: int) -> dict:
        """Tell the weather.

        Args:
            days: From now.
        """
        self.asked += 1
        return {"days": days, "sky": "clear"}

    def get_reward(self) -> float:
        return float(self.asked)


def test_a_served_environment_answers_as_in_a_rollout():
    """JSON in place of Python's repr; async tools are awaited, as `rollout_environment` does."""

    async def exchange():
        async with mcp.Client(mcp_server(Weather())) as client:
            return await client.call_tool("forecast", {"days": 2})

    call = [("forecast", {"days": 2})]
    expected = play(Weather, call, "done").messages()[2]["content"]
    answer = asyncio.run(exchange())
    assert answer.content[0].text == expected == '{"days": 2, "sky": "clear"}' and not answer.is_error


def test_a_column_of_a_served_environments_row_may_be_called_name():
    class Greeting(Weather):
        def reset(self, name: str) -> str:
            return f"Greet {name}."

    assert mcp_server(Greeting(), name="Ada").instructions == "Greet Ada."


def test_trl_lists_the_same_tools():
    utils = pytest.importorskip("transformers.utils")
    environment = mcp_environment(weather)
    for name, schema in environment_tools(environment()).items():
        theirs = utils.get_json_schema(getattr(environment(), name))["function"]
        ours = schema["function"]
        assert theirs["name"] == name and theirs["description"] == ours["description"]
        assert list(theirs["parameters"]["properties"]) == sorted(ours["parameters"]["properties"], key=lambda key: key not in ours["parameters"].get("required", []))
