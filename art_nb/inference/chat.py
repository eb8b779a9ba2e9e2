"""OpenAI's chat completion format: the parameters of a request, their validation, and tool calls as text.

Source: https://platform.openai.com/docs/api-reference/chat/create
"""

import json
import re
from typing import Annotated, Any, Literal, Protocol, Self, TypeGuard

import httpx
import openai
from openai.types.chat.chat_completion import Choice
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

TOOL_START, TOOL_END = "<tool_call>", "</tool_call>"
TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
# Parameters for accounts, storage and transport, which do not affect the answer.
IGNORED = {"extra_headers", "extra_query", "user", "store", "metadata", "service_tier", "safety_identifier"}
SAMPLING_FIELDS = {"prompt_token_ids", "token_ids", "token_logprobs", "token_texts", "policy"}  # see `SampledChoice`
URL = "http://in-process.invalid/v1/chat/completions"


class RequestError(openai.BadRequestError, ValueError):
    """An invalid request. The message names the parameter, what was expected, and what to do.

    A subclass of the error that the `openai` client raises when a server answers with status 400.
    """

    def __init__(self, message: str):
        response = httpx.Response(400, request=httpx.Request("POST", URL))
        super().__init__(message, response=response, body={"message": message, "type": "invalid_request_error"})


def _check_tools(tools: list[dict]) -> list[dict]:
    for tool in tools:
        function = tool.get("function")
        fields = function if isinstance(function, dict) else {}
        if not isinstance(fields.get("name"), str) or not isinstance(fields.get("parameters") or {}, dict):
            raise ValueError(f'tools holds {tool!r}: expected {{"type": "function", "function": {{"name": ...}}}}')
    return tools


def _schema(response_format: Any) -> dict | None:
    match response_format:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "object"}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return schema
    form = '{"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}'
    raise ValueError(f"response_format is {response_format!r}: expected {form}, or type 'text' or 'json_object'")


def _as_list(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, tuple) else stop


NonEmpty = Annotated[str, Field(min_length=1)]
TRUE_OR_FALSE, TOKENS, ZERO = "True or False", f"an integer from 1 to {2**31}", "0; other values are not supported"
STRINGS = "a non-empty string or a list of them"


class ChatOptions(BaseModel):
    """The parameters of a request without its messages; names are the API's, and vLLM's `chat_template_kwargs`.

    Each description completes the error message "<name> is <value>: expected ...". After validation, max_tokens is that or
    else max_completion_tokens; tools is None if there are none or `tool_choice` is "none"; response_format is the JSON
    schema of the content, None for any text.
    """

    model_config = ConfigDict(strict=True)

    model: str = Field("", description="a name")
    temperature: float = Field(1.0, ge=0, le=100, description="a number from 0 to 100")
    top_p: float = Field(1.0, ge=1e-6, le=1, description="a number from 1e-06 to 1")
    frequency_penalty: float = Field(0.0, ge=0, le=0, description=ZERO)
    presence_penalty: float = Field(0.0, ge=0, le=0, description=ZERO)
    n: int = Field(1, ge=1, le=1024, description="an integer from 1 to 1024")
    seed: int | None = Field(None, ge=-(2**63), le=2**63, description=f"an integer from {-(2**63)} to {2**63}")
    max_tokens: int | None = Field(None, ge=1, le=2**31, description=TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=2**31, description=TOKENS)
    stop: Annotated[list[NonEmpty], BeforeValidator(_as_list)] = Field([], description=STRINGS)
    logprobs: bool = Field(False, description=TRUE_OR_FALSE)
    top_logprobs: int = Field(0, ge=0, le=20, description="an integer from 0 to 20")
    tools: Annotated[list[dict], AfterValidator(_check_tools)] | None = Field(None, description="a list of tool schemas")
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = Field(True, description=TRUE_OR_FALSE)
    response_format: Annotated[Any, AfterValidator(_schema)] = None
    chat_template_kwargs: dict = Field({}, description="a dict")
    stream: bool = Field(False, description=TRUE_OR_FALSE)
    stream_options: dict[Literal["include_usage"], bool] = Field({}, description='{"include_usage": True or False}')

    @property
    def function(self) -> str | None:
        """The name of the only function that may be called; None: any."""
        return self.tool_choice["function"]["name"] if isinstance(self.tool_choice, dict) else None

    @property
    def must_call(self) -> bool:
        """Whether the answer must be a tool call."""
        return self.tool_choice not in ("none", "auto")

    @property
    def include_usage(self) -> bool:
        return self.stream_options.get("include_usage", False)

    @model_validator(mode="after")
    def _combine(self) -> Self:
        names = [tool["function"]["name"] for tool in self.tools or []]
        match self.tool_choice:
            case {"type": "function", "function": {"name": str(name)}}:
                possible = name in names
            case choice:
                possible = choice in ("none", "auto") or choice == "required" and bool(names)
        if not possible:
            expected = f"'none', 'auto', 'required' or one of the functions in tools: {', '.join(names) or 'there are none'}"
            raise ValueError(f"tool_choice is {self.tool_choice!r}: expected {expected}")
        if self.top_logprobs and not self.logprobs:
            raise ValueError(f"top_logprobs is {self.top_logprobs}: it requires logprobs=True")
        if self.include_usage and not self.stream:
            raise ValueError("stream_options: they require stream=True")
        self.tools = self.tools if names and self.tool_choice != "none" else None
        self.max_tokens = self.max_completion_tokens if self.max_tokens is None else self.max_tokens
        return self


