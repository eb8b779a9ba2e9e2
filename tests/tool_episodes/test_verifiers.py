"""The adapter of verifiers, with the package itself, in an environment of its own."""

import asyncio
import os
import subprocess
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest
from own_environments import own_environments
from scripted_client import ScriptedClient

from art_nb.environments import environment_tools, rollout_environment

pytest.importorskip("verifiers.v1", reason="verifiers 0.4 pins mcp 2.0.0, which the lock excludes: install it in an environment of its own")

import verifiers.v1 as vf  # noqa: E402
from verifiers.v1.utils.loaders import taskset_class  # noqa: E402
from verifiers_tasksets import install  # noqa: E402

from art_nb.environments.adapters.to_verifiers import EnvironmentTask, EnvironmentTaskset, EnvironmentTools  # noqa: E402
from art_nb.environments.adapters.verifiers import verifiers_environment  # noqa: E402

install()
OWN = own_environments()


def play(environment, *answers, **options):
    return asyncio.run(rollout_environment(ScriptedClient(*answers), environment, model="m", **options))


def test_a_task_answered_in_text():
    environment = verifiers_environment("sums_taskset", tasks=3)
    right, wrong = (play(environment, answer, row={"index": 2}, tools=None) for answer in (" 3 ", "four"))
    assert right.messages()[0]["content"] == "Answer with a number.\n\nWhat is 2 + 1?"
    assert right.reward == 2.0 and wrong.reward == 0.0 and wrong.metrics["length"] == 4 and right.metrics["exact"] == 1.0
    with pytest.raises(Exception, match="the taskset has no task 3"):
        play(environment, "4", row={"index": 3})


def test_a_task_with_tools_and_a_stop():
    environment = verifiers_environment("vault_taskset")
    assert list(environment_tools(environment())) == ["answer", "vault_turn"]
    opened = play(environment, [("vault_turn", {"digit": 1})], [("vault_turn", {"digit": 5})], row={"index": 1})
    assert [m["content"] for m in opened.messages() if m["role"] == "tool"] == ["closed", "open"]
    assert opened.reward == 1.0 and opened.metrics["turns"] == 2 and not opened.metrics["out_of_turns"]
    shut = play(environment, [("vault_turn", {"digit": 1})], "I give up.", row={"index": 1})
    assert shut.reward == 0.0 and shut.metrics["turns"] == 2


@pytest.mark.parametrize(
    ("taskset", "message"),
    [
        ("box_taskset", "BoxTask needs a container: run it with verifiers"),
        ("run_taskset", "`RunTask.solved` needs a verifiers runtime: run it with verifiers"),
        ("ask_taskset", "`AskTask.asked` takes a request or response: run it with verifiers"),
        ("bare_taskset", "two tools are called answer"),
        ("twice_taskset", "two tools are called vault_turn"),
    ],
)
def test_what_cannot_be_played_here_is_refused(taskset, message):
    with pytest.raises(ValueError, match=message):
        verifiers_environment(taskset)


@pytest.mark.parametrize("name", OWN)
def test_our_environments_are_tasksets(name):
    """Loaded as verifiers loads them, their tools over MCP, their reward from the trace: as without verifiers."""
    row, calls, taskset = OWN[name].row, OWN[name].calls, taskset_class(name)
    assert next(iter(taskset(vf.TasksetConfig(id=name)))).data.row
    module = ModuleType(f"one_row_of_{name}")
    module.__dict__[taskset.__name__] = type(taskset.__name__, (taskset,), {"rows": (row,)})
    module.__dict__.update(__all__=[taskset.__name__], __spec__=__spec__)
    sys.modules[module.__name__] = module
    own = taskset.task_type().tools.environment_factory()
    first, observations = own.reset(**row), []
    for tool, arguments in calls:
        observations += [getattr(own, tool)(**arguments)] if not own.over else []
    trajectory = play(verifiers_environment(module.__name__), *([call] for call in calls), "I am done.")
    assert trajectory.messages()[0]["content"] == first
    assert [m["content"] for m in trajectory.messages() if m["role"] == "tool"] == observations
    assert trajectory.reward == pytest.approx(own.get_reward()) and observations


def test_calls_that_the_server_repairs_or_refuses_are_scored_as_they_were_played():
    """verifiers' server ignores an extra argument, and refuses a direction that is no text before the tool sees it."""
    taskset = taskset_class("game_2048")
    task = next(iter(taskset(vf.TasksetConfig(id="game_2048"))))
    own = taskset.task_type().tools.environment_factory()
    own.reset(**task.data.row)
    own.move("left")
    calls = [SimpleNamespace(name="move", arguments=text) for text in ('{"direction": "left", "why": "x"}', '{"direction": 3}', "[")]
    trace = SimpleNamespace(assistant_messages=[SimpleNamespace(tool_calls=[call]) for call in calls])
    assert asyncio.run(task.reward(trace)) == pytest.approx(own.get_reward()) != 0
    assert not asyncio.run(task.over(trace))


def test_a_replayed_environment_is_entered_and_left_and_its_reward_awaited():
    log = []

    class Room:
        def __enter__(self):
            log.append("enter")

        def __exit__(self, *error):
            log.append("exit")

        def reset(self, light):
            assert log[-1] == "enter"
            return f"The light is {light}."

        def look(self) -> str:
            """Look around."""
            log.append("look")
            return "a door"

        async def get_reward(self):
            assert log[-1] == "look"
            return 0.5

    class RoomTask(EnvironmentTask):
        tools = type("RoomTools", (EnvironmentTools,), {"environment_factory": Room})

    class Rooms(EnvironmentTaskset, vf.Taskset[RoomTask, vf.TasksetConfig]):
        rows = ({"light": "on"},)

    (task,) = Rooms(vf.TasksetConfig(id="rooms"))
    trace = SimpleNamespace(assistant_messages=[SimpleNamespace(tool_calls=[SimpleNamespace(name="look", arguments="{}")])])
    assert task.data.prompt == "The light is on." and asyncio.run(task.reward(trace)) == 0.5
    assert log == ["enter", "exit", "enter", "look", "exit"]


@pytest.mark.parametrize("name", OWN)
def test_our_tools_start_in_a_process_of_their_own(name, tmp_path):
    """As verifiers' command vf-eval starts them: `python -m` their module, which writes the port that it listens on."""
    import mcp

    tools, file = taskset_class(name).task_type().tools, tmp_path / "port"

    async def listed(port: str) -> list[str]:
        for attempt in range(100):  # the port is written before the server accepts
            try:
                async with mcp.Client(f"http://127.0.0.1:{port}/mcp") as client:
                    return [tool.name for tool in (await client.list_tools()).tools]
            except Exception:
                if attempt == 99:
                    raise
                await asyncio.sleep(0.2)

    settings = {"VF_CONFIG": "{}", "MCP_PORT_FILE": str(file), "VF_STATE_URL": "", "VF_STATE_SECRET": ""}
    with subprocess.Popen([sys.executable, "-m", tools.__module__], env={**os.environ, **settings}) as server:
        try:
            while not (file.exists() and file.read_text()):
                assert server.poll() is None, "the process ended"
                time.sleep(0.1)
            assert asyncio.run(listed(file.read_text())) == list(environment_tools(tools.environment_factory()))
        finally:
            server.kill()
