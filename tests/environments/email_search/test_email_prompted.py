"""Notebook 04's rollout with a prompted model: the real client over HTTP, and a server with OpenAI's chat API."""

import asyncio
import json
from pathlib import Path

import nbformat
import pytest
from judge_server import JudgeServer, completion

import art_nb as art
from email_search import TOOLS, EmailSearch, course_mailbox, first_message, scenarios

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "04_email_search.ipynb"
QUESTION = scenarios("val", 1)[0]
RIGHT = [
    ("search_emails", {"keywords": " ".join(QUESTION.about)}),
    ("read_email", {"message_id": QUESTION.sources[0]}),
    ("return_final_answer", {"answer": QUESTION.answer, "sources": [QUESTION.sources[0]]}),
]


@pytest.fixture
def ask(tmp_path):
    """Return a function of calls that returns the trajectory of a prompted model that makes them, and the requests it received."""
    source = next(cell.source for cell in nbformat.read(NOTEBOOK, 4).cells if cell.source.startswith("async def rollout("))
    scope = {
        "art": art, "EmailSearch": EmailSearch, "mailbox": course_mailbox(), "TOOLS": TOOLS, "first_message": first_message,
        "art_e": lambda search: search.reward(),
    }  # fmt: skip
    exec(source, scope)

    def play(calls, reward=None):
        def answer(number, _):
            name, arguments = calls[number]
            if not name:
                return completion(arguments)
            function = {"name": name, "arguments": json.dumps(arguments)}
            return completion(None, "tool_calls", tool_calls=[{"id": f"call_{number + 1}", "type": "function", "function": function}])

        with JudgeServer(answer) as server:
            model = art.Model(
                name="large", project="p", inference_model_name="openai/large", inference_api_key="none",
                inference_base_url=server.url, base_path=str(tmp_path),
            )  # fmt: skip
            return asyncio.run(scope["rollout"](model, QUESTION, reward)), server.requests

    return play


def test_a_prompted_model_searches_reads_and_answers(ask):
    trajectory, sent = ask(RIGHT)
    assert trajectory.metrics["correct"] == trajectory.metrics["sources_right"] == 1
    hits = [line.split()[0] for line in sent[1]["messages"][-1]["content"].splitlines()]
    rank = 1 + min(hits.index(source) for source in QUESTION.sources if source in hits)
    assert trajectory.turn_rewards == pytest.approx([0.5 / rank, 0.5, 1]) and trajectory.reward == sum(trajectory.turn_rewards)
    assert [request["model"] for request in sent] == ["openai/large"] * 3
    assert all(request["tools"] == TOOLS for request in sent)
    assert sent[0]["messages"] == [{"role": "user", "content": first_message(QUESTION)}]
    assert [message["role"] for message in sent[2]["messages"]] == ["user", *["assistant", "tool"] * 2]
    assert QUESTION.answer in sent[2]["messages"][-1]["content"] and sent[2]["messages"][-1]["tool_call_id"] == "call_2"


def test_a_reward_for_the_whole_search_has_none_for_its_turns(ask):
    trajectory, _ = ask(RIGHT, lambda search: search.metrics()["correct"] / 4)
    assert trajectory.reward == 0.25 and trajectory.turn_rewards is None


def test_an_answer_without_a_call_is_malformed(ask):
    trajectory, sent = ask([(None, "It is <b>tomorrow</b>.")])
    assert trajectory.turn_rewards == [-1] and trajectory.metrics["malformed"] == 1 and trajectory.metrics["turns"] == 1 and len(sent) == 1
    assert trajectory.messages()[-1]["content"] == "It is <b>tomorrow</b>."
