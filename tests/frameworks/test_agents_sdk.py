"""The OpenAI Agents SDK drives a rollout: its runner on the model's client, recorded with exact tokens, and trained on."""

import asyncio

import pytest
from email_agent import SAMPLING, Search, check, registered, trains

import art_nb as art

agents = pytest.importorskip(
    "agents", reason="openai-agents 0.20 needs websockets below 17, which the lock excludes: install it in an environment of its own"
)


def test_an_agent_on_the_mailbox(tmp_path):
    search = Search()
    agents.set_tracing_disabled(True)

    async def agent(model):
        chat = agents.OpenAIChatCompletionsModel(model=model.get_inference_name(), openai_client=model.openai_client())
        settings = agents.ModelSettings(
            tool_choice="required", temperature=SAMPLING["temperature"], max_tokens=SAMPLING["max_tokens"], extra_args={"seed": SAMPLING["seed"]}
        )
        tools = [agents.function_tool(function) for function in search.functions]
        runner = agents.Agent(name="searcher", instructions="You search mails.", model=chat, model_settings=settings, tools=tools)
        try:
            await agents.Runner.run(runner, search.question(), max_turns=3)
        except agents.exceptions.MaxTurnsExceeded:
            pass

    async def main():
        async with registered(tmp_path) as model:
            trajectory = await art.capture_auto_trajectory(agent(model))
            check(trajectory, search)
            await trains(model, trajectory)

    asyncio.run(main())
