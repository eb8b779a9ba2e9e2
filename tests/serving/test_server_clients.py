"""Independent clients against the server: openai, LiteLLM, LangChain, LangGraph, curl."""

import asyncio
import functools
import json
import subprocess
import time

import httpx
import openai
import pytest
from running_server import NANO_EMAIL, TOKEN

import art_nb as art
from art_nb.api_costs import load_litellm
from art_nb.backends.local import LocalBackend
from art_nb.backends.remote import RemoteBackend
from email_search.environment import TOOLS, EmailSearch, course_mailbox, first_message, scenarios

QUESTION = {"role": "user", "content": first_message(scenarios("train")[0])}
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=TOKEN, max_retries=0)


def test_models_are_listed(client, server):
    names = [model.id for model in client.models.list()]
    assert {"tiny", "nano_email"} <= set(names)
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("huge")


def test_a_completion_is_identical_to_one_in_process(client, tmp_path):
    """With the same base model and seeds the same tokens are sampled, whatever else the server has sampled."""
    asked = {"messages": [QUESTION], "tools": TOOLS, "max_tokens": 24, "n": 3, "seed": 5, "logprobs": True, "top_logprobs": 2}

    async def in_process():
        model = art.TrainableModel(name="m", project="p", base_model=NANO_EMAIL)
        await model.register(LocalBackend(path=tmp_path, engine="transformers"))
        return await model.openai_client().chat.completions.create(model=NANO_EMAIL, **asked)

    here, there = asyncio.run(in_process()), client.chat.completions.create(model="nano_email", **asked)
    assert here.usage == there.usage and len(there.choices) == 3
    for ours, served in zip(here.choices, there.choices, strict=True):
        assert served.policy == "nano_email"
        assert ours.token_ids == served.token_ids and ours.token_logprobs == pytest.approx(served.token_logprobs, abs=1e-5)
        assert ours.message.content == served.message.content and ours.finish_reason == served.finish_reason
        tops = [[top.token for top in token.top_logprobs] for token in ours.logprobs.content]
        assert tops == [[top.token for top in token.top_logprobs] for token in served.logprobs.content]


def test_a_stop_string_ends_the_answer(client):
    asked = {"model": "tiny", "messages": HELLO, "seed": 1, "max_tokens": 20}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    cut = client.chat.completions.create(**asked, stop=whole[3:5]).choices[0]
    assert cut.message.content == whole[: whole.index(whole[3:5])] and cut.finish_reason == "stop"


def test_a_stream_has_the_content_of_the_whole_completion(client):
    asked = {"model": "nano_email", "messages": [QUESTION], "tools": TOOLS, "max_tokens": 48, "seed": 5, "temperature": 0.01}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        events = [event.type for event in stream]
        streamed = stream.get_final_completion()
    assert streamed.choices[0].message.tool_calls[0].function.name == "search_emails"
    arguments = [c.choices[0].message.tool_calls[0].function.arguments for c in (streamed, whole)]
    assert arguments[0] == arguments[1] and streamed.usage == whole.usage and "chunk" in events
    said = "".join(c.choices[0].delta.content or "" for c in client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=12, seed=2, stream=True))  # fmt: skip
    assert said == client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=12, seed=2).choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="temperature is -1"):
        client.chat.completions.create(**asked | {"temperature": -1}, stream=True)


def test_closing_a_stream_stops_its_sampling(server, client):
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "a long story"}], "max_tokens": 450, "n": 8, "temperature": 50, "seed": 14}
    whole = client.chat.completions.create(**asked).usage.completion_tokens
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {TOKEN}"}) as status:
        before = status.get("/status").json()["sampling"]["tokens"]
        with client.chat.completions.create(**asked, stream=True) as stream:
            next(chunk for chunk in stream if chunk.choices[0].delta.content)
        until = time.monotonic() + 60
        while (sampling := status.get("/status").json()["sampling"])["active"] or sampling["waiting"]:
            assert time.monotonic() < until
    assert whole > 200 and 0 < sampling["tokens"] - before < whole / 2


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"model": "huge"}, openai.NotFoundError, "no model 'huge'"),
        ({"model": "tiny@3"}, openai.NotFoundError, "no model 'tiny@3'"),
        ({"temperature": -1}, openai.BadRequestError, "temperature is -1"),
        ({"surprise": 1}, openai.BadRequestError, "surprise"),
        ({"messages": []}, openai.UnprocessableEntityError, "messages"),
        ({"messages": [{"role": "nobody", "content": ""}]}, openai.BadRequestError, "nobody"),
        ({"max_tokens": 10**6}, openai.BadRequestError, "context"),
    ],
)
def test_an_invalid_request_is_rejected_with_the_reason(client, change, error, says):
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 4} | change
    extra = {k: asked.pop(k) for k in list(asked) if k == "surprise"}
    with pytest.raises(error, match=says):
        client.chat.completions.create(**asked, extra_body=extra)


