"""Tool-calling episodes: schemas from typed methods, validation of calls, turns and rewards, TRL's contract, the rollout loop."""

import asyncio
import inspect
import json
import re
from typing import Literal

import pytest
from pydantic import BaseModel

from art_nb.environments import (
    MalformedCall,
    RefusedCall,
    ToolEnvironment,
    ToolEpisode,
    clean,
    parse_arguments,
    play,
    quoted,
    rollout,
    tool,
    tool_schema,
)


class Counting(ToolEpisode):
    """Count up to a target."""

    def __init__(self, target: int, max_turns: int = 5):
        super().__init__(max_turns)
        self.target, self.count = target, 0

    def first_message(self) -> str:
        return f"Count to {self.target}."

    @tool
    def add(self, number: int, times: int = 1) -> str:
        """
        Add to the count.

        Args:
            number: how much,
                at least 1.
            times: how often.
        """
        if number < 1:
            raise RefusedCall("number must be at least 1")
        self.count += number * times
        return f"The count is {self.count}."

    @tool
    def stop(self) -> str:
        """Stop counting."""
        self.ended_by = "stopped"
        return "Stopped."

    def progress(self) -> float:
        return min(1.0, self.count / self.target)

    def reward(self) -> float:
        return float(self.count == self.target)

    def metrics(self) -> dict[str, float]:
        return {"count": float(self.count)}


class CountingEnvironment(ToolEnvironment, episode=Counting):
    def reset(self, target: int = 3, **row) -> str:
        self.episode = Counting(target)
        return self.episode.first_message()


class Fixed(Counting):
    """Inherits its tools, and overrides one."""

    @tool
    def add(self, times: int) -> str:
        """Add one.

        Args:
            times: how often.
        """
        self.count += times
        return "Added."


class ScriptedClient:
    """Answers with these lists of tool calls, one after another, and keeps the requests."""

    def __init__(self, *answers):
        self.answers, self.requests = iter(answers), []
        self.chat = self.completions = self

    async def create(self, **request):
        from openai.types.chat import ChatCompletion

        self.requests.append(request)
        calls = [
            {"id": f"{len(self.requests)}.{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(next(self.answers))
        ]
        message = {"role": "assistant", "content": None if calls else "done", "tool_calls": calls or None}
        choice = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message}
        return ChatCompletion.model_validate(
            {"id": "1", "created": 1, "model": request["model"], "object": "chat.completion", "choices": [choice]}
        )


def typed(self, text: str, some: list[str], share: float, yes: bool, colour: Literal["red", "blue"] = "red") -> str:
    """
    Take values.

    With a second paragraph.

    Args:
        text: any: text.
        some: a list
            on two lines.
        share: a share.
        yes: whether.
        colour: one of two.

    Returns:
        A text.
    """
    return ""


def test_schemas_equal_those_of_transformers():
    get_json_schema = pytest.importorskip("transformers.utils").get_json_schema
    environment = CountingEnvironment()
    for bound, schema in zip((environment.add, environment.stop), Counting.tools, strict=True):
        assert json.dumps(get_json_schema(bound)) == json.dumps(schema)
    derived = get_json_schema(typed)
    del derived["function"]["return"]["description"]
    schema = tool_schema(typed)
    assert schema == derived
    assert list(schema["function"]["parameters"]["properties"]["some"]) == ["type", "items", "description"]


def test_a_schema_refers_to_nothing_outside_the_parameter():
    class Place(BaseModel):
        city: str

    def visit(place: Place, more: list[Place]) -> str:
        """Go.

        Args:
            place: Where.
            more: And then.
        """

    visit.__annotations__ = {"place": Place, "more": list[Place], "return": str}
    schema = tool_schema(visit)
    assert "$" not in json.dumps(schema)
    assert parse_arguments([schema], "visit", '{"place": {"city": "Oslo"}, "more": [{"city": "Rome"}]}')["more"] == [{"city": "Rome"}]
    with pytest.raises(MalformedCall, match="more must be"):
        parse_arguments([schema], "visit", '{"place": {"city": "Oslo"}, "more": [{"city": 3}]}')


def test_a_parameter_needs_a_type_and_a_description():
    def untyped(self, number) -> str:
        """Add.

        Args:
            number: how much.
        """

    def undescribed(self, number: int) -> str:
        """Add."""

    with pytest.raises(TypeError, match="parameter number of the tool untyped has no type hint"):
        tool(untyped)
    with pytest.raises(ValueError, match="parameter number of the tool undescribed has no description"):
        tool(undescribed)


def test_the_tools_of_a_class_are_its_decorated_methods_sorted_by_name():
    assert [schema["function"]["name"] for schema in Counting.tools] == ["add", "stop"]
    assert list(Fixed.tools[0]["function"]["parameters"]["properties"]) == ["times"] and Fixed.tools[1] == Counting.tools[1]
    episode = Fixed(3)
    assert (episode.call("add", {"times": 2}), episode.call("stop", None), episode.count) == ("Added.", "Stopped.", 2)


