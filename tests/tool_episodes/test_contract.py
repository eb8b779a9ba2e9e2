"""The rollout of any environment that follows TRL's contract: what the model reads, what it is paid, and what a broken environment costs."""

import asyncio
import json
import queue
import re
import threading

import pytest
import torch
from running_server import NANO
from scripted_client import ScriptedClient

import art_nb as art
from art_nb.environments import BrokenEnvironment, environment_tools, rollout_environment
from art_nb.environments.adapters.base import with_tools
from art_nb.environments.isolation import IsolatedCalls
from email_search import EmailSearch, course_mailbox, scenarios
from email_search.environment import EmailSearchEnvironment


def run(environment, *answers, **options):
    client = ScriptedClient(*answers)
    trajectory = asyncio.run(rollout_environment(client, environment, model="m", **options))
    return trajectory, client


class Counter:
    """As somebody writes it for TRL: no base class, nothing of this package."""

    def reset(self, start: int = 0, **row):
        self.count = start
        return f"The count is {start}."

    def add(self, number: int) -> str:
        """
        Add to the count.

        Args:
            number: how much.
        """
        if number > 100:
            raise ValueError("too large")
        self.count += number
        return f"The count is {self.count}."

    async def double(self) -> str:
        """Double the count."""
        await asyncio.sleep(0)
        self.count *= 2
        return f"The count is {self.count}."

    def get_reward(self) -> float:
        return float(self.count)


def test_tools_are_those_that_transformers_derives():
    utils = pytest.importorskip("transformers.utils")
    assert list(environment_tools(Counter()).values()) == [utils.get_json_schema(Counter.add), utils.get_json_schema(Counter.double)]


def test_an_array_without_a_type_of_its_items_is_an_array_for_trl():
    utils = pytest.importorskip("transformers.utils")
    parameters = {"type": "object", "properties": {"x": {"type": "array", "description": "values."}}, "required": ["x"]}
    tools = [{"function": {"name": "f", "description": "Do it.", "parameters": parameters}}]
    schema = utils.get_json_schema(with_tools(object, "Tools", tools).f)
    assert schema["function"]["parameters"]["properties"]["x"]["type"] == "array"


def test_the_schema_of_an_override_has_the_inherited_description_whatever_its_first_parameter_is_called():
    class Adding(Counter):
        def add(this, number: int) -> str:  # noqa: N805
            return str(number)

    assert environment_tools(Adding()) == environment_tools(Adding())
    assert environment_tools(Adding())["add"] == environment_tools(Counter())["add"]


@pytest.mark.parametrize("timeout", [None, 30])
def test_an_episode_of_trls_contract(timeout):
    system = {"role": "system", "content": "Count."}
    answers = [("add", {"number": 2})], [("add", {"number": 1}), ("double", {})], "done"
    trajectory, client = run(
        Counter, *answers, row={"start": 4, "other": 1}, prompt=[system, {"role": "user", "content": "Start. "}], turn_rewards=True,
        timeout=timeout, metadata={"task": 1}, temperature=0.5,
    )  # fmt: skip
    said = [(m["role"], m["content"]) for m in trajectory.messages()]
    assert said[:2] == [("system", "Count."), ("user", "Start. The count is 4.")]
    assert [text for role, text in said if role == "tool"] == ["The count is 6.", "The count is 7.", "The count is 14."]
    assert trajectory.reward == 14 and trajectory.turn_rewards == [2, 8, 0] and sum(trajectory.turn_rewards) == 14 - 4
    assert trajectory.metrics == {"turns": 3, "out_of_turns": False, "tool_failures": 0} and trajectory.metadata == {"task": 1}
    assert client.requests[0]["temperature"] == 0.5 and client.requests[0]["tools"] == trajectory.tools


