# ruff: noqa: F811  # fixtures of test_sampler are named as parameters
"""OpenAI's parameters have their documented effect in process: timeouts, retries, with_options, n, stop, seed, logprobs."""

import asyncio
import http.server
import inspect
import threading

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionTokenLogprob
from test_sampler import characters, check_greedy, checkpoints, policy, sampler, scripted, tokenizer, user  # noqa: F401

from art_nb.inference.chat import IGNORED, RequestError, parse_options
from art_nb.inference.client import InProcessClient

ENDLESS = {"model": "m", "messages": [user("2 4")], "max_tokens": 480, "stop": ["never sampled"], "temperature": 50}
SHORT = 1e-3  # seconds, too short for this many tokens


class RequestCounter:
    """A sampler's `create` that counts its calls."""

    def __init__(self, sampler):
        self.create, self.times = sampler.create, 0

    async def __call__(self, **parameters):
        self.times += 1
        return await self.create(**parameters)


def clients(sampler):
    counter = RequestCounter(sampler)
    return counter, InProcessClient(counter, lambda: ["m"])


def complete(client, **parameters) -> ChatCompletion:
    return asyncio.run(client.chat.completions.create(**{"model": "m", "messages": [user("2 4")], **parameters}))


def assert_free(sampler):
    assert not sampler.decoder.active and not sampler.decoder.waiting and len(sampler.decoder.slots.free) == len(sampler.decoder.slots.held)


# Timeouts and retries


