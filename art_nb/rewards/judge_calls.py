"""One call of a language model as judge: through LiteLLM to any provider, or through an `openai` client.

Sorts failures by whether a retry can help. LiteLLM is imported at the first call.
"""

import re
from dataclasses import dataclass
from typing import Any

import openai

from art_nb.api_costs import load_litellm, stated_cost
from art_nb.metrics import MetricsBuilder

RETRYABLE = {408, 409, 425, 429}  # HTTP statuses; 500 and above are retryable, too
TOO_LONG = re.compile(
    r"context[ _](length|window|size)|maximum context|model's context of|prompt is too long|too many (input )?tokens", re.I
)
MAX_RETRY_AFTER = 60.0  # seconds


@dataclass(frozen=True)
class JudgeReply:
    """A provider's answer; cost_usd: None where the price is unknown."""

    text: str
    finish_reason: str | None
    refusal: str | None
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None


class JudgeUnavailable(Exception):
    """A temporary failure: rate limit, server error, lost connection or unreadable response.

    wait: seconds to wait before the next request, if the server states them.
    """

    def __init__(self, message: str, wait: float | None = None):
        super().__init__(message)
        self.wait = wait


class ContextExceeded(Exception):
    """The prompt is longer than the judge's context."""


async def call_judge(
    model: str, messages: list[dict], params: dict[str, Any], client: openai.AsyncOpenAI | None = None
) -> JudgeReply:
    """Send one request. client: an `openai` client; None: LiteLLM, where models are named provider/model.

    params: further arguments of the request; those that are None are omitted.

    Raises: JudgeUnavailable, ContextExceeded; openai.APIError (also LiteLLM's errors) when a retry can't help;
        ImportError when LiteLLM is needed but missing.
    """
    given = {name: value for name, value in params.items() if value is not None}
    create: Any = client.with_options(max_retries=0).chat.completions.create if client else _litellm().acompletion
    if not client:
        given = {"caching": False, "num_retries": 0, "max_retries": 0, **given}
    try:
        response = await create(model=model, messages=messages, **given)
    except openai.APIError as error:
        raise _classified(error) from error
    except ValueError as error:  # a body that is not JSON
        raise JudgeUnavailable(f"the server's answer can't be read: {error}") from error
    return _reply(response, model, "openai" if client else model.partition("/")[0].lower())


def context_tokens(model: str) -> int | None:
    """Return a model's maximum input tokens from LiteLLM's table; None for unknown models."""
    table = _litellm().model_cost
    known = table.get(model) or table.get(model.partition("/")[2]) or {}
    tokens = known.get("max_input_tokens")
    return int(tokens) if tokens else None


def _litellm() -> Any:
    try:
        return load_litellm()
    except ImportError as error:
        raise ImportError(
            "a judge named by provider/model needs LiteLLM, which is not installed: pip install 'art-nb[judge]', or pass "
            "LLMJudge(model, client=AsyncOpenAI(...)), or judge with RubricJudge()"
        ) from error


def _classified(error: openai.APIError) -> Exception:
    status = getattr(error, "status_code", None)
    text = f"{type(error).__name__}: {error}"
    if status in (400, 413) and TOO_LONG.search(str(error)):
        return ContextExceeded(text)
    if status is not None and status not in RETRYABLE and status < 500:
        return error
    response = getattr(error, "response", None)
    after = response.headers.get("retry-after", "") if response is not None else ""
    return JudgeUnavailable(text, min(float(after), MAX_RETRY_AFTER) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", after) else None)


def _reply(response: Any, model: str, provider: str) -> JudgeReply:
    choices = getattr(response, "choices", None)
    if not choices or choices[0].message is None:
        raise JudgeUnavailable(f"the server's answer contains no choice: {str(response)[:200]!r}")
    message, usage, builder = choices[0].message, response.usage, MetricsBuilder.active_or_none()
    prompt, completion = (getattr(usage, f"{name}_tokens", None) for name in ("prompt", "completion"))
    priced = builder is not None and None not in (prompt, completion)
    known = builder.registered_cost(response, provider=provider, model_name=model) if builder and priced else None
    return JudgeReply(
        text=message.content or "",
        finish_reason=choices[0].finish_reason,
        refusal=getattr(message, "refusal", None),
        prompt_tokens=prompt or 0,
        completion_tokens=completion or 0,
        cost_usd=known if priced else stated_cost(response),
    )