def test_a_wrong_token_is_rejected(server):
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0).models.list()


def test_concurrent_clients_get_their_own_answers(server):
    async def main():
        clients = [openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=TOKEN) for _ in range(4)]
        asked = [(i, client) for client in clients for i in range(6)]
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model="tiny", seed=i, max_tokens=8, messages=[{"role": "user", "content": f"number {i}"}]
                )
                for i, client in asked
            )
        )
        said = {}
        for (i, _), answer in zip(asked, answers, strict=True):
            said.setdefault(i, set()).add(tuple(answer.choices[0].token_ids))
        assert all(len(same) == 1 for same in said.values()) and len({*map(frozenset, said.values())}) > 1

    asyncio.run(main())


def test_litellm_with_the_parameters_of_a_registered_model(server, tmp_path):
    litellm = load_litellm()

    async def main():
        async with RemoteBackend(server.url, TOKEN, path=tmp_path) as backend:
            model = art.TrainableModel(name="by-litellm", project="p", base_model="tiny")
            await model.register(backend)
            return await litellm.acompletion(**model.litellm_completion_params(), messages=HELLO, max_tokens=5, seed=1)

    answer = asyncio.run(main())
    assert answer.usage.completion_tokens == 5 and answer.choices[0].finish_reason == "length"


def test_langchain(server):
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(model="nano_email", base_url=f"{server.url}/v1", api_key=TOKEN, seed=5, max_tokens=48, temperature=0.01)
    message = chat.bind_tools(TOOLS).invoke([("user", QUESTION["content"])])
    assert message.tool_calls[0]["name"] == "search_emails"
    assert message.usage_metadata["output_tokens"] > 5
    pieces = list(chat.bind_tools(TOOLS).stream([("user", QUESTION["content"])]))
    together = functools.reduce(lambda a, b: a + b, pieces)
    assert len(pieces) > 2 and together.tool_calls[0]["args"] == message.tool_calls[0]["args"]


def test_a_langgraph_agent_calls_tools_until_it_has_an_answer(server):
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    scenario = scenarios("train")[0]
    search = EmailSearch(course_mailbox(), scenario)
    called = []

    def call(name, **given):
        called.append(name)
        return search.call(name, {key: value for key, value in given.items() if value not in ("", None)})

    @tool
    def search_emails(keywords: str = "", from_addr: str = "", to_addr: str = "", sent_after: str = "", sent_before: str = "",
                      sort: str = "", max_results: int | None = None) -> str:  # fmt: skip
        """List mails, best first."""
        return call("search_emails", keywords=keywords, from_addr=from_addr, to_addr=to_addr, sent_after=sent_after,
                    sent_before=sent_before, sort=sort, max_results=max_results)  # fmt: skip

    @tool
    def read_email(message_id: str) -> str:
        """Show one mail."""
        return call("read_email", message_id=message_id)

    @tool
    def return_final_answer(answer: str, sources: list[str]) -> str:
        """Answer the question."""
        return call("return_final_answer", answer=answer, sources=sources)

    tools = [read_email, return_final_answer, search_emails]
    chat = ChatOpenAI(model="nano_email", base_url=f"{server.url}/v1", api_key=TOKEN, seed=5, max_tokens=48, temperature=0.01)
    asks = chat.bind_tools(tools)
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [asks.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else "__end__")
    graph.add_conditional_edges("tools", lambda state: "__end__" if called[-1] == "return_final_answer" else "model")
    messages = graph.compile().invoke({"messages": [("user", QUESTION["content"])]}, {"recursion_limit": 30})["messages"]
    assert called[0] == "search_emails" and called[-1] == "return_final_answer" and search.over
    assert [m.type for m in messages] == ["human", *["ai", "tool"] * len(called)]


def test_curl(server):
    body = json.dumps({"model": "tiny", "messages": HELLO, "max_tokens": 3})
    command = ["curl", "-sS", "-H", f"Authorization: Bearer {TOKEN}", "-H", "content-type: application/json", "-d", body]
    answer = json.loads(subprocess.check_output([*command, f"{server.url}/v1/chat/completions"]))
    assert answer["usage"]["completion_tokens"] == 3
