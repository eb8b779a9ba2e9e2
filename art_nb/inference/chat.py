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

TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
IGNORED = {"extra_headers", "extra_query", "timeout", "user", "store", "metadata", "service_tier", "parallel_tool_calls"}
PENALTIES = ("frequency_penalty", "presence_penalty")
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
    """A checked request, without its messages; names and defaults are the API's."""

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
    chat_template_kwargs: dict


@dataclass
class Answer:
    """What was sampled for one choice.

    logprobs: of each token, natural log at temperature 1 over the whole vocabulary; texts: each token decoded by
    itself; alternatives: per token the likeliest (text, logprob) pairs, where they were asked for.
    """

    prompt: list[int]
    content: str
    finish_reason: str
    tokens: list[int]
    logprobs: list[float]
    texts: list[str]
    alternatives: list[list[tuple[str, float]]] = field(default_factory=list)


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
    if _typed(given, "stream", False, bool, "True or False"):
        raise RequestError("stream=True is not supported in process: leave it out, the answer comes whole")
    for name in PENALTIES:
        _number(given, name, 0.0, 0.0, 0.0)
    lengths = [_integer(given, name, None, 1, 2**31) for name in ("max_tokens", "max_completion_tokens")]
    choice = given.pop("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise RequestError(f"tool_choice is {choice!r}: expected 'auto' or 'none', others are not supported in process")
    tools = _tools(given)
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
        tools=tools if choice == "auto" else None,
        chat_template_kwargs=_typed(given, "chat_template_kwargs", {}, dict, "a dict"),
    )
    if options.top_logprobs and not options.logprobs:
        raise RequestError(f"top_logprobs is {options.top_logprobs}: it needs logprobs=True beside it")
    if unknown := sorted(set(given) - IGNORED):
        known = sorted([*Options.__dataclass_fields__, "max_completion_tokens", "tool_choice", "extra_body"])
        raise RequestError(f"{', '.join(unknown)}: unknown here; this sampler knows {', '.join(known)}")
    return options


def completion(key: str, options: Options, answers: list[Answer]) -> ChatCompletion:
    """The answers to one request as the API returns them; `key` makes the ids, unique to the request.

    Each choice also carries `prompt_token_ids`, `token_ids`, `token_logprobs` and `token_texts`, see `Answer`.
    """
    asked, sampled = len(answers[0].prompt), sum(len(answer.tokens) for answer in answers)
    return ChatCompletion(
        id=f"chatcmpl-{key}",
        object="chat.completion",
        created=int(time.time()),
        model=options.model,
        choices=[_choice(f"{key}-{i}", i, answer, options) for i, answer in enumerate(answers)],
        usage=CompletionUsage(prompt_tokens=asked, completion_tokens=sampled, total_tokens=asked + sampled),
    )


def parse_tool_calls(text: str) -> tuple[list[dict], str]:
    """Tool calls written as <tool_call>{"name": ..., "arguments": {...}}</tool_call> (Hermes, Qwen), and the other text.

    A malformed call is left in the text, where whoever reads the answer can see it.
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
    return calls, TOOL_CALL.sub("", text).strip() if calls else text


def _choice(key: str, index: int, answer: Answer, options: Options) -> Choice:
    calls, said = parse_tool_calls(answer.content) if options.tools else ([], answer.content)
    message: dict[str, Any] = {"role": "assistant", "content": said}
    if calls:
        message["tool_calls"] = [{**call, "id": f"{call['id']}_{key}"} for call in calls]
    return Choice(
        index=index,
        finish_reason="tool_calls" if calls else answer.finish_reason,
        message=ChatCompletionMessage.model_validate(message),
        logprobs=_logprobs(answer) if options.logprobs else None,
        prompt_token_ids=answer.prompt,
        token_ids=answer.tokens,
        token_logprobs=answer.logprobs,
        token_texts=answer.texts,
    )


def _logprobs(answer: Answer) -> ChoiceLogprobs:
    content = []
    for i, (text, logprob) in enumerate(zip(answer.texts, answer.logprobs, strict=True)):
        top = [_token(TopLogprob, *pair) for pair in answer.alternatives[i]]
        content.append(_token(ChatCompletionTokenLogprob, text, logprob, top_logprobs=top))
    return ChoiceLogprobs(content=content)


def _token(kind: type, text: str, logprob: float, **more: Any) -> Any:
    return kind(token=text, bytes=list(text.encode()), logprob=logprob, **more)


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
