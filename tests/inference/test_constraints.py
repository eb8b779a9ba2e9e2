# ruff: noqa: F811  # fixtures of test_sampler are named as parameters
"""Constrained decoding: answers follow the constraint, log-probabilities remain those of the policy."""

import asyncio
import json
import random
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pydantic
import pytest
import torch
from test_sampler import (  # noqa: F401
    characters,
    check_continues,
    check_greedy,
    check_logprobs,
    checkpoints,
    chi_square_p,
    converse,
    one,
    policy,
    sampler,
    scripted,
    tokenizer,
    user,
)  # fmt: skip
from test_streaming import client_of, read_by_openai
from tiny_models import make_tokenizer
from transformers import AutoTokenizer

from art_nb.inference.chat import RequestError
from art_nb.inference.constraints import Constraint
from art_nb.inference.sampler import Sampler
from game_2048 import MOVE_TOOL

ROOT = Path(__file__).parents[2]
TOKENIZERS = ["nano", "nano_email", "nano_tic_tac_toe", "bytes"]


class Babbling:
    """An untrained model: its logits are noise, or the same everywhere."""

    def __init__(self, vocabulary, seed=0, logits=None):
        self.vocabulary, self.draws, self.logits = vocabulary, torch.Generator().manual_seed(seed), logits
        self.device, self.dtype, self.base_model = torch.device("cpu"), torch.float32, self
        self.config = SimpleNamespace(max_position_embeddings=4000, num_hidden_layers=1)
        self.generation_config = SimpleNamespace(eos_token_id=2)

    def eval(self):
        return self

    def __call__(self, logits_to_keep, slot_cache, **_):
        shape, slot_cache.attended = (len(logits_to_keep), self.vocabulary), [0]
        logits = torch.randn(shape, generator=self.draws) * 2 if self.logits is None else self.logits.expand(shape)
        return SimpleNamespace(logits=logits[None])


def tokenizer_of(name):
    return make_tokenizer() if name == "bytes" else AutoTokenizer.from_pretrained(ROOT / "data" / name)


def babbler(tokenizer, seed=0, logits=None):
    return Sampler(Babbling(len(tokenizer), seed, logits), tokenizer, slots=16)


def answers(sampler, **parameters):
    parameters = {"messages": [user("2 4")], "max_tokens": 300, **parameters}
    return asyncio.run(sampler.create(**parameters)).choices


def json_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def random_schema(draws, depth=2):
    kinds = ["integer", "number", "string", "pattern", "enum", "const", "boolean", "null", "any of", "nullable"]
    match draws.choice(kinds + ["object", "object", "array"] * (depth > 0)):
        case "integer":
            low = draws.randint(-50, 50)
            return {"type": "integer", "minimum": low, "maximum": low + draws.randint(0, 100)}
        case "number":
            return {"type": "number", "minimum": 0, "exclusiveMaximum": draws.randint(1, 9)}
        case "string":
            return {"type": "string", "minLength": draws.randint(0, 3), "maxLength": draws.randint(3, 9)}
        case "pattern":
            return {"type": "string", "pattern": draws.choice(["^[a-c]{2,5}$", r"^\d{3}-\d{2}$", "^(up|down)$"])}
        case "enum":
            return {"enum": draws.sample(["left", 3, None, True, "ü\n", '"'], 3)}
        case "const":
            return {"const": draws.choice([5, "x y", {"a": [1]}])}
        case "any of":
            return {"anyOf": [random_schema(draws, 0), random_schema(draws, 0)]}
        case "nullable":
            return {"type": ["boolean", "null"]}
        case "object":
            names = draws.sample(["a", "b c", "é", "<tool_call>"], draws.randint(0, 3))
            properties = {name: random_schema(draws, depth - 1) for name in names}
            required = [name for name in names if draws.random() < 0.7]
            return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        case "array":
            few = draws.randint(0, 2)
            return {"type": "array", "items": random_schema(draws, depth - 1), "minItems": few, "maxItems": few + 2}
        case kind:
            return {"type": kind}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_an_untrained_model_writes_json_of_the_schema(name):
    tokenizer = tokenizer_of(name)
    sampler, draws, finished, total = babbler(tokenizer), random.Random(name), 0, 0
    for _ in range(25):
        schema = random_schema(draws)
        for choice in answers(sampler, n=2, response_format=json_schema(schema)):
            total += 1
            if choice.finish_reason == "length":
                assert len(choice.token_ids) == 300
                continue
            finished += 1
            assert choice.finish_reason == "stop" and choice.token_ids[-1] in sampler.vocabulary.end_tokens
            value = json.loads(choice.message.content)
            jsonschema.Draft202012Validator(schema).validate(value)
    assert finished > 0.9 * total