TYPED = [tool_schema(typed), tool_schema(Counting.add)]
FITTING = {"text": "a", "some": ["b"], "share": 0.5, "yes": True}


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "message"),
    [
        (None, None, "no call", "every turn must call a tool"),
        ("drop", "{}", "unknown tool", 'there is no tool "drop"; the tools are typed, add'),
        ("typed", "{", "bad arguments", "the arguments are not JSON"),
        ("typed", "[" * 100_000, "bad arguments", "the arguments are not JSON"),
        ("typed", '{"share": NaN}', "bad arguments", "the arguments are not JSON"),
        ("typed", "7", "bad arguments", "the arguments must be a JSON object"),
        ("typed", None, "bad arguments", "the arguments must be a JSON object"),
        ("typed", {"other": 1}, "bad arguments", 'typed has no argument "other"'),
        ("typed", {"text": 1}, "bad arguments", "text must be a string"),
        ("typed", {"some": "b"}, "bad arguments", "some must be a list of strings"),
        ("typed", {"some": [1]}, "bad arguments", "some must be a list of strings"),
        ("typed", {"share": "0.5"}, "bad arguments", "share must be a number"),
        ("typed", {"yes": 1}, "bad arguments", "yes must be true or false"),
        ("typed", {"colour": "green"}, "bad arguments", "colour must be one of red, blue"),
        ("typed", {"text": "a", "yes": True}, "bad arguments", "typed needs some and share"),
        ("add", '{"number": true}', "bad arguments", "number must be an integer"),
        ("add", '{"number": 3.0}', "bad arguments", "number must be an integer"),
    ],
)
def test_malformed_calls(name, arguments, kind, message):
    with pytest.raises(MalformedCall) as error:
        parse_arguments(TYPED, name, arguments)
    assert (error.value.kind, str(error.value)) == (kind, message)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array", "items": {"type": "integer"}}, ["a"]), ({"type": "integer", "minimum": 1}, 0), ({"type": "string"}, 1),
        ({"type": "array", "items": {"type": "string"}, "minItems": 1}, []),
    ],
)
def test_the_message_describes_what_a_value_of_the_right_type_violates(schema, value):
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    with pytest.raises(MalformedCall) as error:
        parse_arguments([{"type": "function", "function": {"name": "f", "parameters": parameters}}], "f", {"x": value})
    expected = "a string" if schema == {"type": "string"} else f"valid under {json.dumps(schema)}"
    assert str(error.value) == f"x must be {expected}"


def test_a_schema_may_be_a_union_of_types_or_have_a_pattern_that_only_other_languages_know():
    letters = {"type": "string", "pattern": "^\\p{L}+$"}
    properties = {
        "union": {"type": ["string", "null"]}, "word": letters, "words": {"type": "array", "items": letters},
        "code": {"type": "string", "pattern": "^[A-Z]+$"}, "named": {"patternProperties": {"^\\p{L}": {}}, "additionalProperties": False},
    }  # fmt: skip
    schema = {"type": "function", "function": {"name": "spell", "parameters": {"type": "object", "properties": properties}}}
    fitting = {"union": None, "word": "été", "words": ["a"], "code": "A", "named": {"a": 1}}
    assert parse_arguments([schema], "spell", fitting) == fitting
    for wrong in ({"union": 3}, {"word": 3}, {"words": [3]}, {"code": "a"}):
        (name,) = wrong
        with pytest.raises(MalformedCall, match=re.escape(f"{name} must be ")):
            parse_arguments([schema], "spell", wrong)


def test_fitting_arguments_are_returned():
    assert parse_arguments(TYPED, "typed", json.dumps(FITTING)) == parse_arguments(TYPED, "typed", FITTING) == FITTING
    assert parse_arguments(Counting.tools, "stop", "") == parse_arguments(Counting.tools, "stop", None) == {}


def test_an_episode_counts_turns_and_rewards_and_keeps_a_transcript():
    episode = Counting(4)
    assert episode.call("add", '{"number": 1}') == "The count is 1."
    assert episode.call("add", {"number": 0}) == "Refused: number must be at least 1."
    assert episode.add(3) == "The count is 4." and not episode.over
    assert episode.call("stop", {}) == "Stopped." and episode.ended_by == "stopped"
    assert episode.call("add", {"number": 1}) == "The episode is over." and episode.turns == 4 and episode.refused == 1
    assert episode.turn_rewards == [0.25, 0.0, 0.75, 0.0] and episode.reward() == 1
    assert [(name, arguments) for name, arguments, _ in episode.transcript] == [
        ("add", '{"number": 1}'), ("add", {"number": 0}), ("add", {"number": 3}), ("stop", {}), ("add", {"number": 1}),
    ]  # fmt: skip


