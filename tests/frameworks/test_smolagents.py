"""smolagents drives a rollout: its agent on the model's client, recorded with exact tokens, and trained on."""

import asyncio

import pytest
from email_agent import SAMPLING, Search, check, registered, trains

import art_nb as art
from data.nano_service.maker import START

smolagents = pytest.importorskip("smolagents", reason="needs smolagents")


def test_a_tool_calling_agent_on_the_mailbox(tmp_path):
    search = Search()

    async def agent(model):
        chat = smolagents.OpenAIModel(model.get_inference_name(), api_key="unused", **SAMPLING)
        chat.client = model.openai_client(sync=True)
        tools = [smolagents.tool(function) for function in plain(search)]
        runner = smolagents.ToolCallingAgent(tools, chat, max_steps=2, verbosity_level=0)
        runner.prompt_templates["system_prompt"] = "You search mails."  # its own is longer than the nano model's context
        await asyncio.to_thread(runner.run, search.question())

    async def main():
        # The present nano_email writes no complete call after "New task:", with which smolagents opens the conversation.
        async with registered(tmp_path, base_model=str(START)) as model:
            trajectory = await art.capture_auto_trajectory(agent(model))
            # Its later requests repeat calls as text, in the user's words: each step is a conversation of its own.
            check(trajectory, search, histories=len(trajectory.all_choices()))
            await trains(model, trajectory)

    asyncio.run(main())


def plain(search):
    """smolagents reads the source of a tool: functions, not methods."""

    def search_emails(
        keywords: str = "", from_addr: str = "", to_addr: str = "", sent_after: str = "", sent_before: str = "", sort: str = "relevance",
        max_results: int = 4,
    ) -> str:  # fmt: skip
        """List mails, best first.

        Args:
            keywords: words that a mail must hold, all of them.
            from_addr: part of the sender's name or address.
            to_addr: part of a recipient's name or address.
            sent_after: first day, YYYY-MM-DD.
            sent_before: day after the last, YYYY-MM-DD.
            sort: relevance, newest or oldest.
            max_results: 1 to 10.
        """
        return search.search_emails(keywords, from_addr, to_addr)

    def read_email(message_id: str) -> str:
        """Show one mail.

        Args:
            message_id: its id, as a search lists it.
        """
        return search.read_email(message_id)

    return [search_emails, read_email]