def test_json_object_format(tokenizer):
    contents = [c.message.content for c in answers(babbler(tokenizer), n=8, response_format={"type": "json_object"}) if c.finish_reason == "stop"]
    assert contents and all(isinstance(json.loads(content), dict) for content in contents)


LOOK = {"type": "function", "function": {"name": "look"}}
POINT = {
    "type": "object", "properties": {"at": {"$ref": "#/$defs/point"}}, "required": ["at"], "additionalProperties": False,
    "$defs": {"point": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 2, "maxItems": 2}},
}  # fmt: skip
GO = {"type": "function", "function": {"name": 'go "there"', "parameters": POINT}}
CLOSED = {"type": "object", "additionalProperties": False}
STOP = {"type": "function", "function": {"name": "stop", "parameters": CLOSED}}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_required_tool_calls(name):
    sampler = babbler(tokenizer_of(name))
    seen = set()
    for choice in answers(sampler, n=12, tools=[GO, STOP], tool_choice="required"):
        assert choice.message.tool_calls and choice.finish_reason == "tool_calls"
        if len(choice.token_ids) < 300:
            assert choice.message.content == ""
        for call in choice.message.tool_calls:
            schemas = {'go "there"': POINT, "stop": CLOSED}
            jsonschema.validate(json.loads(call.function.arguments), schemas[call.function.name])
            seen.add(call.function.name)
    assert seen == {'go "there"', "stop"}
    named = {"type": "function", "function": {"name": 'go "there"'}}
    for request in ({"tool_choice": named}, {"tool_choice": "required", "parallel_tool_calls": False}):
        for choice in answers(sampler, n=6, tools=[STOP, GO], **request):
            assert len(choice.message.tool_calls) == 1
            assert request["tool_choice"] == "required" or choice.message.tool_calls[0].function.name == 'go "there"'


def test_tools_with_a_schema_give_a_call_or_json(tokenizer):
    kinds = set()
    for choice in answers(babbler(tokenizer), n=16, tools=[STOP], response_format=json_schema({"enum": [1, 2]})):
        assert choice.message.content in ("1", "2") if not choice.message.tool_calls else choice.message.content == ""
        kinds.add(choice.finish_reason)
    assert kinds == {"stop", "tool_calls"}


def test_allowed_tokens_keep_their_relative_probabilities(tokenizer):
    """The log-probabilities are those of the whole distribution."""
    logits = torch.randn(len(tokenizer), generator=torch.Generator().manual_seed(5))
    choices = answers(babbler(tokenizer, logits=logits), n=800, response_format=json_schema({"type": "boolean"}), max_tokens=1)
    ids = [token for token in range(len(tokenizer)) if tokenizer.decode([token]) in ("t", "f", "true", "false")]
    drawn = [choice.token_ids[0] for choice in choices]
    assert {*drawn} == {*ids} and len(ids) > 2
    counts = torch.tensor([drawn.count(token) for token in ids])
    assert chi_square_p(counts, logits[ids].double().softmax(0)) > 1e-4
    for choice in choices[:20]:
        expected = logits.log_softmax(-1)[choice.token_ids[0]].item()
        assert choice.token_logprobs == pytest.approx([expected], abs=1e-5)


