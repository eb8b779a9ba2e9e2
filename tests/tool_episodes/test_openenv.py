"""OpenEnv: servers of others played here, and our environments played by its own client, with the package itself."""

import asyncio
import time
from typing import Literal

import httpx
import pytest
from own_environments import own_environments
from scripted_client import ScriptedClient
from serving_app import serving_app

from art_nb.environments import BrokenEnvironment, environment_tools, rollout_environment
from art_nb.environments.adapters.openenv import openenv_environment
from art_nb.environments.adapters.to_openenv import openenv_app

pytest.importorskip(
    "openenv", reason="openenv 0.10 needs mcp below 2, which the extra mcp excludes: install it in an environment of its own"
)
from openenv.core import GenericEnvClient  # noqa: E402
from openenv.core.env_server import create_app  # noqa: E402
from openenv.core.env_server.interfaces import Environment  # noqa: E402
from openenv.core.env_server.mcp_environment import MCPEnvironment  # noqa: E402
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation  # noqa: E402
from openenv.core.env_server.types import Action, Observation, State  # noqa: E402

OWN = own_environments()


class Guess(Action):
    number: int
    mood: Literal["calm", "wild"] = "calm"


class Heard(Observation):
    text: str = ""


class Guessing(Environment):
    """As OpenEnv's documentation writes one: guess a number within four tries."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **row):
        self.secret, self.tries = seed or 0, 0
        return Heard(text="Guess a number.")

    def step(self, action, timeout_s=None, **row):
        self.tries += 1
        right = action.number == self.secret
        late = self.tries >= 4 and not right
        hint = "right" if right else "higher" if action.number < self.secret else "lower"
        return Heard(text=f"{hint} ({action.mood})", done=right or late, reward=float(right) - 0.1, metadata={"truncated": late})

    @property
    def state(self):
        return State()


def by_tools():
    """A second server, which acts by MCP tools."""
    from fastmcp import FastMCP

    class Notes(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            server, self.notes = FastMCP("notes"), []

            @server.tool
            def write(text: str) -> str:
                """Write a note."""
                self.notes.append(text)
                return f"{len(self.notes)} notes"

            super().__init__(server)

        def reset(self, seed=None, episode_id=None, **row):
            self.notes.clear()
            return Observation(metadata={"ready": True})

        def _step_impl(self, action, timeout_s=None, **row):
            return Observation()

        @property
        def state(self):
            return State()

    return create_app(Notes, CallToolAction, CallToolObservation, max_concurrent_envs=8)


@pytest.fixture(scope="module")
def guessing():
    with serving_app(create_app(Guessing, Guess, Heard, max_concurrent_envs=16)) as url:
        yield url


def play(environment, *answers, **options):
    return asyncio.run(rollout_environment(ScriptedClient(*answers), environment, model="m", turn_rewards=True, **options))


def test_an_episode_at_a_server(guessing):
    guesses = [("step", {"number": 5})], [("step", {"number": 9, "mood": "wild"})], [("step", {"number": 7})]
    trajectory = play(openenv_environment(guessing), *guesses, row={"seed": 7})
    texts = [m["content"] for m in trajectory.messages()]
    assert texts[0] == "Guess a number." and texts[2::2] == ["higher (calm)", "lower (wild)", "right (calm)"]
    assert trajectory.reward == pytest.approx(0.7) and trajectory.turn_rewards == pytest.approx([-0.1, -0.1, 0.9])
    assert trajectory.metrics["terminated"] and not trajectory.metrics["truncated"] and trajectory.metrics["steps"] == 3
    parameters = environment_tools(openenv_environment(guessing)())["step"]["function"]["parameters"]
    assert set(parameters["properties"]) == {"number", "mood"} and parameters["required"] == ["number"]


def test_truncated_is_not_terminated(guessing):
    trajectory = play(openenv_environment(guessing), [("step", {"number": 1})], row={"seed": 7})
    assert trajectory.metrics["truncated"] and not trajectory.metrics["terminated"] and trajectory.metrics["turns"] == 4


def test_each_rollout_has_a_session_of_its_own(guessing):
    environment = openenv_environment(guessing)

    async def main():
        rollouts = [
            rollout_environment(ScriptedClient([("step", {"number": 0})], [("step", {"number": n})]), environment, model="m", row={"seed": n})
            for n in range(1, 9)
        ]
        return await asyncio.gather(*rollouts)

    assert [t.metrics["steps"] for t in asyncio.run(main())] == [2] * 8


def test_a_server_that_acts_by_tools():
    with serving_app(by_tools()) as url:
        trajectory = play(openenv_environment(url), [("write", {"text": "a"})], [("write", {"text": "b"}), ("read", {})], "done")
    texts = [m["content"] for m in trajectory.messages()]
    assert "1 notes" in texts[2] and "2 notes" in texts[4] and "there is no tool" in texts[5]


def test_a_server_that_stops_costs_the_rollout():
    with pytest.raises(httpx.HTTPError):
        openenv_environment("http://127.0.0.1:9")
    with serving_app(create_app(Guessing, Guess, Heard, max_concurrent_envs=4)) as url:
        environment = openenv_environment(url, connect_timeout_s=2)
    with pytest.raises(BrokenEnvironment, match="OpenEnvEnvironment.reset raised ConnectionError"):
        play(environment, "hello")


@pytest.mark.parametrize("during_a_step", [True, False])
def test_a_connection_that_drops_costs_the_rollout(during_a_step):
    """OpenEnv's client would reconnect for the next step: to a session that nobody has reset."""
    inner = create_app(Guessing, Guess, Heard, max_concurrent_envs=4)

    async def dropping(scope, receive, send):
        async def receive_or_drop():
            message = await receive()
            if during_a_step and '"number"' in (message.get("text") or ""):
                await send({"type": "websocket.close", "code": 1011})
            return message

        async def send_and_drop(message):
            await send(message)
            if not during_a_step and "higher" in (message.get("text") or ""):
                await send({"type": "websocket.close", "code": 1011})

        await inner(scope, *((receive_or_drop, send_and_drop) if scope["type"] == "websocket" else (receive, send)))

    with serving_app(dropping) as url, pytest.raises(BrokenEnvironment, match="the OpenEnv server failed during step"):
        play(openenv_environment(url), [("step", {"number": 1})], row={"seed": 7}, max_turns=3)


