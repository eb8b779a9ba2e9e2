"""Random calls of a `MetricsBuilder` and their results as JSON, for ART's and for ours.

python tests/support/metrics_scenario.py art_nb
"""

import asyncio
import importlib
import json
import random
import sys
from typing import Any

USAGES: list[tuple[str, dict[str, Any]]] = [
    ("openai", {"prompt_tokens": 1200, "completion_tokens": 80}),
    ("openai", {"prompt_tokens": 900, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 512}}),
    ("openai", {"prompt_tokens": 4, "completion_tokens": 4, "cost": 0.25}),
    ("anthropic", {"input_tokens": 100, "output_tokens": 7}),
    ("anthropic", {"input_tokens": 30, "output_tokens": 7, "cache_creation_input_tokens": 50, "cache_read_input_tokens": 99}),
]
PRICES = ["prompt", "completion", "cached_prompt", "cache_creation", "cache_read"]


async def scenario(package: str, seed: int) -> list[Any]:
    """Return the result of each call: rows, costs, or the class of its exception."""
    metrics = importlib.import_module(f"{package}.metrics")
    draws, seen = random.Random(seed), []
    train = metrics.MetricsBuilder("train")
    prices = {f"{name}_per_million": float(i + 1) for i, name in enumerate(PRICES)}
    train.register_model_pricing("all/priced", **prices)
    train.register_model_pricing("two/priced", prompt_per_million=3, completion_per_million=7)
    train.register_cost_extractor("mine", lambda response: response.get("paid"))
    builders = [train, train.for_cost_context("eval"), train.for_cost_context("test", buffer_scope="eval")]

    def tracked(builder: Any) -> Any:
        @metrics.track_api_cost(source="/judge/quick/", provider="OpenAI", model_name="two/priced", response_getter=lambda r: r[0])
        def ask() -> Any:
            return [{"usage": {"prompt_tokens": 1000, "completion_tokens": 10}}]

        with builder.activate_context():
            return ask()

    for _ in range(60):
        builder = draws.choice(builders)
        provider, usage = draws.choice(USAGES)
        given = {f"{name}_price_per_million": draws.random() for name in PRICES if draws.random() < 0.2}
        model = draws.choice(["all/priced", "two/priced"])
        paths = ["gpu", "gpu/part", f"{builder.cost_context}/judge/ruler", f"{builder.cost_context}/user", ""]
        calls = [
            lambda b=builder, among=paths: b.add_cost(draws.choice(among), draws.random()),
            lambda b=builder: b.add_metric(draws.choice(["time/step_x_s", "data/cum/x", "loss", "loss/y", "data/z"]), 2),
            lambda b=builder, p=provider, u=usage, g=given, m=model: b.add_response_cost(
                "judge/r", {"usage": u}, provider=p, model_name=m, **g
            ),
            lambda b=builder: b.add_response_cost("m", {"paid": 0.5}, provider="Mine", model_name="x"),
            lambda b=builder: b.add_data(draws.randint(1, 5), draws.randint(1, 99), [str(draws.randint(0, 5))]),
            lambda b=builder: b.add_user_timing(draws.random(), draws.random(), None),
            lambda b=builder: b.add_idle_times(0.5, None),
            lambda b=builder: tracked(b),
        ]
        try:
            if draws.random() < 0.25:
                seen.append(await builder.flush())
            else:
                seen.append(draws.choice(calls)())
        except ValueError:
            seen.append("ValueError")
        if draws.random() < 0.05:
            state = json.loads(json.dumps(train.state_dict()))
            train.load_state_dict(state)
            seen.append({**state, "unique_scenario_ids": sorted(state["unique_scenario_ids"])})
    return seen


if __name__ == "__main__":
    print(json.dumps([asyncio.run(scenario(sys.argv[1], seed)) for seed in range(20)]))
