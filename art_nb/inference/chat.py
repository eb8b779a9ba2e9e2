"""OpenAI's chat completions as data: what a request may ask for, and an answer in the shape its reader expects."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard, TypeVar

import httpx
import openai
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob, TopLogprob
from openai.types.completion_usage import CompletionUsage

T = TypeVar("T")

TOOL_MARK, TOOL_END = "<tool_call>", "</tool_call>"
TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
# They say who asks, what to keep of it and how to send it; nothing of the answer.
IGNORED = {"extra_headers", "extra_query", "user", "store", "metadata", "service_tier", "safety_identifier"}
# What `Options` calls otherwise than the API does, and how the API calls it.
INSIDE = {"must_call", "function", "schema", "include_usage"}
OUTSIDE = {"tool_choice", "max_completion_tokens", "response_format", "stream_options", "extra_body"}
PENALTIES = ("frequency_penalty", "presence_penalty")
OF_SAMPLING = {"prompt_token_ids", "token_ids", "token_logprobs", "token_texts", "policy"}  # see `choice`
URL = "http://in-process.invalid/v1/chat/completions"


class RequestError(openai.BadRequestError, ValueError):
    """A request that can't be answered: says which parameter, what was expected, what to do.

    It is the error that a server would cause in the `openai` client (status 400), so code written for one handles it.
    """

    def __init__(self, message: str):
        response = httpx.Response(400, request=httpx.Request("POST", URL))
        super().__init__(message, response=response, body={"message": message, "type": "invalid_request_error"})


@dataclass(frozen=True)
class Options:
    """A checked request, without its messages; names and defaults are the API's.

    tools: None as well where the request lets none be called. must_call: whether the answer has to be a call, of
    `function` if it names one. schema: of the JSON that the content has to be; None where it may be any text.
    """

    model: str
    temperature: float
    top_p: float
    n: int
    seed: int | None
    max_tokens: int | None
    stop: list[str]
    logprobs: bool
    top_logprobs: int
    tools: list[dict] | None
    must_call: bool
    function: str | None
    parallel_tool_calls: bool
    schema: dict | None
    chat_template_kwargs: dict
    stream: bool
    include_usage: bool


@dataclass
class Answer:
    """What was sampled for one choice.

    logprobs: of each token, natural log at temperature 1 over the whole vocabulary; texts: each token decoded by
    itself; policy: the name of the one that was asked. Where log-probabilities were asked for: raw, each token's bytes,
    of a character's parts too; alternatives, per token the likeliest (text, raw, logprob).
    """

    policy: str
    prompt: list[int]
    content: str
    finish_reason: str
    tokens: list[int]
    logprobs: list[float]
    texts: list[str]
    raw: list[bytes] = field(default_factory=list)
    alternatives: list[list[tuple[str, bytes, float]]] = field(default_factory=list)


class Sampled(Protocol):
    """What a `Choice` of our sampler has beside OpenAI's fields, see `Answer`."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    token_logprobs: list[float]
    token_texts: list[str]


def is_sampled(choice: Choice) -> TypeGuard[Sampled]:
    """Whether our sampler made it: then its tokens are known."""
    return bool(getattr(choice, "token_ids", None))


def check(parameters: dict[str, Any]) -> Options:
    """The request's options, defaults filled in.

    Raises:
        RequestError: a parameter that is unknown or out of range; it names the parameter.
    """
    given = {k: v for k, v in parameters.items() if v is not None and type(v).__name__ not in ("NotGiven", "Omit")}
    given |= _typed(given, "extra_body", {}, dict, "a dict")
    for name in PENALTIES:
        _number(given, name, 0.0, 0.0, 0.0)
    lengths = [_integer(given, name, None, 1, 2**31) for name in ("max_tokens", "max_completion_tokens")]
    tools = _tools(given)
    tool_choice, function = _tool_choice(given, tools)
    options = Options(
        model=_typed(given, "model", "", str, "a name"),
        temperature=_number(given, "temperature", 1.0, 0.0, 100.0),
        top_p=_number(given, "top_p", 1.0, 1e-6, 1.0),
        n=_integer(given, "n", 1, 1, 1024),
        seed=_integer(given, "seed", None, -(2**63), 2**63),
        max_tokens=next((length for length in lengths if length is not None), None),
        stop=_stop(given),
        logprobs=_typed(given, "logprobs", False, bool, "True or False"),
        top_logprobs=_integer(given, "top_logprobs", 0, 0, 20),
        tools=tools if tool_choice != "none" else None,
        must_call=tool_choice == "required",
        function=function,
        parallel_tool_calls=_typed(given, "parallel_tool_calls", True, bool, "True or False"),
        schema=_schema(given),
        chat_template_kwargs=_typed(given, "chat_template_kwargs", {}, dict, "a dict"),
        stream=_typed(given, "stream", False, bool, "True or False"),
        include_usage=_include_usage(given),
    )
    if options.top_logprobs and not options.logprobs:
        raise RequestError(f"top_logprobs is {options.top_logprobs}: it needs logprobs=True beside it")
    if options.include_usage and not options.stream:
        raise RequestError("stream_options: they need stream=True beside them")
    if unknown := sorted(set(given) - IGNORED):
        known = sorted(({*Options.__dataclass_fields__} - INSIDE) | OUTSIDE)
        raise RequestError(f"{', '.join(unknown)}: unknown here; this sampler knows {', '.join(known)}")
    return options