@pytest.mark.parametrize("name", OWN)
def test_openenvs_client_plays_our_environments(name):
    """Its own client gets what the environment's methods return, and in sum the environment's reward."""
    own = OWN[name]
    expected, played = own.played()
    with serving_app(openenv_app(own.factory)) as url, GenericEnvClient(base_url=url).sync() as client:
        tools = client.step({"type": "list_tools"}).observation["tools"]
        results = [client.reset(**own.row)]
        results += [client.step({"type": "call_tool", "tool_name": tool, "arguments": arguments}) for tool, arguments in own.calls]
    assert [result.observation["result"] for result in results] == expected
    assert results[-1].done == played.over and not results[0].done
    if played.over:
        assert sum(result.reward for result in results) == pytest.approx(played.get_reward())
    assert {tool["name"]: tool["input_schema"] for tool in tools} == {
        n: s["function"]["parameters"] for n, s in environment_tools(own.factory()).items()
    }


def test_a_session_awaits_async_tools_and_leaves_its_environment():
    left, rooms = [], []  # the server also makes a room to describe it

    class Room:
        def __enter__(self):
            self.light = "on"
            rooms.append(self)

        def reset(self, **row):
            return f"The light is {self.light}."

        async def look(self) -> str:
            """Look around."""
            await asyncio.sleep(0)
            return "a door"

        def get_reward(self):
            return 0.0

        def __exit__(self, *error):
            left.append(self)

    with serving_app(openenv_app(Room)) as url, GenericEnvClient(base_url=url).sync() as client:
        assert client.reset().observation["result"] == "The light is on."
        step = client.step({"type": "call_tool", "tool_name": "look", "arguments": {}})
        assert step.observation["result"] == "a door" and rooms[-1] not in left
        client.close()
        until = time.monotonic() + 10
        while rooms[-1] not in left:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_our_environments_served_by_openenv_are_played_here_again():
    own = OWN["email_search"]
    with serving_app(openenv_app(own.factory)) as url:
        trajectory = play(openenv_environment(url), *([call] for call in own.calls), row=own.row)
    expected, played = own.played()
    assert [m["content"] for m in trajectory.messages() if m["role"] != "assistant"] == expected
    assert trajectory.reward == pytest.approx(played.get_reward())