@pytest.fixture(scope="module")
def silent_server():
    """A server that takes requests and never answers; `.received` counts them."""

    class Silent(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.server.received += 1
            self.server.over.wait()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    server.received, server.over = 0, threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("timeout", [0.2, httpx.Timeout(60, read=0.2)], ids=["number", "httpx"])
def test_a_timeout_equals_that_of_openais_client_over_http(sampler, silent_server, timeout, retries):
    """The same error after the same number of requests."""
    before, url = silent_server.received, f"http://127.0.0.1:{silent_server.server_port}"
    with openai.OpenAI(api_key="x", base_url=url, timeout=timeout, max_retries=retries) as client:
        with pytest.raises(openai.APITimeoutError) as over_http:
            client.chat.completions.create(model="m", messages=[user("2 4")])
    counter, client = clients(sampler)
    with pytest.raises(openai.APITimeoutError) as in_process:
        short = SHORT if timeout == 0.2 else httpx.Timeout(60, read=SHORT)
        complete(client.with_options(timeout=short, max_retries=retries), **ENDLESS)
    assert counter.times == silent_server.received - before == retries + 1
    assert type(in_process.value) is type(over_http.value) and str(in_process.value) == str(over_http.value)


def test_messages_may_be_any_iterable_also_when_the_request_is_repeated(sampler):
    """As openai's type says. A wrong type is refused with the field's name."""
    _, client = clients(sampler)
    expected = complete(client, max_tokens=3, seed=1).choices[0].token_ids
    slow = [True]

    async def create(**parameters):
        if slow and slow.pop():
            await asyncio.sleep(60)
        return await sampler.create(**parameters)

    again = InProcessClient(create, lambda: ["m"]).with_options(timeout=0.5, max_retries=1)
    assert complete(again, messages=iter([user("2 4")]), max_tokens=3, seed=1).choices[0].token_ids == expected
    for wrong in (None, 5, "hello", {"role": "user"}, []):
        with pytest.raises(RequestError, match="messages is .*: expected a list with at least one message"):
            complete(client, messages=wrong)


WAYS = {
    "of the request": lambda client: client.chat.completions.create(**ENDLESS, timeout=SHORT),
    "of the client": lambda client: client.with_options(timeout=SHORT).chat.completions.create(**ENDLESS),
    "of a copy's copy": lambda client: client.copy(timeout=SHORT).with_options(default_headers={"a": "b"}).chat.completions.create(**ENDLESS),
    "of parse": lambda client: client.chat.completions.parse(**ENDLESS, timeout=SHORT),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_timeout_frees_the_slot_and_leaves_other_requests_unchanged(policy, sampler, way):
    _, client = clients(sampler)
    client.max_retries = 0

    async def main():
        neighbours = [client.chat.completions.create(model="m", messages=[user(f"2 {i}")], max_tokens=9, temperature=0) for i in range(3)]
        return await asyncio.gather(*neighbours, WAYS[way](client), return_exceptions=True)

    *answers, failed = asyncio.run(main())
    assert type(failed) is openai.APITimeoutError
    for answer in answers:
        check_greedy(policy, answer.choices[0])
    complete(client, max_tokens=1)
    assert_free(sampler)
    blocking = client.blocking()
    assert blocking.max_retries == 0
    with pytest.raises(openai.APITimeoutError):
        WAYS[way](blocking)
    assert blocking.chat.completions.create(model="m", messages=[user("2")], max_tokens=2).choices[0].finish_reason


def test_the_timeout_of_a_request_overrides_that_of_the_client(sampler):
    _, client = clients(sampler)
    assert client.timeout is None and client.max_retries == openai.DEFAULT_MAX_RETRIES
    hasty = client.with_options(timeout=SHORT, max_retries=0)
    for timeout in (None, 600, httpx.Timeout(600, connect=SHORT)):
        assert complete(hasty, max_tokens=60, temperature=50, timeout=timeout).choices[0].finish_reason in ("length", "stop")
    assert client.timeout is None and client.max_retries == openai.DEFAULT_MAX_RETRIES


@pytest.mark.parametrize("blocking", [False, True])
def test_the_timeout_of_a_stream_applies_between_chunks(policy, sampler, blocking):
    """As in httpx, it limits the time between chunks, not that of the whole answer."""
    _, client = clients(sampler)
    forwards, go_on = 0, asyncio.Event()
    drain = sampler.decoder.before_forward

    async def stalls():
        nonlocal forwards
        forwards += 1
        await drain()
        if forwards > 8:
            await go_on.wait()

    sampler.decoder.before_forward = stalls
    client = client.with_options(timeout=1.5)
    ask = {**ENDLESS, "messages": [user("8")], "stream": True}

    async def heard():
        chunks = []
        with pytest.raises(openai.APITimeoutError):
            async for chunk in await client.chat.completions.create(**ask):
                chunks.append(chunk)
        go_on.set()
        return chunks

    async def main():
        neighbour = asyncio.ensure_future(sampler.create(messages=[user("2 4")], max_tokens=30, temperature=0))
        return await heard(), await neighbour

    def blocked():
        chunks = []
        with pytest.raises(openai.APITimeoutError):
            for chunk in client.blocking().chat.completions.create(**ask):
                chunks.append(chunk)
        return chunks

    if blocking:
        assert len(blocked()) > 2
        return
    chunks, answer = asyncio.run(main())
    assert len(chunks) > 2 and chunks[0].choices[0].delta.role == "assistant"
    check_greedy(policy, answer.choices[0])
    assert_free(sampler)


@pytest.mark.parametrize("bad", [-1, "3", True, float("nan"), (1, 2)], ids=str)
def test_a_bad_timeout_is_refused(sampler, bad):
    counter, client = clients(sampler)
    with pytest.raises(RequestError, match="timeout is .* expected seconds"):
        complete(client, timeout=bad)
    assert counter.times == 0


def test_with_options_ignores_accounts_and_refuses_other_servers(sampler):
    _, client = clients(sampler)
    for each in (client, client.blocking()):
        same = each.with_options(api_key="other", organization="o", project="p", default_headers={"a": "b"}, set_default_query={})
        assert type(same) is type(each) and (same.timeout, same.max_retries) == (each.timeout, each.max_retries)
        for elsewhere in ({"base_url": "http://127.0.0.1:9"}, {"http_client": object()}):
            with pytest.raises(RequestError, match=f"{next(iter(elsewhere))}.*network"):
                each.with_options(**elsewhere)


# Parameters of the answer


def test_n_answers(sampler):
    _, client = clients(sampler)
    answer = complete(client, n=5, max_tokens=6, temperature=50, stop=["never sampled"], logprobs=True)
    assert ChatCompletion.model_validate(answer.model_dump()) == answer
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3, 4]
    assert len({tuple(choice.token_ids) for choice in answer.choices}) == 5
    assert answer.usage.completion_tokens == sum(len(choice.logprobs.content) for choice in answer.choices)
    assert answer.usage.prompt_tokens == len(answer.choices[0].prompt_token_ids)


def test_the_same_seed_and_parameters_give_the_same_answers_in_every_client(sampler):
    _, client = clients(sampler)
    ask = {"n": 2, "max_tokens": 8, "temperature": 5, "stop": ["never sampled"]}

    def tokens(client, **more):
        create = client.chat.completions.create(model="m", messages=[user("2 4")], **ask, **more)
        answer = asyncio.run(create) if asyncio.iscoroutine(create) else create
        return [choice.token_ids for choice in answer.choices]

    first = tokens(client, seed=7)
    assert tokens(client, seed=7) == tokens(client.blocking(), seed=7) == tokens(client.with_options(timeout=600), seed=7) == first
    assert tokens(client, seed=8) != first and tokens(client) != tokens(client)
    assert tokens(client, extra_body={"seed": 7}) == first


@pytest.mark.parametrize("stop", ["t r", ["zz", "t r"], ("t r",), ["a", "b", "c", "d", "t r"], ["r", "t r"]], ids=str)
def test_stop(tokenizer, stop):
    script = [*characters(tokenizer, "left right"), 2]
    _, client = clients(scripted(tokenizer, script))
    (choice,) = complete(client, stop=stop, temperature=0).choices
    assert (choice.message.content, choice.finish_reason) == ("lef", "stop")


def test_token_bytes_concatenate_to_the_text(tokenizer):
    """OpenAI: "Useful in instances where characters are represented by multiple tokens"."""
    text = "héé 漢字 🙂"
    script = [*tokenizer.encode(text, add_special_tokens=False), 2]
    for stream in (False, True):
        _, client = clients(scripted(tokenizer, script))
        request = {"messages": [user("a")], "temperature": 0, "logprobs": True, "top_logprobs": 2}
        if stream:
            tokens = asyncio.run(streamed(client, **request))
        else:
            tokens = complete(client, **request).choices[0].logprobs.content
        assert all(type(token) is ChatCompletionTokenLogprob and len(token.top_logprobs) == 2 for token in tokens)
        assert b"".join(bytes(token.bytes) for token in tokens).decode() == text + "<|im_end|>"
        assert all(token.top_logprobs[0].bytes == token.bytes for token in tokens)  # greedy
        assert any(token.token == "\ufffd" and token.bytes != list("\ufffd".encode()) for token in tokens)


async def streamed(client, **request):
    stream = await client.chat.completions.create(model="m", stream=True, **request)
    return [token for chunk in [c async for c in stream] if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content]


def test_extra_body_overrides_parameters(sampler):
    """As openai merges them."""
    _, client = clients(sampler)
    assert len(complete(client, max_tokens=9, extra_body={"max_tokens": 2}, stop=["never sampled"]).choices[0].token_ids) == 2
    with pytest.raises(openai.LengthFinishReasonError) as cut:  # raised by openai when it cannot parse
        asyncio.run(client.chat.completions.parse(model="m", messages=[user("2")], extra_body={"max_tokens": 2}))
    assert len(cut.value.completion.choices[0].token_ids) == 2
    with pytest.raises(RequestError, match="top_k: unknown here"):
        complete(client, extra_body={"top_k": 1})


@pytest.mark.parametrize("calls", [
    5, "ab", [None], [{"function": None}], [{"function": "ab"}], [{"function": {"name": ["a"], "arguments": "{}"}}], [{}],
], ids=str)  # fmt: skip
def test_malformed_tool_calls_are_refused(sampler, calls):
    for content in ("", None):
        message = {"role": "assistant", "content": content, "tool_calls": calls}
        with pytest.raises(RequestError, match=r"messages\[0\]: tool_calls is .*expected a list of dicts"):
            complete(InProcessClient(sampler.create, lambda: ["agent"]), messages=[message])


def test_a_tool_with_malformed_parameters_is_refused(sampler):
    tool = {"type": "function", "function": {"name": "f", "parameters": 5}}
    with pytest.raises(RequestError, match="tools holds"):
        complete(InProcessClient(sampler.create, lambda: ["agent"]), tools=[tool], tool_choice="required")


@pytest.mark.parametrize("refused", ["logit_bias", "modalities", "audio", "prediction", "reasoning_effort", "verbosity", "functions", "web_search_options"])
def test_unsupported_parameters_are_refused_by_name(sampler, refused):
    values = {"logit_bias": {"5": 1}, "modalities": ["audio"], "functions": [{"name": "f"}]}
    _, client = clients(sampler)
    with pytest.raises(openai.BadRequestError, match=f"{refused}: unknown here"):
        complete(client, **{refused: values.get(refused, {"type": "x"})})


def test_every_parameter_of_openais_method_is_supported_or_refused(sampler):
    """Only parameters that concern accounts, storage and transport are accepted without effect."""
    known = set(inspect.signature(openai.resources.chat.AsyncCompletions.create).parameters) - {"self", "messages"}
    taken = set()
    for name in known:
        try:
            parse_options({name: object()})
            taken.add(name)
        except RequestError as error:
            assert name in str(error)
    assert taken <= IGNORED and not {"timeout"} & IGNORED