@pytest.mark.parametrize("timeout", [None, 30])
def test_parameters_and_columns_of_any_name_and_tools_without_self(timeout):
    class Plot(Counter):
        def reset(self, function: str = "", **row):
            self.count = 0
            return function

        def plot(self, function: str, what: str) -> str:
            """
            Plot a function.

            Args:
                function: its formula.
                what: the colour.
            """
            return f"{function} in {what}"

        @staticmethod
        def product(a: int, b: int) -> str:
            """
            Multiply.

            Args:
                a: one number.
                b: the other.
            """
            return str(a * b)

    calls = [("plot", {"function": "sin", "what": "red"}), ("product", {"a": 6, "b": 7})]
    trajectory, _ = run(Plot, calls, "done", row={"function": "cos", "what": 1}, timeout=timeout)
    assert [m["content"] for m in trajectory.messages() if m["role"] != "assistant"] == ["cos", "sin in red", "42"]


def test_a_plain_tool_must_be_a_tool_with_one_parameter():
    for tool in ("ad", "double"):
        with pytest.raises(BrokenEnvironment, match=f"Misnamed.plain_tool is '{tool}': expected the name of a tool with one parameter"):
            run(type("Misnamed", (Counter,), {"plain_tool": tool}), "3")


def test_what_the_model_does_wrong_and_what_a_tool_raises_are_observations():
    answers = [("add", {"number": "2"}), ("subtract", {}), ("add", {"number": 101})], "done"
    trajectory, _ = run(Counter, *answers)
    *_, a, b, c, _ = [m["content"] for m in trajectory.messages()]
    assert a == "Malformed: number must be an integer" and "there is no tool" in b and c == "Error: ValueError: too large"
    assert trajectory.metrics["tool_failures"] == 3 and trajectory.reward == 0


def test_the_limit_of_turns_ends_an_episode():
    trajectory, client = run(Counter, [("add", {"number": 1})], max_turns=3)
    assert trajectory.reward == len(client.requests) == 3 and trajectory.metrics["out_of_turns"]


class Plain(Counter):
    plain_tool = "add"

    def add(self, number: str) -> str:
        """
        Add to the count.

        Args:
            number: how much.
        """
        self.count += int(number)
        return "ok"

    @property
    def over(self) -> bool:
        return self.count >= 3


def test_a_model_without_tool_calls_answers_in_text():
    trajectory, client = run(Plain, "1", "x", "2", tools=None)
    assert "tools" not in client.requests[0] and trajectory.tools is None
    texts = [m["content"] for m in trajectory.messages()]
    assert texts[1:3] == ["1", "ok"] and texts[4].startswith("Error: ValueError: invalid literal") and trajectory.reward == 3


class Described(Plain):
    def add(self, number: str) -> str:
        """
        Add to the count.

        Args:
            number: how much.
        """
        return super().add(number) + f": {self.count}"


def test_without_history_each_request_is_the_prompt_with_the_newest_observation():
    prompt = [{"role": "system", "content": "Count."}, {"role": "user", "content": "Now: "}]
    options = {"tools": None, "prompt": prompt, "row": {"start": 0}, "turn_rewards": True}
    trajectory, client = run(Described, "x", "1", "y", "z", "2", history=False, **options)
    other, with_history = run(Described, "x", "1", "y", "z", "2", **options)
    asked = [request["messages"] for request in client.requests]
    assert all(request[:-1] == prompt[:-1] and request[-1]["role"] == "user" for request in asked)
    texts = [request[-1]["content"] for request in asked]
    failed = "Error: ValueError: invalid literal for int() with base 10: "
    assert texts == [
        "Now: The count is 0.", f"Now: {failed}'x'\nThe count is 0.", "Now: ok: 1", f"Now: {failed}'y'\nok: 1",
        f"Now: {failed}'z'\nok: 1",
    ]  # fmt: skip
    assert [history.messages()[:2] for history in trajectory.histories()] == asked  # recorded as it was asked
    assert trajectory.histories()[-1].messages()[-1]["content"] == "ok: 3"
    assert [len(request["messages"]) for request in with_history.requests] == [2, 4, 6, 8, 10]
    assert (trajectory.reward, trajectory.metrics, trajectory.turn_rewards) == (other.reward, other.metrics, other.turn_rewards)
    assert trajectory.metrics["turns"] == 5 and trajectory.turn_rewards == [0, 1, 0, 0, 2]
    short, client = run(Described, "1", "1", "1", history=False, max_turns=2, **options)
    assert len(short.histories()) == len(client.requests) == 2 and short.metrics["out_of_turns"]  # no request without an answer