def parse_options(parameters: dict[str, Any]) -> ChatOptions:
    """Validate the parameters of a request. None and openai's "not given" count as missing; `extra_body` is merged.

    Raises:
        RequestError: a parameter is unknown, of the wrong type, out of range or in conflict with another one.
    """
    given = {k: v for k, v in parameters.items() if v is not None and type(v).__name__ not in ("NotGiven", "Omit")}
    extra = given.pop("extra_body", {})
    if not isinstance(extra, dict):
        raise RequestError(f"extra_body is {extra!r}: expected a dict")
    given |= extra
    fields = ChatOptions.model_fields
    if unknown := sorted(given.keys() - fields.keys() - IGNORED):
        known = ", ".join(sorted([*fields, "extra_body"]))
        raise RequestError(f"{', '.join(unknown)}: unknown here; this sampler supports {known}")
    try:
        return ChatOptions.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":
            raise RequestError(str(first["ctx"]["error"])) from error
        name = str(first["loc"][0])
        raise RequestError(f"{name} is {given[name]!r}: expected {fields[name].description}") from error


class SampledChoice(Protocol):
    """The fields that a `Sampler` adds to each choice.

    token_logprobs: natural log at temperature 1 over the whole vocabulary; token_texts: each token decoded alone.
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    token_logprobs: list[float]
    token_texts: list[str]
    policy: str


def is_sampled(choice: Choice) -> TypeGuard[SampledChoice]:
    """Return whether the choice has token_ids, prompt_token_ids and token_logprobs; those of vLLM have at most the first."""
    fields = "prompt_token_ids", "token_logprobs"
    return bool(getattr(choice, "token_ids", None)) and all(hasattr(choice, name) for name in fields)


def parse_tool_calls(text: str) -> tuple[list[dict], str]:
    """Parse tool calls in Hermes' and Qwen's format, <tool_call>{"name": ..., "arguments": {...}}</tool_call>.

    Returns the calls in OpenAI's format, and the rest of the text without trailing whitespace. If there is no call or one is
    malformed, returns [] and the unchanged text.
    """
    calls: list[dict[str, Any]] = []
    for match in TOOL_CALL.finditer(text):
        try:
            call = json.loads(match[1])
            arguments = json.dumps(call.get("arguments", {}), ensure_ascii=False, allow_nan=False)
            f"{call['name']:s}{arguments}".encode()  # a lone surrogate is valid JSON, but not text
        except (ValueError, KeyError, TypeError, RecursionError):
            return [], text
        function = {"name": call["name"], "arguments": arguments}
        calls.append({"id": f"call_{len(calls)}", "type": "function", "function": function})
    return calls, TOOL_CALL.sub("", text).rstrip() if calls else text