def completion(key: str, options: Options, answers: list[Answer]) -> ChatCompletion:
    """The answers to one request as the API returns them; `key` makes the ids, unique to the request."""
    asked, sampled = len(answers[0].prompt), sum(len(answer.tokens) for answer in answers)
    return ChatCompletion(
        **head(key, options),
        object="chat.completion",
        choices=[choice(key, i, answer, options) for i, answer in enumerate(answers)],
        usage=CompletionUsage(prompt_tokens=asked, completion_tokens=sampled, total_tokens=asked + sampled),
    )


def head(key: str, options: Options) -> dict[str, Any]:
    """What an answer begins with, whole or in chunks."""
    return {"id": f"chatcmpl-{key}", "created": int(time.time()), "model": options.model}


def choice(key: str, index: int, answer: Answer, options: Options) -> Choice:
    """One answer as the API returns it.

    It also carries `prompt_token_ids`, `token_ids`, `token_logprobs`, `token_texts` and `policy`, see `Answer`.
    """
    calls, said = parse_tool_calls(answer.content) if options.tools else ([], answer.content)
    message: dict[str, Any] = {"role": "assistant", "content": said}
    if calls:
        message["tool_calls"] = [{**call, "id": f"{call['id']}_{key}-{index}"} for call in calls]
    return Choice(
        index=index,
        finish_reason="tool_calls" if calls else answer.finish_reason,
        message=ChatCompletionMessage.model_validate(message),
        logprobs=logprobs(answer) if options.logprobs else None,
        prompt_token_ids=answer.prompt,
        token_ids=answer.tokens,
        token_logprobs=answer.logprobs,
        token_texts=answer.texts,
        policy=answer.policy,
    )


def logprobs(answer: Answer, start: int = 0) -> ChoiceLogprobs:
    """The API's log-probabilities of the answer's tokens, from one on."""
    content = []
    for i in range(start, len(answer.tokens)):
        top = [_token(TopLogprob, *each) for each in answer.alternatives[i]]
        own = answer.texts[i], answer.raw[i], answer.logprobs[i]
        content.append(_token(ChatCompletionTokenLogprob, *own, top_logprobs=top))
    return ChoiceLogprobs(content=content)


def parse_tool_calls(text: str) -> tuple[list[dict], str]:
    """Tool calls written as <tool_call>{"name": ..., "arguments": {...}}</tool_call> (Hermes, Qwen), and the other text.

    A malformed call is left in the text, where whoever reads the answer can see it; the text's blanks at the end go.
    """
    calls: list[dict[str, Any]] = []
    for match in TOOL_CALL.finditer(text):
        try:
            call = json.loads(match[1])
            arguments = json.dumps(call.get("arguments", {}), ensure_ascii=False)
            f"{call['name']:s}{arguments}".encode()  # half a surrogate pair is JSON, but not text
        except (ValueError, KeyError, TypeError, RecursionError):
            return [], text
        function = {"name": call["name"], "arguments": arguments}
        calls.append({"id": f"call_{len(calls)}", "type": "function", "function": function})
    return calls, TOOL_CALL.sub("", text).rstrip() if calls else text


def _token(kind: type, text: str, raw: bytes, logprob: float, **more: Any) -> Any:
    return kind(token=text, bytes=list(raw), logprob=logprob, **more)


def _number(given: dict, name: str, default: float, low: float, high: float) -> float:
    value = given.pop(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        expected = f"a number from {low:g} to {high:g}" if low < high else f"{low:g}, others are not supported"
        raise RequestError(f"{name} is {value!r}: expected {expected}")
    return float(value)


def _integer(given: dict, name: str, default: T, low: int, high: int) -> int | T:
    value: int | T = given.pop(name, default)
    if value is not default and (isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high):
        raise RequestError(f"{name} is {value!r}: expected an integer from {low} to {high}")
    return value


def _typed(given: dict, name: str, default: Any, kind: type, expected: str) -> Any:
    value = given.pop(name, default)
    if not isinstance(value, kind):
        raise RequestError(f"{name} is {value!r}: expected {expected}")
    return value


def _include_usage(given: dict) -> bool:
    wanted = _typed(given, "stream_options", {}, dict, "a dict")
    if set(wanted) - {"include_usage"} or not isinstance(include := wanted.get("include_usage", False), bool):
        raise RequestError(f'stream_options is {wanted!r}: expected {{"include_usage": True or False}}')
    return include


def _stop(given: dict) -> list[str]:
    stop = given.pop("stop", [])
    strings = [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, list | tuple) or not all(isinstance(s, str) and s for s in strings):
        raise RequestError(f"stop is {stop!r}: expected a non-empty string or a list of them")
    return list(strings)


def _tools(given: dict) -> list[dict] | None:
    tools = _typed(given, "tools", [], list, "a list of tool schemas")
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(f'tools holds {tool!r}: expected {{"type": "function", "function": {{"name": ...}}}}')
    return tools or None


def _tool_choice(given: dict, tools: list[dict] | None) -> tuple[str, str | None]:
    """"none", "auto" or "required", and the name of the only function that may be called."""
    choice = given.pop("tool_choice", "auto")
    names = [tool["function"]["name"] for tool in tools or []]
    match choice:
        case "none" | "auto":
            return choice, None
        case "required" if names:
            return choice, None
        case {"type": "function", "function": {"name": str(name)}} if name in names:
            return "required", name
    expected = f"'none', 'auto', 'required' or a function's name, of those in tools: {', '.join(names) or 'there are none'}"
    raise RequestError(f"tool_choice is {choice!r}: expected {expected}")


def _schema(given: dict) -> dict | None:
    wanted = given.pop("response_format", {"type": "text"})
    match wanted:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "object"}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return schema
    form = '{"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}'
    raise RequestError(f"response_format is {wanted!r}: expected {form}, or type 'text' or 'json_object'")
