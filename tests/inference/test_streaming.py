# ruff: noqa: F811  # fixtures of test_sampler are named as parameters
"""Streamed chunks add up to the whole answer, as OpenAI's client assembles them, in asynchronous and blocking code."""

import asyncio
import json

import httpx
import openai
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openai import LengthFinishReasonError
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from scripted_generation import ScriptedGeneration
from test_sampler import CountedForwards, characters, checkpoints, policy, sampler, scripted, some_forwards, tokenizer, user  # noqa: F401

import art_nb as art
from art_nb.inference.chat import SAMPLING_FIELDS, RequestError, parse_options
from art_nb.inference.client import InProcessClient
from art_nb.inference.http_client import record_response
from art_nb.inference.sampler import Sampler
from art_nb.inference.streaming import ChoiceChunks, build_choice, events, stable_prefix
from game_2048 import MOVE_TOOL

CALL = '<tool_call>{"name": "move", "arguments": {"direction": "left"}}</tool_call>'
END = "<|im_end|>"


def client_of(sampler):
    return InProcessClient(sampler.create, lambda: ["agent"])


async def heard(client, **parameters) -> list[ChatCompletionChunk]:
    parameters = {"model": "agent", "messages": [user("a")], **parameters}
    return [chunk async for chunk in await client.chat.completions.create(stream=True, **parameters)]


async def read_by_openai(client, **parameters) -> ChatCompletion:
    """Assemble the chunks with `openai`'s own code."""
    state = ChatCompletionStreamState()
    for chunk in await heard(client, **parameters):
        state.handle_chunk(chunk)
    return state.current_completion_snapshot


async def whole(client, **parameters) -> ChatCompletion:
    return await client.chat.completions.create(**{"model": "agent", "messages": [user("a")], **parameters})


