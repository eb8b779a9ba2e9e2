"""Tokens, seconds and costs of a run under ART's names: added up until a row is logged, then summed over the run.

    costs/train/judge/ruler     US dollars, by who caused them; costs/train, costs/all: their sums
    time/step_wall_s            seconds; data/step_actor_tokens: counts
    costs/cum/all, time/cum/wall_s, ...     the same over all rows so far
    throughput/avg_actor_tok_per_s          over the run

What one rollout took stands in the metrics of its trajectory, see `trajectories.accounts`.
It knows nothing of models, files and rollouts.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from art_nb.api_costs import TokenPricing, chosen_pricing, counted_tokens, stated_cost, token_cost

F = TypeVar("F", bound=Callable[..., Any])

SUMMED = ("costs", "time", "data")  # sections that have sums over the run
ADDED_UP = ("costs/", "time/step_", "data/step_", "throughput/step_")  # what is logged under these is added, not averaged
JUDGE = "judge/ruler"  # what judging adds to costs/{context}/
SCENARIOS = "data/scenario_ids"  # of a row: a list of them
UNIQUE = "data/cum/num_unique_scenarios"

_active: ContextVar["MetricsBuilder"] = ContextVar("active_metrics_builder")
_counted: ContextVar[tuple[list[float], ...]] = ContextVar("counted_costs", default=())


@contextmanager
def costs_counted() -> Iterator[list[float]]:
    """US dollars that any builder is told of inside of the block, and in the tasks that it starts."""
    costs: list[float] = []
    token = _counted.set((*_counted.get(), costs))
    try:
        yield costs
    finally:
        _counted.reset(token)


@dataclass
class _Pending:
    """What came since the last row of one scope."""

    values: dict[str, float] = field(default_factory=dict)
    scenario_ids: set[str] = field(default_factory=set)


@dataclass
class _Run:
    """What all builders of a run share."""

    pending: dict[str, _Pending] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    scenario_ids: set[str] = field(default_factory=set)
    extractors: dict[str, Callable[[Any], float | None]] = field(default_factory=dict)
    pricing: dict[str, TokenPricing] = field(default_factory=dict)


class MetricsBuilder:
    """Adds up what a step takes. `model.metrics_builder("eval")` gives one; `model.log` and `model.train` take what it has.

    cost_context: the second part of the names of costs, "train" or "eval".
    """

    def __init__(self, cost_context: str, *, _run: _Run | None = None, _scope: str | None = None):
        self.cost_context = _named("cost_context", cost_context)
        self._run, self._scope = _run or _Run(), _scope or self.cost_context

    def add_cost(self, path: str, usd: float) -> None:
        """Add US dollars to costs/{path}."""
        self.add_metric(f"costs/{_named('path', path)}", usd)
        for costs in _counted.get():
            costs.append(float(usd))

    def add_response_cost(
        self,
        source: str,
        response: Any,
        *,
        provider: str,
        model_name: str,
        prompt_price_per_million: float | None = None,
        completion_price_per_million: float | None = None,
        cached_prompt_price_per_million: float | None = None,
        cache_creation_price_per_million: float | None = None,
        cache_read_price_per_million: float | None = None,
    ) -> float | None:
        """Add what an API's answer cost to costs/{cost_context}/{source}; returns it.

        It is what the answer itself says, else what a registered extractor says, else its tokens times the price given
        here, registered, or in LiteLLM's table; never a guess.

        Raises: ValueError when there is no price, or the answer does not count its tokens.
        """
        path = f"{self.cost_context}/{_named('source', source.strip('/'))}"
        provider, model_name = _named("provider", provider).lower(), _named("model_name", model_name)
        cost = self._stated(response, provider)
        if cost is None:
            tokens = counted_tokens(response, provider)
            pricing = chosen_pricing(
                model_name,
                self._run.pricing.get(model_name),
                needed=tokens,
                prompt_per_million=prompt_price_per_million,
                completion_per_million=completion_price_per_million,
                cached_prompt_per_million=cached_prompt_price_per_million,
                cache_creation_per_million=cache_creation_price_per_million,
                cache_read_per_million=cache_read_price_per_million,
            )
            cost = token_cost(tokens, pricing)
        self.add_cost(path, cost)
        return cost

    def registered_cost(self, response: Any, *, provider: str, model_name: str) -> float | None:
        """What an answer cost as it or a registered extractor says, else its tokens at the registered price, else None."""
        cost, pricing = self._stated(response, provider), self._run.pricing.get(model_name)
        return token_cost(counted_tokens(response, provider), pricing) if cost is None and pricing else cost

    def _stated(self, response: Any, provider: str) -> float | None:
        cost = stated_cost(response)
        return self._run.extractors[provider](response) if cost is None and provider in self._run.extractors else cost

    def add_metric(self, key: str, value: float) -> None:
        """Add to "section/name". Raises: ValueError when it is no such name, or both a sum and a part of one."""
        section, slash, name = key.partition("/")
        if not (section and slash and name) or name.split("/")[0] == "cum":
            raise ValueError(f'metric {key!r}: write it as "section/name"; section/cum/... are sums over the run')
        values = self._pending().values
        clash = next((k for k in values if k != key and (f"{k}/".startswith(f"{key}/") or key.startswith(f"{k}/"))), None)
        if clash:
            raise ValueError(f"metric {key!r}: {clash!r} is there, and one of them would be a part of the other")
        values[key] = values.get(key, 0.0) + float(value)

    def add_data(
        self,
        step_num_scenarios: int | None = None,
        step_actor_tokens: int | None = None,
        scenario_ids: list[str] | None = None,
    ) -> None:
        """Counts of the step. scenario_ids: those seen, for how many different ones the run has seen."""
        self._add("data", step_num_scenarios=step_num_scenarios, step_actor_tokens=step_actor_tokens)
        self._pending().scenario_ids |= {str(each) for each in scenario_ids or ()}

    def add_user_timing(
        self,
        step_wall_s: float | None = None,
        step_actor_s: float | None = None,
        step_eval_s: float | None = None,
    ) -> None:
        """Seconds of the step: altogether, of rollouts, of evaluation."""
        self._add("time", step_wall_s=step_wall_s, step_actor_s=step_actor_s, step_eval_s=step_eval_s)

    def add_idle_times(
        self, step_trainer_idle_s: float | None = None, step_actor_idle_s: float | None = None
    ) -> None:
        """Seconds of the step in which nothing was trained, or sampled."""
        self._add("throughput", step_trainer_idle_s=step_trainer_idle_s, step_actor_idle_s=step_actor_idle_s)

    @contextmanager
    def measure(self, key: str) -> Iterator[None]:
        """Add the seconds spent in the `with` block."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.add_metric(key, time.monotonic() - started)

    async def flush(self) -> dict[str, float]:
        """All that came since the last row, its sums and those over the run. Empties it."""
        pending = self._run.pending.pop(self._scope, _Pending())
        row = {**pending.values, **_cost_sums(pending.values)}
        for key, value in list(row.items()):
            if key.partition("/")[0] in SUMMED or key.endswith("_idle_s"):
                section, name = key.split("/", 1)
                total = f"{section}/cum/{name.removeprefix('step_')}"
                row[total] = self._run.sums[total] = self._run.sums.get(total, 0.0) + value
        if pending.scenario_ids:
            self._run.scenario_ids |= pending.scenario_ids
            row[UNIQUE] = float(len(self._run.scenario_ids))
        for who in ("trainer", "actor"):
            tokens, seconds = (self._run.sums.get(key) for key in (f"data/cum/{who}_tokens", f"time/cum/{who}_s"))
            if tokens is not None and seconds and {f"data/step_{who}_tokens", f"time/step_{who}_s"} & set(row):
                row[f"throughput/avg_{who}_tok_per_s"] = tokens / seconds
        return row

    def activate(self) -> Token["MetricsBuilder"]:
        """Let `track_api_cost` and judges report here, in this task and those that it starts."""
        return _active.set(self)

    @contextmanager
    def activate_context(self) -> Iterator["MetricsBuilder"]:
        """The same inside of a `with` block."""
        token = self.activate()
        try:
            yield self
        finally:
            _active.reset(token)

    @staticmethod
    def get_active() -> "MetricsBuilder":
        """The one that is active. Raises: LookupError when there is none."""
        return _active.get()

    @staticmethod
    def active_one() -> "MetricsBuilder | None":
        """The same, or None."""
        return _active.get(None)

    def for_cost_context(self, cost_context: str, *, buffer_scope: str | None = None) -> "MetricsBuilder":
        """One for other costs of the same run. buffer_scope: whose rows it is logged with; None: its own."""
        return MetricsBuilder(cost_context, _run=self._run, _scope=buffer_scope)

    def register_cost_extractor(self, provider: str, extractor: Callable[[Any], float | None]) -> None:
        """Let `extractor` say what an answer of this provider cost, in US dollars; None where it does not know."""
        self._run.extractors[_named("provider", provider).lower()] = extractor

    def register_model_pricing(
        self,
        model_name: str,
        *,
        prompt_per_million: float,
        completion_per_million: float,
        cached_prompt_per_million: float | None = None,
        cache_creation_per_million: float | None = None,
        cache_read_per_million: float | None = None,
    ) -> None:
        """Set a model's prices, in US dollars for a million tokens; see `TokenPricing`."""
        self._run.pricing[_named("model_name", model_name)] = TokenPricing(
            prompt_per_million, completion_per_million, cached_prompt_per_million, cache_creation_per_million,
            cache_read_per_million,
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """The sums over the run, for JSON."""
        return {"cum_state": dict(self._run.sums), "unique_scenario_ids": sorted(self._run.scenario_ids)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from these sums; what came since the last row is dropped."""
        self._run.sums = {str(key): float(value) for key, value in state.get("cum_state", {}).items()}
        self._run.scenario_ids = set(map(str, state.get("unique_scenario_ids", ())))
        self._run.pending.clear()

    def _pending(self) -> _Pending:
        return self._run.pending.setdefault(self._scope, _Pending())

    def _add(self, section: str, **values: float | None) -> None:
        for name, value in values.items():
            if value is not None:
                self.add_metric(f"{section}/{name}", value)


def track_api_cost(
    *,
    source: str,
    provider: str,
    model_name: str,
    response_getter: Callable[[Any], Any] | None = None,
    prompt_price_per_million: float | None = None,
    completion_price_per_million: float | None = None,
    cached_prompt_price_per_million: float | None = None,
    cache_creation_price_per_million: float | None = None,
    cache_read_price_per_million: float | None = None,
) -> Callable[[F], F]:
    """A decorator for functions, async or not, that return an API's answer: its cost goes to the active `MetricsBuilder`.

    Without an active one nothing is counted. response_getter: takes the answer out of what the function returns; the rest
    is as of `MetricsBuilder.add_response_cost`.
    """
    prices = {
        "prompt_price_per_million": prompt_price_per_million,
        "completion_price_per_million": completion_price_per_million,
        "cached_prompt_price_per_million": cached_prompt_price_per_million,
        "cache_creation_price_per_million": cache_creation_price_per_million,
        "cache_read_price_per_million": cache_read_price_per_million,
    }
    for name, given in {"source": source.strip("/"), "provider": provider, "model_name": model_name}.items():
        _named(name, given)

    def count(result: Any) -> Any:
        builder = MetricsBuilder.active_one()
        if builder is not None:
            response = response_getter(result) if response_getter else result
            builder.add_response_cost(source, response, provider=provider, model_name=model_name, **prices)
        return result

    def decorate(function: F) -> F:
        if iscoroutinefunction(function):

            @wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                return count(await function(*args, **kwargs))

            return awaited  # type: ignore[return-value]

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            return count(function(*args, **kwargs))

        return called  # type: ignore[return-value]

    return decorate


def _cost_sums(values: dict[str, float]) -> dict[str, float]:
    """costs/a/b and costs/a/c make costs/a; everything makes costs/all."""
    costs = {key: value for key, value in values.items() if key.startswith("costs/")}
    sums: dict[str, float] = {}
    for key, value in costs.items():
        parts = key.split("/")
        for parent in ["costs/all", *("/".join(parts[:depth]) for depth in range(2, len(parts)))]:
            sums[parent] = sums.get(parent, 0.0) + value
    return sums


def _named(what: str, given: str) -> str:
    if not given.strip():
        raise ValueError(f"{what} is {given!r}: it must not be empty")
    return given.strip()