def test_turns_without_history_are_trained_on_as_they_were_asked():
    from transformers import AutoTokenizer

    from art_nb.training.sequences import build_sequences

    tokenizer = AutoTokenizer.from_pretrained(NANO)
    played = [run(Described, "1", "2", history=False, tools=None, row={"start": start}) for start in (0, 1)]
    sequences, _ = build_sequences([art.TrajectoryGroup([t for t, _ in played])], tokenizer, art.TrainConfig())
    asked = [request["messages"] for _, client in played for request in client.requests]
    prompts = [tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) for messages in asked]
    assert len(sequences) == len(prompts) == 4
    assert all(tokenizer.decode(s.ids).startswith(prompt + answer) for s, prompt, answer in zip(sequences, prompts, "1212", strict=True))


@pytest.mark.parametrize(("environment", "tools"), [(Plain, {}), (Plain, {"tools": [{"type": "function"}]}), (Counter, {"tools": None})])
def test_an_episode_without_history_takes_answers_in_text(environment, tools):
    with pytest.raises(ValueError, match="history=False is for answers in text: expected tools=None, and an environment with a `plain_tool`"):
        run(environment, "done", history=False, **tools)


def test_the_email_environment_gives_what_its_own_rollout_gives():
    scenario = scenarios("val", 1)[0]
    calls = [("read_email", {"message_id": scenario.sources[0]})], [
        ("return_final_answer", {"answer": scenario.answer, "sources": [scenario.sources[0]]})
    ]
    trajectory, _ = run(EmailSearchEnvironment, *calls, row={"scenario": scenario.id}, turn_rewards=True)
    search = EmailSearch(course_mailbox(), scenario)
    for ((name, arguments),) in calls:
        search.call(name, arguments)
    expected = search.trajectory()
    assert [m["content"] for m in trajectory.messages()] == [m["content"] for m in expected.messages()]
    assert trajectory.tools == expected.tools and trajectory.reward == expected.reward and trajectory.turn_rewards == search.turn_rewards
    assert expected.metrics.items() <= trajectory.metrics.items()


class InContext(Counter):
    log: list = []

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, *error):
        self.log.append("exit")


def test_a_context_manager_is_left_also_when_the_client_fails():
    class Failing(ScriptedClient):
        async def create(self, **request):
            raise OSError("no network")

    InContext.log.clear()
    with pytest.raises(OSError, match="no network"):
        asyncio.run(rollout_environment(Failing(""), InContext, model="m"))
    assert InContext.log == ["enter", "exit"]


def test_a_context_manager_that_was_not_entered_is_not_left_and_hides_no_error():
    class Failing(InContext):
        def __enter__(self):
            raise OSError("no database")

        def __exit__(self, *error):
            raise AttributeError("no connection to close")

    class Untyped(Failing):
        def __enter__(self):
            return self

        def add(self, number):
            """Add to the count."""

    for timeout in (None, 30):
        with pytest.raises(BrokenEnvironment, match="Failing.__enter__ raised OSError: no database"):
            run(Failing, "done", timeout=timeout)
        with pytest.raises(TypeError, match="parameter number of the tool add has no type hint"):
            run(Untyped, "done", timeout=timeout)


def test_a_context_manager_whose_entry_hangs_is_left_once_it_is_entered():
    released, log = threading.Event(), queue.SimpleQueue()

    def enter(self):
        released.wait()
        log.put("enter")

    with pytest.raises(BrokenEnvironment, match="Hostile.__enter__ did not return within 0.2 seconds"):
        run(hostile(__enter__=enter, __exit__=lambda self, *error: log.put("exit")), "done", timeout=0.2)
    assert log.empty()
    released.set()
    assert [log.get(timeout=10) for _ in range(2)] == ["enter", "exit"]


