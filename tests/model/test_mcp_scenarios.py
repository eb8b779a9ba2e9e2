"""art_nb.mcp: ART's names for scenarios that a language model writes for the tools of an MCP server."""

import asyncio
import json
import random

import pytest
from judge_server import JudgeServer, Response, completion

from art_nb.mcp import (
    GeneratedScenario,
    GeneratedScenarioCollection,
    MCPResource,
    MCPTool,
    complete_task_tool,
    generate_scenarios,
)

TOOLS = [MCPTool("find", "Find {notes}.", {"type": "object", "properties": {"words": {"type": "string"}}}), complete_task_tool]
TASKS = [{"task": "Find the note on \x1b[31mbees\x1b[0m.\nSummarise it.", "difficulty": 1}, {"task": "Compare all notes.", "difficulty": 5}]


def generated(answer, tools=TOOLS, **options):
    """Return the scenarios and the body of the only request. answer: a text, or the whole response."""
    response = completion(answer) if isinstance(answer, str) else answer
    with JudgeServer(lambda number, request: response) as server:
        scenarios = asyncio.run(generate_scenarios(tools, generator_base_url=server.url, generator_api_key="k", **options))
        (request,) = server.requests
        return scenarios, request


NO_CHOICES = Response(b'{"choices": [], "error": {"message": "overloaded"}}', headers={"content-type": "application/json"})


def test_scenarios_come_from_one_request_with_a_schema(capsys):
    resource = MCPResource.from_dict({"uri": "notes://all", "name": "all", "description": "All notes.", "mimeType": "text/plain"})
    found, request = generated(json.dumps({"scenarios": TASKS}), resources=[resource], num_scenarios=2, custom_instructions="In verse.")
    assert found.to_dicts() == TASKS and isinstance(found[0], GeneratedScenario) and len(found) == 2
    schema = request["response_format"]["json_schema"]["schema"]["properties"]["scenarios"]
    assert (schema["minItems"], schema["maxItems"]) == (2, 2) and request["model"] == "openai/gpt-4.1-mini"
    (prompt,) = (message["content"] for message in request["messages"])
    assert all(text in prompt for text in ("Write 2 different tasks", "Find {notes}.", '"mimeType": "text/plain"', "In verse."))
    printed = capsys.readouterr().out
    assert "1. Find the note on  [31mbees" in printed and "\x1b" not in printed and "5: 1" in printed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Here they are.", "not a list of scenarios: 'Here they are.'"),
        ('{"scenarios": 3}', "not a list of scenarios"),
        (json.dumps(TASKS[:1]), "wrote 1 scenarios instead of 2"),
        (json.dumps([TASKS[0], {"task": "x", "difficulty": 6}]), "not a list of scenarios"),
        (json.dumps([TASKS[0], {"task": "x"}]), "not a list of scenarios"),
        ('["Find.", "Compare."]', "not a list of scenarios"),
        ("[3, 4]", "not a list of scenarios"),
        ("[" * 100_000, "not a list of scenarios"),
        (completion(json.dumps(TASKS), "length"), "was truncated; ask for fewer scenarios than 2"),
        (NO_CHOICES, "returned no answer.*overloaded"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for(text, message):
    with pytest.raises(ValueError, match=message):
        generated(text, num_scenarios=2)


def test_a_preview_is_optional_and_resources_may_be_none(capsys):
    generated(json.dumps(TASKS), num_scenarios=2, show_preview=False, resources=None)
    assert not capsys.readouterr().out


def test_what_is_needed_before_a_request(monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(ValueError, match="at least one tool or resource"):
        asyncio.run(generate_scenarios([]))
    with pytest.raises(ValueError, match="OPENROUTER_API_KEY"):
        asyncio.run(generate_scenarios(TOOLS))


def test_a_collection_is_split_filtered_and_written():
    many = GeneratedScenarioCollection([GeneratedScenario(f"task {i}", 1 + i % 5) for i in range(10)])
    random.seed(0)
    shuffled = many.shuffle()
    assert shuffled.to_dicts() != many.to_dicts()
    train, val = shuffled.split(7)
    assert (len(train), len(val)) == (7, 3) and sorted(s.task for s in [*train, *val]) == [s.task for s in many]
    assert [s.difficulty for s in many.filter_by_difficulty(4)] == [4, 5, 4, 5]
    assert GeneratedScenarioCollection.from_json(many.to_json(indent=2)).to_dicts() == many.to_dicts()
    assert many.get_summary() == {"total_scenarios": 10, "difficulty_distribution": dict.fromkeys(range(1, 6), 2), "avg_difficulty": 3, "avg_task_length": 6}
    assert GeneratedScenario("x" * 130, 1).preview() == "x" * 120 + "…"
    with pytest.raises(ValueError, match="train_size must be from 0 to 10"):
        many.split(11)
    for difficulty in (0, 6, "2", 1.5):
        with pytest.raises(ValueError, match="difficulty"):
            GeneratedScenario(task="task", difficulty=difficulty)
    assert complete_task_tool.to_tool_schema()["function"]["name"] == "complete_task"
    assert MCPResource("u", "n", "d", "").to_dict() == {"uri": "u", "name": "n", "description": "d"}
