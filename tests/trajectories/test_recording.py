"""Recording: a function's model calls become a trajectory to train on, also with concurrent and nested recordings."""

import asyncio
import json

import httpx
import pytest
from openai import NOT_GIVEN
from openai.types.chat import ChatCompletion
from tiny_models import make_tokenizer

import art_nb as art
from art_nb.inference.client import InProcessClient
from art_nb.inference.messages import normalize
from art_nb.training.sequences import build_sequences

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def completion(content: str | None, calls: list[dict] | None = None) -> dict:
    message = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "fake", "choices": [choice]}


async def echo(*, messages, **_) -> ChatCompletion:
    """Answer the last message. The Choice has token ids like the sampler's, one per character."""
    await asyncio.sleep(0)
    answer = ChatCompletion.model_validate(completion(f"re: {messages[-1]['content']}"))
    choice = answer.choices[0]
    parts = [m["content"] if isinstance(m, dict) else m.content for m in messages]
    choice.prompt_token_ids, choice.token_ids = ids("".join(parts)), ids(choice.message.content)
    choice.token_logprobs = [-1.0] * len(choice.token_ids)
    return answer


def ids(text: str) -> list[int]:
    return [ord(character) for character in text]


CLIENT = InProcessClient(echo, lambda: ["fake"])


async def say(messages: list, text: str, client=CLIENT, **options):
    """Take a turn like an agent that does not know about trajectories."""
    messages.append({"role": "user", "content": text})
    answer = await client.chat.completions.create(model="fake", messages=messages, **options)
    messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    return answer.choices[0]


async def talk(*texts: str, client=CLIENT, **options) -> str:
    messages: list = []
    for text in texts:
        await say(messages, text, client, **options)
    return "what an agent returns"


def record(coroutine) -> art.Trajectory:
    return asyncio.run(art.capture_auto_trajectory(coroutine))


def contents(history) -> list[str]:
    return [message["content"] for message in history.messages()]


def test_a_continued_conversation_is_one_history_of_the_clients_choices():
    given = []

    async def agent():
        messages = [{"role": "system", "content": "be brief"}]
        for text in "one", "two":
            given.append(await say(messages, text))
        messages[0]["content"] = messages[1]["content"] = "changed afterwards"

    trajectory = record(agent())
    assert contents(trajectory) == ["be brief", "one", "re: one", "two", "re: two"]
    assert [mine is theirs for mine, theirs in zip(trajectory.choices(), given, strict=True)] == [True, True]
    assert trajectory.additional_histories == [] and trajectory.tools is None
    assert set(trajectory.metrics) == {"duration"} and trajectory.reward == 0.0


def test_each_conversation_is_a_history_and_can_be_continued():
    async def agent():
        first, second, third = [], [], [{"role": "system", "content": "be kind"}]
        for turn in "1", "2":
            for name, messages in ("a", first), ("b", second), ("c", third):
                await say(messages, name + turn)
        await say([], "a1")  # the same question again gets another answer, so it starts another history

    trajectory = record(agent())
    assert contents(trajectory) == ["a1", "re: a1", "a2", "re: a2"]
    assert [contents(history) for history in trajectory.additional_histories] == [
        ["b1", "re: b1", "b2", "re: b2"],
        ["be kind", "c1", "re: c1", "c2", "re: c2"],
        ["a1", "re: a1"],
    ]


def test_a_shortened_or_rewritten_conversation_starts_another_history():
    async def agent():
        messages: list = []
        await say(messages, "one")
        await say([{"role": "user", "content": "one"}, {"role": "assistant", "content": "forged"}], "two")
        await say(messages[1:], "three")

    trajectory = record(agent())
    assert contents(trajectory) == ["one", "re: one"]
    assert [len(history.choices()) for history in trajectory.additional_histories] == [1, 1]
    assert contents(trajectory.additional_histories[0])[1] == "forged"


def test_tools_are_recorded_and_other_tools_start_another_history():
    async def agent():
        messages: list = []
        await say(messages, "one", tools=[TOOL])
        await say(messages, "two", tools=[TOOL])
        await say(messages, "three", tools=NOT_GIVEN)

    trajectory = record(agent())
    assert trajectory.tools == [TOOL] and len(trajectory.choices()) == 2
    (other,) = trajectory.additional_histories
    assert other.tools is None and contents(other)[-1] == "re: three"


