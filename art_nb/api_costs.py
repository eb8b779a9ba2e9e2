"""Costs of language model API calls: the provider's figure, else tokens times a given, registered or LiteLLM price.

Never guesses a price. Reads responses in OpenAI's and Anthropic's formats. Does not depend on models, training or steps.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

MILLION = 1_000_000


@dataclass(frozen=True)
class TokenPricing:
    """US dollars per million tokens. Where a cache price is None, cached tokens cost the prompt price.

    cached_prompt_per_million: reads from OpenAI's cache; cache_creation_per_million, cache_read_per_million: Anthropic's.
    """

    prompt_per_million: float
    completion_per_million: float
    cached_prompt_per_million: float | None = None
    cache_creation_per_million: float | None = None
    cache_read_per_million: float | None = None


def load_litellm() -> Any:
    """Import and return `litellm`, with its telemetry, debug hints and downloads turned off.

    Raises: ImportError when it is not installed.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_LOCAL_BLOG_POSTS", "True")
    os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
    import litellm

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.disable_hf_tokenizer_download = True
    return litellm


def listed_pricing(model_name: str) -> TokenPricing | None:
    """Return the price in LiteLLM's table; None when the model is not in it, or LiteLLM is not installed."""
    try:
        table: Mapping[str, Any] = load_litellm().model_cost
    except ImportError:
        return None
    provider, _, name = model_name.partition("/")
    row = table.get(model_name) or table.get(name) or {}
    if model_name not in table and provider not in row.get("litellm_provider", ""):
        return None  # the same name at another provider
    columns = "input_cost_per_token", "output_cost_per_token"
    caching = "cache_creation_input_token_cost", "cache_read_input_token_cost"
    per_token = [row.get(name) for name in columns + caching]
    prompt, completion, created, read = (None if price is None else price * MILLION for price in per_token)
    return None if prompt is None or completion is None else TokenPricing(prompt, completion, read, created, read)


def chosen_pricing(
    model_name: str, known: TokenPricing | None, needed: Collection[str], given: Iterable[float | None]
) -> TokenPricing:
    """Return the given prices (the fields of `TokenPricing`); None is filled in from `known`, else from LiteLLM's table.

    needed: names of fields. The table, which takes seconds to load, is not loaded when all of them are given.

    Raises: ValueError when the price of prompt or completion tokens is unknown.
    """
    named = zip(TokenPricing.__dataclass_fields__, given, strict=True)
    prices = {name: float(price) for name, price in named if price is not None}
    if known is None and not set(needed) <= prices.keys():
        known = listed_pricing(model_name)
    if known is None and not {"prompt_per_million", "completion_per_million"} <= prices.keys():
        raise ValueError(
            f"no price is known for {model_name!r}: give prompt_price_per_million and completion_price_per_million, call "
            "MetricsBuilder.register_model_pricing, or use LiteLLM's name for the model (pip install 'art-nb[judge]')"
        )
    return TokenPricing(**prices) if known is None else replace(known, **prices)


def stated_cost(response: Any) -> float | None:
    """Return the cost that the provider or LiteLLM states in the response, in US dollars; None if there is none."""
    for path in (("usage", "cost"), ("usage", "cost", "total_cost"), ("_hidden_params", "response_cost")):
        cost = _read(response, *path)
        if isinstance(cost, int | float) and not isinstance(cost, bool):
            return float(cost)
    return None


def counted_tokens(response: Any, provider: str) -> dict[str, float]:
    """Return the response's token counts, keyed by the `TokenPricing` field that prices them; omits zero cache counts.

    provider: "anthropic", whose prompt counts exclude cached tokens; others are read as OpenAI's.

    Raises: ValueError when the response has no token counts.
    """
    prompt = _count(response, "input_tokens", "prompt_tokens")
    completion = _count(response, "output_tokens", "completion_tokens")
    if prompt is None or completion is None:
        raise ValueError(f"the response of {provider!r} has no token counts in `usage`: pass the provider's whole response")
    if provider == "anthropic":
        names = "cache_creation", "cache_read"
        cached = {f"{name}_per_million": _count(response, f"{name}_input_tokens") or 0.0 for name in names}
        if _read(response, "usage", "input_tokens") is None:  # in LiteLLM's form, whose prompt_tokens include cached tokens
            prompt = max(prompt - sum(cached.values()), 0.0)
    else:
        details = "prompt_tokens_details" if _read(response, "usage", "prompt_tokens_details") else "input_tokens_details"
        held = min(_read(response, "usage", details, "cached_tokens") or 0.0, prompt)
        prompt, cached = prompt - held, {"cached_prompt_per_million": held}
    used = {name: count for name, count in cached.items() if count}
    return used | {"prompt_per_million": prompt, "completion_per_million": completion}


def token_cost(tokens: Mapping[str, float], pricing: TokenPricing) -> float:
    """Return the cost of tokens (see `counted_tokens`) in US dollars."""
    priced = [(count, getattr(pricing, name)) for name, count in tokens.items()]
    return sum(count * (pricing.prompt_per_million if price is None else price) for count, price in priced) / MILLION


def _count(response: Any, *names: str) -> float | None:
    counts = [_read(response, "usage", name) for name in names]
    return next((float(count) for count in counts if count is not None), None)


def _read(value: Any, *path: str) -> Any:
    """Return the value at a path of attributes or keys; None if it is missing."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value