ANSWERS = {
    "text": "left or right",
    "characters of several bytes": "héé 漢字 🙂 up",
    "half a character": "up 🙂",
    "stopped": "left\nOUCH right",
    "nearly stopped": "left\nOU",
    "a call": CALL,
    "text and calls": f" so \n{CALL}\n{CALL} and",
    "a broken call": '<tool_call>{"name": move}</tool_call> up',
    "a call and one that begins": f"so {CALL} {CALL[:30]}",
    "a call that begins": "up <tool_c",
    "blanks": "  ",
    "nothing": "",
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize(
    "options", [{}, {"tools": [MOVE_TOOL]}, {"stop": ["\nOUCH", "zz"], "logprobs": True, "top_logprobs": 2}], ids=["plain", "tools", "stop"]
)
def test_chunks_add_up_to_the_whole_answer(tokenizer, answer, options):
    script = [*characters(tokenizer, ANSWERS[answer]), *([] if answer == "half a character" else [2])]
    limit = {"max_tokens": len(script) - (answer == "half a character")}
    request = {"temperature": 0, "messages": [user("a")], **limit, **options}
    expected = asyncio.run(whole(client_of(scripted(tokenizer, script)), **request))
    given = asyncio.run(read_by_openai(client_of(scripted(tokenizer, script)), stream_options={"include_usage": True}, **request))
    fields = {"id", "model", "usage"}
    assert given.model_dump(include=fields) == expected.model_dump(include=fields)
    for name in ("content", "role"):
        assert getattr(given.choices[0].message, name) == getattr(expected.choices[0].message, name)
    assert calls(given) == calls(expected)
    assert given.choices[0].finish_reason == expected.choices[0].finish_reason
    said, told = (c.choices[0].logprobs and c.choices[0].logprobs.model_dump()["content"] for c in (expected, given))
    assert said == told and (said is not None) == ("logprobs" in options)


def calls(completion):
    found = completion.choices[0].message.tool_calls or []
    return [(call.id, call.type, call.function.name, call.function.arguments) for call in found]


def test_the_order_of_chunks(tokenizer):
    script = [*characters(tokenizer, f"so {CALL}"), 2]
    client = client_of(scripted(tokenizer, script))
    first, *middle, last, usage = asyncio.run(heard(client, tools=[MOVE_TOOL], stream_options={"include_usage": True}))
    assert {type(chunk) for chunk in (first, last, usage)} == {ChatCompletionChunk}
    assert first.choices[0].delta.to_dict() == {"role": "assistant", "content": ""}
    *text, name, arguments = [chunk.choices[0].delta.to_dict() for chunk in middle]
    assert text == [{"content": "s"}, {"content": "o"}]
    (call,) = name["tool_calls"]
    assert (call["index"], call["type"], call["function"]) == (0, "function", {"name": "move", "arguments": ""})
    assert arguments == {"tool_calls": [{"index": 0, "function": {"arguments": '{"direction": "left"}'}}]}
    assert last.choices[0].delta.to_dict() == {} and last.choices[0].finish_reason == "tool_calls"
    assert last.choices[0].token_ids == script and last.choices[0].token_texts[-1] == END
    assert usage.choices == [] and usage.usage.completion_tokens == len(script)
    assert all(chunk.usage is None and chunk.id == first.id for chunk in (first, *middle, last))
    assert [chunk.choices[0].finish_reason for chunk in (first, *middle)] == [None] * (1 + len(middle))


@pytest.mark.parametrize(
    "options", [{}, {"tools": [MOVE_TOOL]}, {"logprobs": True, "top_logprobs": 2, "n": 2}, {"stream_options": {"include_usage": True}}], ids=str
)  # fmt: skip
def test_each_event_is_a_chunk_as_openai_defines_it(tokenizer, options):
    """No field is missing or of another type, and only SAMPLING_FIELDS are additional."""

    async def main():
        script = [*characters(tokenizer, f"so 🙂 {CALL}"), 2]
        chunks = await scripted(tokenizer, script, script).create(messages=[user("a")], model="agent", stream=True, temperature=0, **options)
        return [event async for event in events(chunks)]

    *sent, done = asyncio.run(main())
    assert done == b"data: [DONE]\n\n" and len(sent) > 5
    for event in sent:
        assert event.startswith(b"data: {") and event.endswith(b"}\n\n") and event.count(b"\n") == 2
        told = event[len(b"data: ") :]
        chunk = ChatCompletionChunk.model_validate_json(told, strict=True)
        assert chunk.model_dump(exclude_unset=True) == json.loads(told) and not chunk.model_extra
        for each in chunk.choices:
            assert set(each.model_extra) == (SAMPLING_FIELDS if each.finish_reason else set()) and not each.delta.model_extra


def test_min_interval_delays_all_text_but_the_first_and_the_end(tokenizer):
    async def main():
        sampler = scripted(tokenizer, [*characters(tokenizer, "left right up"), 2])
        chunks = await sampler.create(messages=[user("a")], model="agent", stream=True)
        chunks.min_interval = lambda: 1000.0
        return [(sampler.decoder.tokens_sampled, chunk["choices"][0]["delta"].get("content")) async for chunk in chunks]

    assert asyncio.run(main()) == [(0, ""), (1, "l"), (14, "eft right up"), (14, None)]


def test_several_answers_are_streamed_side_by_side(policy, sampler):
    async def main():
        request = {"messages": [user("2 4")], "n": 3, "max_tokens": 6, "seed": 3, "logprobs": True}
        expected = await whole(client_of(sampler), **request)
        return expected, await read_by_openai(client_of(sampler), **request)

    expected, given = asyncio.run(main())
    for one, other in zip(expected.choices, given.choices, strict=True):
        assert one.message.content == other.message.content and one.finish_reason == other.finish_reason
        assert one.logprobs.model_dump()["content"] == other.logprobs.model_dump()["content"]
    assert len({choice.message.content for choice in given.choices}) > 1


def test_text_comes_as_it_is_sampled(tokenizer):
    sampler = scripted(tokenizer, [*characters(tokenizer, "left right up"), 2])

    async def main():
        seen = []
        stream = await client_of(sampler).chat.completions.create(model="agent", messages=[user("a")], stream=True)
        async for chunk in stream:
            seen.append((sampler.decoder.tokens_sampled, chunk.choices[0].delta.content))
        return seen

    seen = asyncio.run(main())
    assert [text for _, text in seen[1:-1]] == list("left right up")
    assert [count for count, _ in seen[1:-1]] == list(range(1, 14))


def test_closing_a_stream_stops_the_sampling(policy, sampler):
    async def main(give_up):
        client = client_of(sampler)
        stream = await client.chat.completions.create(model="agent", messages=[user("2")], stream=True, max_tokens=300, temperature=50)
        await give_up(stream)
        await whole(client, messages=[user("4")], max_tokens=5, temperature=50)
        return [*sampler.decoder.active, *sampler.decoder.waiting]  # before the end of the loop, which stops all sampling

    async def at_once(stream):
        await stream.close()

    async def in_between(stream):
        async with stream:
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break

    async def cancelled(stream):
        async def listen():
            async for _ in stream:
                pass

        listening = asyncio.create_task(listen())
        await some_forwards(sampler)
        listening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await listening

    async def by_a_button(stream):
        """Close it from another task while one reads."""

        async def read():
            async for _ in stream:
                pass

        reading = asyncio.create_task(read())
        await some_forwards(sampler)
        assert not reading.done()
        await stream.close()
        await asyncio.wait({reading}, timeout=10)
        assert reading.done()

    for give_up in (at_once, in_between, cancelled, by_a_button):
        assert asyncio.run(main(give_up)) == [] and len(sampler.decoder.slots.free) == len(sampler.decoder.slots.held)


def test_a_failed_forward_raises_in_the_stream(sampler):
    class BrokenForwards(CountedForwards):
        def __call__(self, **options):
            raise RuntimeError("out of memory")

    sampler.model = BrokenForwards(sampler.model, [])
    with pytest.raises(RuntimeError, match="out of memory"):
        asyncio.run(heard(client_of(sampler)))


def test_answers_of_other_servers_are_recorded_or_left_to_the_client():
    """A stream with a character at which Python, but not the protocol, splits lines; an error that comes as a success."""
    chunk = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    deltas = {"role": "assistant", "content": "a\u2028b"}, {}
    choices = [{"index": 0, "delta": delta, "finish_reason": None if delta else "stop"} for delta in deltas]
    events = "".join(f"data: {json.dumps({**chunk, 'choices': [c]}, ensure_ascii=False)}\n\n" for c in choices)

    async def answered(text, stream):
        request = httpx.Request("POST", "http://a/v1/chat/completions", json={"messages": [user("a")], "stream": stream})
        await record_response(httpx.Response(200, request=request, text=text))

    recorded = asyncio.run(art.capture_auto_trajectory(answered(events + "data: [DONE]\n\n", True)))
    assert recorded.messages()[-1]["content"] == "a\u2028b"
    second = f"data: {json.dumps({**chunk, 'choices': [{**choices[0], 'index': 1}]})}\n\n"  # of `n=2`, before the first
    failed = 'data: {"error": {"message": "overloaded"}}\n\n'
    recorded = asyncio.run(art.capture_auto_trajectory(answered(second + events + failed, True)))
    assert recorded.messages()[-1]["content"] == "a\u2028b"
    broken_off = events.partition("\n\n")[0] + "\n\n"  # without the chunk that holds the finish_reason
    for nothing in (failed, broken_off + failed, broken_off, "data: [DONE]\n\n", ""):  # the client raises the error itself
        assert not asyncio.run(art.capture_auto_trajectory(answered(nothing, True))).messages_and_choices
    assert not asyncio.run(art.capture_auto_trajectory(answered('{"error": "overloaded"}', False))).messages_and_choices


def test_a_streamed_answer_is_recorded_like_a_whole_one(policy):
    def agent(stream):
        client = client_of(Sampler(policy.sampling_model(), policy.tokenizer, slots=4))

        async def talk():
            messages = []
            for question in ("2 4", "8 8"):
                messages.append(user(question))
                request = {"model": "agent", "messages": messages, "max_tokens": 5}
                if stream:
                    said = ""
                    async for chunk in await client.chat.completions.create(**request, stream=True):
                        said += chunk.choices[0].delta.content or ""
                        if chunk.choices[0].finish_reason:
                            break  # many clients stop here
                else:
                    said = (await client.chat.completions.create(**request)).choices[0].message.content
                messages.append({"role": "assistant", "content": said})

        return asyncio.run(art.capture_auto_trajectory(talk()))

    streamed, at_once = agent(True), agent(False)
    assert streamed.messages() == at_once.messages() and not streamed.additional_histories
    for one, other in zip(streamed.choices(), at_once.choices(), strict=True):
        assert one.to_dict() == other.to_dict()


def test_messages_are_recorded_as_sent(policy):
    """Two requests of one list, which grows after the first answer."""
    client, messages = client_of(Sampler(policy.sampling_model(), policy.tokenizer, slots=4)), [user("2 4")]

    async def talk(tokens):
        said = (await whole(client, messages=messages, max_tokens=tokens)).choices[0].message.content
        messages[0]["content"] = "changed"
        messages.append({"role": "assistant", "content": said})

    async def both():
        await asyncio.gather(talk(2), talk(9))

    recorded = asyncio.run(art.capture_auto_trajectory(both()))
    assert [[m["role"] for m in h.messages()] for h in recorded.histories()] == [["user", "assistant"]] * 2
    assert {h.messages()[0]["content"] for h in recorded.histories()} == {"2 4"}


LETTERS = ["a", " ", "\n", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {}}', CALL, "<tool", "stop", "st", "é", "\ufffd"]


@given(st.lists(st.sampled_from(LETTERS)).map("".join), st.booleans(), st.sampled_from([[], ["stop"], ["a st", "\n"]]))
@example(f" \n{CALL} a", True, [])
def test_stable_prefix_is_a_prefix_of_the_content(text, tools, stop):
    options = parse_options({"stop": stop, "stream": True, "tools": [MOVE_TOOL] if tools else None})
    ends = [text.find(mark) for mark in stop if mark in text]
    said = text[: min(ends, default=len(text))]
    generation = ScriptedGeneration(options, said)
    choice = build_choice("key", 0, generation)
    before = ""
    for end in range(len(said) + 1):
        so_far = stable_prefix(text[:end], options)
        assert choice.message.content.startswith(so_far) and so_far.startswith(before)
        before = so_far
    generation.text = said[:3]
    chunks = ChoiceChunks(0, generation)
    deltas = [chunk["delta"] for chunk in (*chunks.more(), *chunks.last(choice))]
    assert "".join(delta.get("content", "") for delta in deltas) == choice.message.content


# Blocking code


def agent_that_blocks(client, question):
    answer = client.chat.completions.create(model="agent", messages=[user(question)], max_tokens=6, seed=1)
    stream = client.chat.completions.create(model="agent", messages=[user(question)], max_tokens=6, seed=1, stream=True)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert said == answer.choices[0].message.content
    return answer.choices[0]


def test_the_blocking_client_gives_the_same_answers(sampler):
    """In threads while an event loop runs, in that loop itself, and without one."""

    async def expected():
        client = client_of(sampler)
        return [(await whole(client, messages=[user(q)], max_tokens=6, seed=1)).choices[0].token_ids for q in "248"]

    async def threads():
        client = InProcessClient(sampler.create, list, asyncio.get_running_loop()).blocking()
        assert isinstance(client, openai.OpenAI)
        return await asyncio.gather(*(asyncio.to_thread(agent_that_blocks, client, q) for q in "248"))

    async def inside():
        client = InProcessClient(sampler.create, list, asyncio.get_running_loop()).blocking()
        return [agent_that_blocks(client, q) for q in "248"]

    ids = asyncio.run(expected())
    assert [choice.token_ids for choice in asyncio.run(threads())] == ids
    assert [choice.token_ids for choice in asyncio.run(inside())] == ids
    assert [agent_that_blocks(client_of(sampler).blocking(), q).token_ids for q in "248"] == ids


def test_threads_are_decoded_in_one_batch(sampler):
    forwards = []
    sampler.model = CountedForwards(sampler.model, forwards)

    async def main():
        client = InProcessClient(sampler.create, list, asyncio.get_running_loop()).blocking()
        ask = client.chat.completions.create
        jobs = [asyncio.to_thread(ask, model="a", messages=[user(f"2 {i}")], max_tokens=40, temperature=5, stop=["zz"]) for i in range(4)]
        return await asyncio.gather(*jobs)

    answers = asyncio.run(main())
    tokens = sum(len(answer.choices[0].token_ids) for answer in answers)
    assert len(forwards) < tokens / 2


def test_a_blocking_agent_is_recorded(sampler):
    async def main():
        client = InProcessClient(sampler.create, list, asyncio.get_running_loop()).blocking()

        async def agent(question):
            await asyncio.to_thread(agent_that_blocks, client, question)

        return await asyncio.gather(*(art.capture_auto_trajectory(agent(q)) for q in "24"))

    for question, trajectory in zip("24", asyncio.run(main()), strict=True):
        assert [message["content"] for message in trajectory.messages()][0] == question
        assert len(trajectory.choices()) == 1 and len(trajectory.additional_histories) == 1


def test_blocking_the_samplers_own_event_loop_is_refused(sampler):
    async def main():
        client = InProcessClient(sampler.create, list, asyncio.get_running_loop())
        busy = asyncio.create_task(whole(client, max_tokens=200, temperature=5))
        await asyncio.sleep(0.01)
        try:
            with pytest.raises(RuntimeError, match="asyncio.to_thread"):
                agent_that_blocks(client.blocking(), "2")
        finally:
            await busy

    asyncio.run(main())


def test_models_are_listed_and_other_endpoints_are_refused(sampler):
    client = client_of(sampler)

    async def main():
        return [model.id for model in (await client.models.list()).data], [model.id async for model in client.models.list()]

    assert asyncio.run(main()) == (["agent"], ["agent"])
    assert [model.id for model in client.blocking().models.list()] == ["agent"]
    for refused in (
        lambda: asyncio.run(client.embeddings.create(model="agent", input="x")),
        lambda: client.blocking().responses.create(model="agent", input="x"),
        lambda: asyncio.run(client.chat.completions.with_raw_response.create(model="agent", messages=[user("a")], stream=True)),
    ):
        with pytest.raises(RequestError, match="in process"):
            refused()


def test_a_raw_response_holds_the_answer(sampler):
    """LangChain asks for raw responses and parses them."""
    client, request = client_of(sampler), {"model": "agent", "messages": [user("a")], "max_tokens": 4, "seed": 1}

    async def main():
        whole = await client.chat.completions.create(**request)
        raw = await client.chat.completions.with_raw_response.create(**request)
        with pytest.raises(LengthFinishReasonError):  # as openai's client parses an answer that max_tokens ended
            (await client.chat.completions.with_raw_response.parse(**request)).parse()
        return whole, raw.parse(), dict(raw.headers)

    whole, raw, headers = asyncio.run(main())
    blocking = client.blocking().chat.completions.with_raw_response.create(**request).parse()
    assert whole.choices[0].token_ids == raw.choices[0].token_ids == blocking.choices[0].token_ids and not headers


@pytest.mark.parametrize("bad", [{"include_usage": 1}, {"x": 1}, {"include_usage": True}, 3], ids=str)
def test_invalid_stream_options(sampler, bad):
    stream = bad != {"include_usage": True}  # allowed for streams only
    with pytest.raises(RequestError, match="stream_options"):
        asyncio.run(client_of(sampler).chat.completions.create(model="a", messages=[user("a")], stream=stream, stream_options=bad))