HUNG = threading.Event()


def hostile(**methods):
    return type("Hostile", (Counter,), methods)


def surprise(self) -> str:
    """A new tool."""
    return "boo"


def over(self) -> bool:
    """A method, where a property is expected."""
    return False


def add(self, number: int) -> str:
    """
    Add to the count.

    Args:
        number: how much.
    """
    type(self).surprise = surprise
    return "ok"


def leave(self, **row):
    raise SystemExit(3)


async def leave_async(self, **row):
    raise SystemExit(3)


async def hang_async(self, **row):
    await asyncio.sleep(3600)


async def leave_in_the_background(self, **row):
    self.task = asyncio.create_task(leave_async(self))
    await asyncio.sleep(3600)


def raising(self, **row):
    raise KeyError("seed")


BROKEN = {
    "factory": (lambda: 1 / 0, "environment_factory raised ZeroDivisionError: division by zero"),
    "reset raises": (hostile(reset=raising), "Hostile.reset raised KeyError: 'seed'"),
    "reset raises StopIteration": (hostile(reset=lambda self, **row: next(iter(()))), "Hostile.reset raised RuntimeError: StopIteration"),
    "reset exits": (hostile(reset=leave), "Hostile.reset raised SystemExit, which would end the program"),
    "reset exits, async": (hostile(reset=leave_async), "Hostile.reset raised SystemExit"),
    "a task of reset exits": (hostile(reset=leave_in_the_background), "Hostile.reset did not return within 0.2 seconds"),
    "reset hangs": (hostile(reset=lambda self, **row: HUNG.wait()), "Hostile.reset did not return within 0.2 seconds"),
    "reset hangs, async": (hostile(reset=hang_async), "Hostile.reset did not return within 0.2 seconds"),
    "bytes": (hostile(reset=lambda self, **row: b"x"), "reset of Hostile returned bytes: expected text"),
    "image": (hostile(reset=lambda self, **row: [{"type": "image", "image": ""}]), "returned an image: the model can be shown text only"),
    "no reward": (hostile(get_reward=lambda self: None), "Hostile.get_reward returned None: expected a finite number"),
    "NaN": (hostile(get_reward=lambda self: float("nan")), "Hostile.get_reward returned nan: expected a finite number"),
    "reward raises": (hostile(get_reward=raising), "Hostile.get_reward raised KeyError"),
    "two rewards": (hostile(get_reward=lambda self: torch.ones(2)), r"Hostile.get_reward returned tensor\(.*\): expected a finite number"),
    "meta tensor": (hostile(get_reward=lambda self: torch.ones(1, device="meta")), r"Hostile.get_reward returned tensor\(.*\): expected a finite number"),
    "over raises": (hostile(over=property(lambda self: self.cuont > 3)), "Hostile.over raised AttributeError: .*'cuont'"),
    "over is a method": (hostile(over=over), "Hostile.over is a method, so a tool: expected a property"),
    "tools change": (hostile(add=add), r"changed its tools during the episode \(before: add, double; now: add, double, surprise\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_environment_costs_one_rollout_with_a_clear_message(name):
    environment, message = BROKEN[name]
    answers = [("add", {"number": 1})], "done"

    async def gathered():
        rollouts = [rollout_environment(ScriptedClient(*answers), Counter, model="m") for _ in range(3)]
        broken = rollout_environment(ScriptedClient(*answers), environment, model="m", timeout=0.2)
        return await art.gather_trajectory_groups([art.TrajectoryGroup([*rollouts, broken])], max_exceptions=1)

    (group,) = asyncio.run(gathered())
    (error,) = group.exceptions
    assert error.type.endswith("BrokenEnvironment") and [t.reward for t in group.trajectories] == [1.0] * 3
    assert re.search(message, error.message)


def test_a_tool_that_hangs_costs_its_rollout():
    def wait(self):
        """Wait."""
        HUNG.wait()

    with pytest.raises(BrokenEnvironment, match="tool wait of Hostile did not return within 0.2 seconds"):
        run(hostile(wait=wait), [("wait", {})], timeout=0.2)


@pytest.mark.parametrize("cancelled", [False, True])
def test_an_environment_whose_call_hangs_is_left_when_it_returns_and_hides_no_error(cancelled):
    released, left = threading.Event(), threading.Event()

    def wait(self):
        """Wait."""
        released.wait()

    environment = hostile(wait=wait, __enter__=lambda self: self, __exit__=lambda self, *error: left.set())

    async def main():
        playing = rollout_environment(ScriptedClient([("wait", {})]), environment, model="m", timeout=30 if cancelled else 0.2)
        await asyncio.wait_for(playing, 0.2 if cancelled else 30)

    with pytest.raises(TimeoutError if cancelled else BrokenEnvironment, match=None if cancelled else "tool wait of Hostile did not"):
        asyncio.run(main())
    assert not left.is_set()
    released.set()
    assert left.wait(10)


def test_a_cancelled_rollout_leaves_its_environment_after_a_short_call():
    left = threading.Event()

    def work(self):
        """Work for a moment."""
        threading.Event().wait(0.4)

    environment = hostile(work=work, __enter__=lambda self: self, __exit__=lambda self, *error: left.set())

    async def main():
        await asyncio.wait_for(rollout_environment(ScriptedClient([("work", {})]), environment, model="m"), 0.1)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert left.is_set()


def test_a_metric_that_is_no_number_is_a_failure_of_its_rollout():
    answers = [("add", {"number": 1})], "done"
    odd = hostile(metrics=property(lambda self: {"note": "high", "level": None, "count": 1}))

    async def gathered():
        rollouts = [rollout_environment(ScriptedClient(*answers), each, model="m") for each in (Counter, odd)]
        return await art.gather_trajectories(rollouts, max_exceptions=1, pbar_desc=None)

    good, error = asyncio.run(gathered())
    assert good.reward == 1 and str(error).startswith("a rollout's metrics contain note='high', level=None: expected numbers")


def test_metrics_that_are_none_are_none():
    trajectory, _ = run(hostile(metrics=property(lambda self: None)), "done")
    assert trajectory.metrics == {"turns": 1, "out_of_turns": False, "tool_failures": 0}


def test_an_episode_has_a_turn():
    with pytest.raises(ValueError, match="max_turns is 0"):
        run(Counter, "done", max_turns=0)


@pytest.mark.parametrize("prompt", ["", "Count.", [], [{"role": "user"}], [{"role": "user", "content": None}]])
def test_a_prompt_ends_with_text(prompt):
    with pytest.raises(ValueError, match="prompt must be a list of messages, of which the last has text as its content"):
        run(Counter, "done", prompt=prompt)


def test_an_observation_in_json_has_no_unpaired_surrogate():
    odd = "caf\u00e9 \ud800"
    trajectory, _ = run(hostile(reset=lambda self, **row: {"name": odd}, get_reward=lambda self: 1), "done")
    content = trajectory.messages()[0]["content"]
    assert json.loads(content.encode()) == {"name": odd.encode("utf-8", "replace").decode()} and "\u00e9" in content


def test_a_large_observation_is_shortened_and_logged():
    trajectory, _ = run(hostile(reset=lambda self, **row: "x" * 10**7, get_reward=lambda self: 1), "done", max_observation=100)
    assert trajectory.messages()[0]["content"] == "x" * 100 + "\n[9,999,900 more characters]"
    assert trajectory.logs == ["reset of Hostile returned 10,000,000 characters; the model saw 100."]


def test_calls_of_a_rollout_share_a_thread_and_its_context():
    async def main():
        calls = IsolatedCalls(30)
        threads = {await calls.call("it", threading.get_ident) for _ in range(3)}
        calls.close()
        return threads

    (thread,) = asyncio.run(main())
    assert thread != threading.get_ident()
