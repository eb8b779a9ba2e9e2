"""One call of a judge: through LiteLLM to any provider, or through a given `openai` client; failures sorted by what helps.

LiteLLM is imported at the first call.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import openai

from art_nb.api_costs import load_litellm, stated_cost
from art_nb.metrics import MetricsBuilder

if TYPE_CHECKING:
    from openai import AsyncOpenAI

WORTH_RETRYING = {408, 409, 425, 429}  # and 500 up
TOO_LONG = re.compile(r"context[ _](length|window)|maximum context|prompt is too long|too many (input )?tokens", re.I)
LONGEST_WAIT = 60.0  # seconds, whatever a server asks for


@dataclass(frozen=True)
class Reply:
    """What came back. finish_reason, refusal: as the provider says; cost_usd: None where no price is known."""

    text: str
    finish_reason: str | None
    refusal: str | None
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None


class Busy(Exception):
    """A failure that may pass: too many requests, an error of the server, no connection, no sense in its answer.

    wait: seconds after which the server wants to be asked again, if it says.
    """

    def __init__(self, message: str, wait: float | None = None):
        super().__init__(message)
        self.wait = wait


class TooLong(Exception):
    """The question is longer than the judge's context."""


async def call(model: str, messages: list[dict], params: dict[str, Any], client: "AsyncOpenAI | None" = None) -> Reply:
    """Ask once. client: an `openai` client; None asks through LiteLLM, whose names of models are provider/model.

    params: further arguments of the request; those that are None are left out.

    Raises: Busy, TooLong; openai.APIError (LiteLLM's errors are of that class too) where asking again can't help;
        ImportError when LiteLLM is needed and missing.
    """
    given = {name: value for name, value in params.items() if value is not None}
    ask: Any = client.with_options(max_retries=0).chat.completions.create if client else _litellm().acompletion
    if not client:
        given = {"caching": False, "num_retries": 0, "max_retries": 0, **given}
    try:
        response = await ask(model=model, messages=messages, **given)
    except openai.APIError as error:
        raise _sorted(error) from error
    except ValueError as error:  # a body that is not JSON
        raise Busy(f"the server's answer can't be read: {error}") from error
    return _reply(response, model, None if client is None else "openai")


def context_tokens(model: str) -> int | None:
    """The longest input of a model by LiteLLM's table; None when it does not know the model."""
    table = _litellm().model_cost
    known = table.get(model) or table.get(model.partition("/")[2]) or {}
    tokens = known.get("max_input_tokens")
    return int(tokens) if tokens else None


def _litellm() -> Any:
    try:
        return load_litellm()
    except ImportError as error:
        raise ImportError(
            "a judge named by provider/model is called through LiteLLM, which is not installed: "
            "pip install 'art-nb[judge]', or pass LLMJudge(model, client=AsyncOpenAI(...)), or judge by RubricJudge()"
        ) from error


def _sorted(error: openai.APIError) -> Exception:
    status = getattr(error, "status_code", None)
    said = f"{type(error).__name__}: {error}"
    if status in (400, 413) and TOO_LONG.search(str(error)):
        return TooLong(said)
    passing = status is None or status in WORTH_RETRYING or status >= 500
    return Busy(said, _wait(error)) if passing else error


def _wait(error: openai.APIError) -> float | None:
    response = getattr(error, "response", None)
    asked = response.headers.get("retry-after", "") if response is not None else ""
    return min(float(asked), LONGEST_WAIT) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", asked) else None


def _reply(response: Any, model: str, provider: str | None) -> Reply:
    choices = getattr(response, "choices", None)
    if not choices or choices[0].message is None:
        raise Busy(f"the server's answer holds no choice: {str(response)[:200]!r}")
    message, usage = choices[0].message, response.usage
    return Reply(
        text=message.content or "",
        finish_reason=choices[0].finish_reason,
        refusal=getattr(message, "refusal", None),
        prompt_tokens=usage.prompt_tokens if usage else 0,
        completion_tokens=usage.completion_tokens if usage else 0,
        cost_usd=_cost(response, provider or model.partition("/")[0].lower(), model),
    )


def _cost(response: Any, provider: str, model: str) -> float | None:
    """As the answer or LiteLLM says, or by what the active `MetricsBuilder` was told of the model's prices."""
    builder = MetricsBuilder.active_one()
    if builder is None or not response.usage:
        return stated_cost(response)
    return builder.registered_cost(response, provider=provider, model_name=model)