def test_turns_run_out_and_malformed_calls_end_the_episode():
    episode = Counting(4, max_turns=2)
    episode.add(1)
    assert episode.add(1) == "The count is 2." and episode.ended_by == "turns"
    episode = Counting(4, max_turns=1)
    episode.stop()
    assert episode.ended_by == "stopped"
    for call, fault in (((None, None), "no call"), (("sub", {}), "unknown tool"), (("add", {}), "bad arguments")):
        episode = Counting(4)
        assert episode.call(*call).startswith("Malformed: ") and episode.call(*call) == "The episode is over."
        assert (episode.ended_by, episode.fault, episode.turns) == ("malformed", fault, 1)
    episode = Counting(4)
    for name in ("__init__", "reward", "call"):
        assert episode.call(name, {}).startswith(("Malformed: there is no tool", "The episode is over."))


def test_a_transcript_becomes_a_trajectory():
    def player(episode):
        episode.call("add", {"number": 2})
        episode.call("add", "{")

    trajectory = play(player, Counting(4)).trajectory(seed=1)
    assert trajectory.messages() == [
        {"role": "user", "content": "Count to 4."},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"number": 2}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "The count is 2."},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "call_2", "type": "function", "function": {"name": "add", "arguments": "{"}}]},
        {"role": "tool", "tool_call_id": "call_2", "content": "Malformed: the arguments are not JSON. The episode is over."},
    ]  # fmt: skip
    assert (trajectory.reward, trajectory.metrics, trajectory.metadata) == (0.0, {"count": 2.0}, {"seed": 1})
    stopped = Counting(4)
    stopped.call("stop", None)
    (call,) = stopped.trajectory().messages()[1]["tool_calls"]
    assert parse_arguments(Counting.tools, **call["function"]) == json.loads(call["function"]["arguments"]) == {}
    talker = Counting(4)
    talker.call(None, None)
    assert talker.trajectory().messages()[-1] == {"role": "assistant", "content": "I give up."}


def test_an_environment_has_what_trl_looks_for():
    """As TRL's trainer lists them: functions of the class, without `reset`, `get_reward` and underscores."""
    found = [name for name, _ in inspect.getmembers(CountingEnvironment, inspect.isfunction) if not name.startswith("_")]
    assert found == ["add", "get_reward", "reset", "stop"]
    environment = CountingEnvironment()
    assert environment.reset(target=4, prompt=[]) == "Count to 4."
    assert environment.add(2) == "The count is 2." and environment.add(number=1, times=2) == "The count is 4."
    with pytest.raises(TypeError):
        environment.add(2, other=1)
    assert not environment.episode.over and environment.get_reward() == 1
    assert environment.add("x").startswith("Malformed: number must be an integer") and environment.stop() == "The episode is over."


def test_a_rollout_plays_an_episode_to_its_end():
    client = ScriptedClient([("add", '{"number": 1}'), ("add", '{"number": 0}')], [("add", '{"number": 1}')], [("stop", "{}")])
    episode = Counting(4)
    trajectory = asyncio.run(
        rollout(
            client, episode, model="m", metadata={"seed": 1}, turn_rewards=True, temperature=0.5, max_tokens=9
        )
    )
    first, *_ = client.requests
    assert first == {
        "model": "m", "messages": [{"role": "user", "content": "Count to 4."}], "tools": Counting.tools,
        "temperature": 0.5, "max_tokens": 9,
    }  # fmt: skip
    assert [message["role"] for message in client.requests[2]["messages"]] == ["user", "assistant", "tool", "tool", "assistant", "tool"]
    assert [m["tool_call_id"] for m in trajectory.messages() if m["role"] == "tool"] == ["1.0", "1.1", "2.0", "3.0"]
    assert trajectory.turn_rewards == [0.25, 0.25, 0.0] and trajectory.reward == 0 and trajectory.metrics == {"count": 2.0}
    assert trajectory.metadata == {"seed": 1} and trajectory.tools == Counting.tools


def test_a_rollout_without_a_call_is_malformed_and_calls_after_the_end_are_answered():
    episode = Counting(4)
    trajectory = asyncio.run(rollout(ScriptedClient([]), episode, model="m"))
    assert episode.fault == "no call" and trajectory.messages()[-1]["content"] == "done" and trajectory.turn_rewards is None
    trajectory = asyncio.run(rollout(ScriptedClient([("stop", ""), ("add", "{}")]), Counting(4), model="m", tools=TYPED))
    assert trajectory.messages()[-1]["content"] == "The episode is over." and trajectory.tools == TYPED


def test_what_a_model_wrote_is_made_safe_to_show_and_store():
    assert quoted("a\nb\ud800" + "c" * 50) == '"a\\nb?' + "c" * 36 + '..."'
    assert clean("a\0b\udfff") == "a b?"