def test_constraints_change_neither_logprobs_nor_the_rest_of_the_batch(policy, sampler):
    free = {"messages": [user("8 8")], "max_tokens": 12, "temperature": 0}

    async def main():
        request = {"messages": [user("2 4")], "max_tokens": 40, "n": 3, "logprobs": True, "top_logprobs": 2}
        ruled = sampler.create(**request, response_format=json_schema({"enum": ["left", "right"]}))
        return await asyncio.gather(ruled, sampler.create(**free), sampler.create(**free, response_format={"type": "json_object"}))

    ruled, alone, greedy = asyncio.run(main())
    for choice in (*ruled.choices, greedy.choices[0]):
        check_logprobs(policy, choice)
    assert {choice.message.content for choice in ruled.choices} <= {'"left"', '"right"'}
    assert greedy.choices[0].message.content.startswith("{")
    check_greedy(policy, alone.choices[0])


def test_openai_parse_method(sampler):
    class Move(pydantic.BaseModel):
        direction: str = pydantic.Field(pattern="^(left|right)$")
        far: bool

    async def main():
        request = {"model": "agent", "messages": [user("a")], "max_tokens": 300}
        client = client_of(sampler)
        parsed = await client.chat.completions.parse(**request, response_format=Move)
        streamed = await read_by_openai(client, **request, response_format=json_schema(Move.model_json_schema()))
        return parsed.choices[0].message.parsed, Move.model_validate_json(streamed.choices[0].message.content)

    parsed, streamed = asyncio.run(main())
    assert type(parsed) is Move and parsed.direction in ("left", "right") and streamed.direction in ("left", "right")


def test_parallel_tool_calls_false_stops_after_one_call(tokenizer):
    call = '<tool_call>{"name": "move", "arguments": {"direction": "left"}}</tool_call>'
    two, one_more = ([*characters(tokenizer, text), 2] for text in (f"so {call}{call} and", f"so {call} x"))
    request = {"tools": [MOVE_TOOL], "parallel_tool_calls": False}
    for script in (two, one_more):
        choice = one(scripted(tokenizer, script), [user("a")], **request)
        assert len(choice.message.tool_calls) == 1 and choice.message.content == "so"
        assert choice.finish_reason == "tool_calls" and "".join(choice.token_texts) == f"so {call}"
    for text in ("</tool_call>", "<tool_call>x</tool_call>"):
        inside = f"No </tool_call> yet. {call.replace('left', text)}"
        choice = one(scripted(tokenizer, [*characters(tokenizer, inside + call), 2]), [user("a")], **request)
        assert [each.function.arguments for each in choice.message.tool_calls] == [json.dumps({"direction": text})]
    result = {"role": "tool", "tool_call_id": "x", "content": "2 4"}
    check_continues(converse(scripted(tokenizer, one_more, one_more), ["a", result], **request))
    assert len(one(scripted(tokenizer, two), [user("a")], tools=[MOVE_TOOL]).message.tool_calls) == 2


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strange"}, {"$ref": "https://example.invalid/schema"}, {"type": "string", "pattern": "(?=a)b"},
        {"type": "string", "pattern": "["}, {"not": {"type": "string"}}, {"minimum": float("nan")},
        {"type": "array", "uniqueItems": True},
    ],
    ids=str,
)  # fmt: skip
def test_an_unsupported_schema_is_refused(sampler, schema):
    with pytest.raises(RequestError, match="schema"):
        answers(sampler, response_format=json_schema(schema))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": schema}}}}
    with pytest.raises(RequestError, match="schema"):
        answers(sampler, tools=[tool], tool_choice="required")
    assert not sampler.decoder.active and not sampler.decoder.waiting


def test_a_too_complex_grammar_fails_only_its_own_request(policy, sampler, monkeypatch):
    allowed, times = Constraint.allowed, []

    def fails_at_third(self, vocabulary):
        times.append(1)
        if len(times) == 3:
            raise RequestError("too complex")
        return allowed(self, vocabulary)

    monkeypatch.setattr(Constraint, "allowed", fails_at_third)

    async def main():
        ruled = sampler.create(messages=[user("2 4")], max_tokens=20, response_format={"type": "json_object"})
        free = sampler.create(messages=[user("8 8")], max_tokens=20, temperature=0)
        return await asyncio.gather(ruled, free, return_exceptions=True)

    ruled, free = asyncio.run(main())
    assert isinstance(ruled, RequestError)
    check_greedy(policy, free.choices[0])
    assert len(sampler.decoder.slots.free) == len(sampler.decoder.slots.held)
