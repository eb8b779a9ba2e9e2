"""What a call of a language model cost: as the provider says, else tokens times a price, given or of LiteLLM's table.

No price is guessed. It knows answers in the forms of OpenAI and Anthropic, and nothing of models, training or steps.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

MILLION = 1_000_000


@dataclass(frozen=True)
class TokenPricing:
    """US dollars for a million tokens. Without a price of its own, a cached token costs what any prompt token costs.

    cached_prompt_per_million: read from OpenAI's cache; cache_creation_per_million, cache_read_per_million: Anthropic's.
    """

    prompt_per_million: float
    completion_per_million: float
    cached_prompt_per_million: float | None = None
    cache_creation_per_million: float | None = None
    cache_read_per_million: float | None = None


def load_litellm() -> Any:
    """The module `litellm`, which reaches nothing but providers: as it comes, importing it downloads a price list.

    Raises: ImportError when it is not installed.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_LOCAL_BLOG_POSTS", "True")
    import litellm

    litellm.telemetry = False
    litellm.suppress_debug_info = True  # it prints advice at each error
    return litellm


def listed_pricing(model_name: str) -> TokenPricing | None:
    """The price in the table that came with LiteLLM; None when the model is not in it, or LiteLLM not installed."""
    try:
        table: Mapping[str, Any] = load_litellm().model_cost
    except ImportError:
        return None
    found = table.get(model_name) or table.get(model_name.partition("/")[2]) or {}
    columns = "input_cost_per_token", "output_cost_per_token"
    caching = "cache_creation_input_token_cost", "cache_read_input_token_cost"
    asked, said, created, read = (None if found.get(name) is None else found[name] * MILLION for name in columns + caching)
    return None if asked is None or said is None else TokenPricing(asked, said, read, created, read)


def chosen_pricing(
    model_name: str, known: TokenPricing | None, needed: Collection[str], **given: float | None
) -> TokenPricing:
    """The prices given, by their names in `TokenPricing`; those that are None as `known`, else as LiteLLM's table says.

    needed: names of prices. Where all of them are given the table is not looked into: loading it takes seconds.

    Raises: ValueError when there is no price for a prompt or what is said.
    """
    prices = {name: float(price) for name, price in given.items() if price is not None}
    if known is None and not set(needed) <= prices.keys():
        known = listed_pricing(model_name)
    if known is None and not {"prompt_per_million", "completion_per_million"} <= prices.keys():
        raise ValueError(
            "no price is known for it: give prompt_price_per_million and completion_price_per_million, register them by "
            "MetricsBuilder.register_model_pricing, or name the model as LiteLLM's table does (pip install 'art-nb[judge]')"
        )
    return TokenPricing(**prices) if known is None else replace(known, **prices)


def stated_cost(response: Any) -> float | None:
    """What the provider or LiteLLM says that the answer cost, in US dollars."""
    for path in (("usage", "cost"), ("usage", "cost", "total_cost"), ("_hidden_params", "response_cost")):
        said = _read(response, *path)
        if isinstance(said, int | float) and not isinstance(said, bool):
            return float(said)
    return None


def counted_tokens(response: Any, provider: str) -> dict[str, float]:
    """How many tokens the answer took, by the name of their price in `TokenPricing`; none from a cache are left out.

    provider: "anthropic", whose prompts are counted without what the cache held; any other is read as OpenAI's answers.

    Raises: ValueError when the answer does not say how many tokens it took.
    """
    asked = _count(response, "input_tokens", "prompt_tokens")
    said = _count(response, "output_tokens", "completion_tokens")
    if asked is None or said is None:
        raise ValueError(f"the answer of {provider!r} does not say in `usage` how many tokens it took")
    if provider == "anthropic":
        names = "cache_creation", "cache_read"
        cached = {f"{name}_per_million": _count(response, f"{name}_input_tokens") or 0.0 for name in names}
    else:
        details = "prompt_tokens_details" if _read(response, "usage", "prompt_tokens_details") else "input_tokens_details"
        held = min(_read(response, "usage", details, "cached_tokens") or 0.0, asked)
        asked, cached = asked - held, {"cached_prompt_per_million": held}
    return {name: count for name, count in cached.items() if count} | {
        "prompt_per_million": asked, "completion_per_million": said
    }  # fmt: skip


def token_cost(tokens: Mapping[str, float], pricing: TokenPricing) -> float:
    """Tokens (see `counted_tokens`) times their prices, in US dollars."""
    priced = [(count, getattr(pricing, name)) for name, count in tokens.items()]
    return sum(count * (pricing.prompt_per_million if price is None else price) for count, price in priced) / MILLION


def _count(response: Any, *names: str) -> float | None:
    counts = [_read(response, "usage", name) for name in names]
    return next((float(count) for count in counts if count is not None), None)


def _read(thing: Any, *path: str) -> Any:
    """A value inside of objects or mappings; None where there is none."""
    for name in path:
        thing = thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)
    return thing