async def calls_first(*, messages, **_) -> ChatCompletion:
    """Call the tool, and end after its result."""
    seen = messages[-1]["role"] == "tool"
    return ChatCompletion.model_validate(completion("done") if seen else completion(None, [CALL]))


def with_blanks(call):
    arguments = json.dumps(json.loads(call["function"]["arguments"]), indent=2)
    return {**call, "function": {**call["function"], "arguments": arguments}}


@pytest.mark.parametrize(
    "repeated",
    [
        lambda message: message,
        lambda message: message.model_dump(),
        lambda message: {"role": "assistant", "content": None, "tool_calls": [CALL]},
        lambda message: {"role": "assistant", "content": "", "tool_calls": message.tool_calls},
        lambda message: {"role": "assistant", "content": "", "tool_calls": [with_blanks(CALL)]},
    ],
    ids=["object", "dump", "by hand", "calls as objects", "arguments written anew"],
)
def test_a_tool_call_continues_in_every_form_that_agents_send(repeated):
    async def agent():
        ask = InProcessClient(calls_first, list).chat.completions.create
        messages = [{"role": "user", "content": "use the tool"}]
        answer = await ask(model="fake", messages=messages, tools=[TOOL])
        messages.append(repeated(answer.choices[0].message))
        messages.append({"role": "tool", "tool_call_id": "call_1", "content": "seen"})
        await ask(model="fake", messages=messages, tools=[TOOL])

    trajectory = record(agent())
    assert trajectory.additional_histories == []
    assert [m["role"] for m in trajectory.messages()] == ["user", "assistant", "tool", "assistant"]
    assert trajectory.messages()[1]["tool_calls"] == [CALL]


def test_the_sampler_accepts_messages_dumped_by_openai():
    message = ChatCompletion.model_validate(completion("hello")).choices[0].message.model_dump()
    assert message["tool_calls"] is None and "tool_calls" not in normalize([message])[0]


def test_concurrent_recordings_are_separate_and_include_their_tasks():
    async def agent(name):
        await asyncio.gather(talk(f"{name} first", f"{name} second"), talk(f"{name} aside"))

    async def both():
        return await asyncio.gather(*(art.capture_auto_trajectory(agent(name)) for name in "AB"))

    for name, trajectory in zip("AB", asyncio.run(both()), strict=True):
        histories = [contents(h) for h in (trajectory, *trajectory.additional_histories)]
        assert sorted(map(tuple, histories)) == [
            (f"{name} aside", f"re: {name} aside"),
            (f"{name} first", f"re: {name} first", f"{name} second", f"re: {name} second"),
        ]


def test_a_nested_recording_keeps_its_own_calls():
    inner = []

    async def agent():
        messages: list = []
        await say(messages, "before")
        inner.append(await art.capture_auto_trajectory(talk("inside")))
        await say(messages, "after")

    outer = record(agent())
    assert contents(outer) == ["before", "re: before", "after", "re: after"] and not outer.additional_histories
    assert contents(inner[0]) == ["inside", "re: inside"]


def test_the_agent_can_set_the_reward_of_its_trajectory():
    async def agent():
        await talk("hello")
        art.auto_trajectory(required=True).reward = 0.5

    assert record(agent()).reward == 0.5


def test_without_a_recording_there_is_no_trajectory():
    assert art.auto_trajectory() is None
    with pytest.raises(RuntimeError, match="capture_auto_trajectory"):
        art.auto_trajectory(required=True)
    assert asyncio.run(talk("unheard")) == "what an agent returns"


def test_an_exception_propagates_and_ends_the_recording():
    kept = []

    async def agent():
        await talk("hello")
        kept.append(art.auto_trajectory())
        raise KeyError("the agent's own")

    async def outer():
        with pytest.raises(KeyError, match="the agent's own"):
            await art.capture_auto_trajectory(agent())
        assert art.auto_trajectory() is None
        await talk("nobody listens")

    asyncio.run(outer())
    assert contents(kept[0]) == ["hello", "re: hello"] and kept[0].metrics["duration"] >= 0


def test_a_failed_request_is_not_recorded():
    async def refuse(**_):
        raise ValueError("no")

    async def agent():
        with pytest.raises(ValueError):
            await talk("hello", client=InProcessClient(refuse, list))

    assert record(agent()).messages_and_choices == []


