"""art.langgraph as ART's documentation uses it, and LangChain's agents: exact tokens, the right histories, training."""

import asyncio
import uuid

import pytest
from email_agent import SAMPLING, Search, check, registered, trains

import art_nb as art

pytest.importorskip("langgraph", reason="needs the extra langgraph")
from langchain_core.tools import StructuredTool, tool  # noqa: E402

from art_nb.langgraph import init_chat_model, wrap_rollout  # noqa: E402


def as_tools(search):
    return [StructuredTool.from_function(function) for function in search.functions]


@pytest.fixture
def run(tmp_path):
    def run(rollout):
        async def main():
            async with registered(tmp_path) as model:
                return await rollout(model)

        return asyncio.run(main())

    return run


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
def test_arts_example_runs_with_the_import_changed(run):
    """The structure of ART's LangGraph guide: a wrapped rollout that makes a ReAct agent and returns a reward."""
    from langgraph.prebuilt import create_react_agent

    search = Search()

    async def rollout(model: art.Model, question: str) -> art.Trajectory:
        trajectory = art.Trajectory(reward=0.0, messages_and_choices=[], metadata={"question": question})
        chat_model = init_chat_model(model.get_inference_name(), temperature=0.01, seed=5, max_tokens=48)
        agent = create_react_agent(chat_model, as_tools(search))
        config = {"configurable": {"thread_id": str(uuid.uuid4())}, "recursion_limit": 12}
        try:
            await agent.ainvoke({"messages": [("system", "You search mails."), ("user", question)]}, config=config)
        except Exception as error:
            trajectory.log(f"ended by {type(error).__name__}")
        trajectory.reward = search.episode.reward()
        return trajectory

    async def main(model):
        trajectory = await wrap_rollout(model, rollout)(model, search.question())
        check(trajectory, search)
        assert trajectory.reward == search.episode.reward() and trajectory.metadata["question"] == search.question()
        assert [m["role"] for m in trajectory.messages()[:2]] == ["system", "user"]
        assert {tool["function"]["name"] for tool in trajectory.tools} == {f.__name__ for f in search.functions}
        await trains(model, trajectory)

    run(main)


def test_concurrent_rollouts_keep_their_own_conversations(run):
    async def rollout(number):
        answer = await init_chat_model(max_tokens=4, seed=number).ainvoke(f"number {number}")
        return art.Trajectory(messages_and_choices=[], reward=float(number), metadata={"answer": answer.content})

    async def main(model):
        return await asyncio.gather(*(wrap_rollout(model, rollout)(n) for n in range(6)))

    for number, trajectory in enumerate(run(main)):
        question, answer = trajectory.messages()
        assert question["content"] == f"number {number}" and trajectory.metadata["answer"] == answer["content"]
        assert trajectory.reward == number


def test_a_rollout_may_return_the_recorded_trajectory(run):
    async def rollout():
        for number in range(2):  # two conversations
            await init_chat_model(max_tokens=4, seed=number).ainvoke(f"number {number}")
        return art.auto_trajectory()

    async def main(model):
        return await wrap_rollout(model, rollout)()

    assert len(run(main).all_choices()) == 2


def test_a_streamed_and_a_blocking_call_are_recorded_with_their_tokens(run):
    async def rollout():
        chat = init_chat_model(**SAMPLING)
        pieces = [piece async for piece in chat.astream("hello")]
        blocking = await asyncio.to_thread(chat.invoke, "good morning")
        return art.Trajectory(messages_and_choices=[], metadata={"pieces": "".join(p.content for p in pieces), "other": blocking.content})

    async def main(model):
        return await wrap_rollout(model, rollout)()

    trajectory = run(main)
    first, second = trajectory.histories()
    assert first.messages()[-1]["content"] == trajectory.metadata["pieces"] and second.messages()[-1]["content"] == trajectory.metadata["other"]
    assert all(choice.token_ids and choice.token_logprobs for choice in trajectory.all_choices())


def test_a_retry_of_the_framework_and_parallel_calls_are_one_history(run):
    """A tool node answers two calls of one turn; the tool fails once and is called again."""
    from openai.types.chat import ChatCompletion

    tries = []

    @tool
    def flaky(key: str) -> str:
        """Look something up."""
        tries.append(key)
        if len(tries) == 1:
            raise ConnectionError("once")
        return f"value of {key}"

    def completion(message, finish):
        choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}
        return ChatCompletion.model_validate({"id": "1", "created": 0, "model": "m", "object": "chat.completion", "choices": [choice]})

    async def create(**request):
        if request["messages"][-1]["role"] == "tool":
            return completion({"content": "done"}, "stop")
        calls = [{"id": f"c{k}", "type": "function", "function": {"name": "flaky", "arguments": f'{{ "key":"{k}" }}'}} for k in "ab"]
        return completion({"content": None, "tool_calls": calls}, "tool_calls")

    async def rollout(model):
        from langgraph.graph import START, MessagesState, StateGraph
        from langgraph.prebuilt import ToolNode
        from langgraph.types import RetryPolicy

        chat = init_chat_model().bind_tools([flaky])

        async def ask(state):
            return {"messages": [await chat.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", ask)
        graph.add_node("tools", ToolNode([flaky], handle_tool_errors=False), retry_policy=RetryPolicy(max_attempts=3, initial_interval=0.01))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else "__end__")
        graph.add_edge("tools", "model")
        await graph.compile().ainvoke({"messages": [("user", "look up a and b")]})
        return art.Trajectory(messages_and_choices=[])

    from art_nb.inference.client import InProcessClient

    model = art.Model(name="m", project="p")
    model.use_client(InProcessClient(create, list))
    trajectory = asyncio.run(wrap_rollout(model, rollout)(model))
    assert len(tries) >= 3 and trajectory.additional_histories == []
    assert [m["role"] for m in trajectory.messages()] == ["user", "assistant", "tool", "tool", "assistant"]
    assert sorted(m["content"] for m in trajectory.messages() if m["role"] == "tool") == ["value of a", "value of b"]


def test_a_sub_agent_is_a_further_history(run):
    async def rollout():
        chat = init_chat_model(**SAMPLING)
        first = await chat.ainvoke([("user", "plan")])
        await chat.ainvoke([("system", "You are the helper."), ("user", "a part")])
        await chat.ainvoke([("user", "plan"), first, ("user", "go on")])
        return art.Trajectory(messages_and_choices=[])

    async def main(model):
        return await wrap_rollout(model, rollout)()

    trajectory = run(main)
    assert [[m["role"] for m in history.messages()] for history in trajectory.histories()] == [
        ["user", "assistant", "user", "assistant"], ["system", "user", "assistant"],
    ]  # fmt: skip


def test_outside_of_a_rollout_there_is_no_model():
    with pytest.raises(RuntimeError, match="was called outside of a rollout: call it in one wrapped by"):
        init_chat_model()


def test_an_agent_of_langchain(run):
    agents = pytest.importorskip("langchain.agents", reason="needs langchain")
    search = Search()

    async def rollout():
        agent = agents.create_agent(init_chat_model(**SAMPLING), as_tools(search), system_prompt="You search mails.")
        try:
            await agent.ainvoke({"messages": [("user", search.question())]}, {"recursion_limit": 12})
        except Exception as error:
            assert type(error).__name__ == "GraphRecursionError", error
        return art.Trajectory(messages_and_choices=[])

    async def main(model):
        trajectory = await wrap_rollout(model, rollout)()
        check(trajectory, search)
        await trains(model, trajectory)

    run(main)