def test_recorded_groups_train():
    async def rollout(text, reward):
        trajectory = await art.capture_auto_trajectory(talk(text, "more"))
        trajectory.reward = reward
        return trajectory

    async def gather():
        return await art.gather_trajectory_groups(
            [art.TrajectoryGroup(rollout(text, reward) for text, reward in [("x", 0.0), ("yy", 1.0)])]
        )

    sequences, _ = build_sequences(asyncio.run(gather()), make_tokenizer(), art.TrainConfig())
    assert [s.ids for s in sequences] == [ids(f"{t}re: {t}morere: more") for t in ("x", "yy")]
    assert [sum(s.trained) for s in sequences] == [len(f"re: {t}re: more") for t in ("x", "yy")]
    for sequence, sign in zip(sequences, (-1, 1), strict=True):
        trained = zip(sequence.advantages, sequence.logprobs, sequence.trained, strict=True)
        assert all(advantage * sign > 0 and logprob == -1.0 for advantage, logprob, on in trained if on)


def chunks(text: str) -> bytes:
    """Return `text` as a server streams it, one letter per chunk."""
    head = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "fake"}
    deltas = [{"role": "assistant", "content": ""}, *({"content": letter} for letter in text), {}]
    reasons = [None] * (len(deltas) - 1) + ["stop"]
    lines = [
        json.dumps({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
        for delta, reason in zip(deltas, reasons, strict=True)
    ]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()


@pytest.fixture
def prompted(monkeypatch):
    """Return the client of a prompted model whose server is a function. Each server error occurs once."""
    failures = [500]

    def serve(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/chat/completions"):
            return httpx.Response(200, json={"object": "list", "data": []})
        if failures:
            return httpx.Response(failures.pop(), json={"error": {"message": "busy"}}, headers={"retry-after-ms": "1"})
        asked = json.loads(request.content)
        text = f"re: {asked['messages'][-1]['content']}"
        if asked.get("stream"):
            return httpx.Response(200, content=chunks(text), headers={"content-type": "text/event-stream"})
        return httpx.Response(200, json=completion(text))

    async def handle(_, request):
        await request.aread()
        return serve(request)

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", handle)
    model = art.Model(name="m", project="p", inference_base_url="http://server.invalid/v1", inference_api_key="key")
    return model.openai_client()


def test_a_prompted_models_answers_over_http_are_recorded(prompted):
    async def agent():
        await prompted.models.list()
        await talk("one", "two", client=prompted.with_options(max_retries=3), tools=[TOOL])

    trajectory = record(agent())
    assert contents(trajectory) == ["one", "re: one", "two", "re: two"] and trajectory.additional_histories == []
    assert len(trajectory.choices()) == 2 and trajectory.tools == [TOOL]


def test_a_streamed_answer_over_http_is_recorded_and_still_streams(prompted):
    heard = []

    async def agent():
        messages = [{"role": "user", "content": "one"}]
        async for chunk in await prompted.chat.completions.create(model="fake", messages=messages, stream=True):
            heard.append(chunk.choices[0].delta.content or "")

    trajectory = record(agent())
    assert "".join(heard) == "re: one" and contents(trajectory) == ["one", "re: one"]
    assert trajectory.choices()[0].finish_reason == "stop"


def test_http_requests_without_a_recording_are_unchanged(prompted):
    assert asyncio.run(talk("one", client=prompted)) == "what an agent returns"


def test_a_trajectory_is_yielded_from_any_depth_and_the_last_one_counts():
    first, last = art.Trajectory(reward=1.0), art.Trajectory(reward=2.0)

    async def deep():
        art.yield_trajectory(last)

    async def agent():
        art.yield_trajectory(first)
        await asyncio.create_task(deep())

    assert asyncio.run(art.capture_yielded_trajectory(agent())) is last


def test_yielded_trajectories_are_separate_and_required():
    async def agent(reward):
        trajectory = art.Trajectory(reward=reward)
        if reward == 3.0:  # a nested capture takes only its own
            assert await art.capture_yielded_trajectory(agent(9.0)) is not trajectory
        await asyncio.sleep(0)
        art.yield_trajectory(trajectory)
        await asyncio.sleep(0)

    async def all_of_them():
        return await asyncio.gather(*(art.capture_yielded_trajectory(agent(r)) for r in (1.0, 2.0, 3.0)))

    assert [t.reward for t in asyncio.run(all_of_them())] == [1.0, 2.0, 3.0]
    art.yield_trajectory(art.Trajectory())  # no capture is active
    with pytest.raises(RuntimeError, match="yield_trajectory"):
        asyncio.run(art.capture_yielded_trajectory(talk("hello")))
