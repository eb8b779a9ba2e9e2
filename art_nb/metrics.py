"""Tokens, seconds and costs of a run, under ART's names: summed per logged row and over the run.

    costs/train/judge/ruler     US dollars, by source; costs/train, costs/all: sums over sources
    time/step_wall_s            seconds; data/step_actor_tokens: a count
    costs/cum/all, time/cum/wall_s, ...     sums over all rows so far
    throughput/avg_actor_tok_per_s          tokens per second, averaged over the run

`trajectories.usage` has the costs of single rollouts.
"""

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from copy import deepcopy
from dataclasses import dataclass, field
from functools import wraps
from inspect import isawaitable, iscoroutinefunction
from typing import Any, TypeVar

from art_nb.api_costs import TokenPricing, chosen_pricing, counted_tokens, stated_cost, token_cost

F = TypeVar("F", bound=Callable[..., Any])

CUMULATIVE_SECTIONS = ("costs", "time", "data")  # sections with sums over the run
SUMMED_PREFIXES = ("costs/", "time/step_", "data/step_", "throughput/step_")  # metrics that are summed, not averaged
JUDGE = "judge/ruler"  # judges' costs are logged as costs/{context}/judge/ruler
SCENARIOS = "data/scenario_ids"  # a list, in rows whose groups have scenario ids
UNIQUE = "data/cum/num_unique_scenarios"

_active: ContextVar["MetricsBuilder"] = ContextVar("active_metrics_builder")
_counted: ContextVar[tuple[list[float], ...]] = ContextVar("counted_costs", default=())


@contextmanager
def collect_costs() -> Iterator[list[float]]:
    """Yield a list that collects US dollars from any builder's `add_cost` in the block and in tasks started there."""
    costs: list[float] = []
    token = _counted.set((*_counted.get(), costs))
    try:
        yield costs
    finally:
        _counted.reset(token)


@dataclass
class _Pending:
    """Metrics of one scope since its last row."""

    values: dict[str, float] = field(default_factory=dict)
    scenario_ids: set[str] = field(default_factory=set)


@dataclass
class _Run:
    """State that all builders of a run share. pending: by scope."""

    pending: defaultdict[str, _Pending] = field(default_factory=lambda: defaultdict(_Pending))
    sums: dict[str, float] = field(default_factory=dict)
    scenario_ids: set[str] = field(default_factory=set)
    extractors: dict[str, Callable[[Any], float | None]] = field(default_factory=dict)
    pricing: dict[str, TokenPricing] = field(default_factory=dict)


class MetricsBuilder:
    """Accumulates metrics until the next row is logged. `model.metrics_builder("eval")` returns one.

    cost_context: second part of the names of API costs: "train", "eval" or a split. Raises: ValueError when it is empty.
    """

    def __init__(self, cost_context: str, *, _run: _Run | None = None, _scope: str | None = None):
        self.cost_context = _nonempty("cost_context", cost_context)
        self._run, self._scope = _run or _Run(), _scope or self.cost_context

    def add_cost(self, path: str, usd: float) -> None:
        """Add US dollars to costs/{path}. Raises: ValueError, as `add_metric`."""
        self.add_metric(f"costs/{_nonempty('path', path)}", usd)
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
    ) -> float:
        """Add the cost of an API response to costs/{cost_context}/{source}; return it in US dollars.

        The cost is the one that the response states, else a registered extractor's, else its tokens times the price given
        here (US dollars per million tokens), registered, or in LiteLLM's table. provider: see `api_costs.counted_tokens`.

        Raises: ValueError when the price is unknown, or the response has no token counts.
        """
        path = f"{self.cost_context}/{_nonempty('source', source.strip('/'))}"
        provider, model_name = _nonempty("provider", provider).lower(), _nonempty("model_name", model_name)
        cost = self._stated(response, provider)
        if cost is None:
            tokens = counted_tokens(response, provider)
            prices = (
                prompt_price_per_million, completion_price_per_million, cached_prompt_price_per_million,
                cache_creation_price_per_million, cache_read_price_per_million,
            )  # fmt: skip
            cost = token_cost(tokens, chosen_pricing(model_name, self._run.pricing.get(model_name), tokens, prices))
        self.add_cost(path, cost)
        return cost

    def registered_cost(self, response: Any, *, provider: str, model_name: str) -> float | None:
        """Return the cost in US dollars: stated, an extractor's, or by registered price; else None. Adds no metric."""
        provider, pricing = provider.lower(), self._run.pricing.get(model_name)
        cost = self._stated(response, provider)
        return token_cost(counted_tokens(response, provider), pricing) if cost is None and pricing else cost

    def _stated(self, response: Any, provider: str) -> float | None:
        cost, extractor = stated_cost(response), self._run.extractors.get(provider)
        return extractor(response) if cost is None and extractor else cost

    def add_metric(self, key: str, value: float) -> None:
        """Add to metric "section/name". Raises: ValueError for a malformed key, or a prefix or extension of another."""
        section, slash, name = key.partition("/")
        if not (section and slash and name) or name.split("/")[0] == "cum":
            raise ValueError(f'metric {key!r}: expected "section/name"; section/cum/... is reserved for sums over the run')
        values = self._run.pending[self._scope].values
        clash = next((k for k in values if k != key and (f"{k}/".startswith(f"{key}/") or key.startswith(f"{k}/"))), None)
        if clash:
            raise ValueError(f"metric {key!r}: {clash!r} exists, and one would be part of the other's sum; use another name")
        values[key] = values.get(key, 0.0) + float(value)

    def add_data(
        self,
        step_num_scenarios: int | None = None,
        step_actor_tokens: int | None = None,
        scenario_ids: list[str] | None = None,
    ) -> None:
        """Add counts of the step. scenario_ids: the distinct ids of the run are counted as data/cum/num_unique_scenarios."""
        self._add("data", step_num_scenarios=step_num_scenarios, step_actor_tokens=step_actor_tokens)
        self._run.pending[self._scope].scenario_ids |= {str(each) for each in scenario_ids or ()}

    def add_user_timing(
        self, step_wall_s: float | None = None, step_actor_s: float | None = None, step_eval_s: float | None = None
    ) -> None:
        """Add seconds of the step: in total, of rollouts, of evaluation."""
        self._add("time", step_wall_s=step_wall_s, step_actor_s=step_actor_s, step_eval_s=step_eval_s)

    def add_idle_times(self, step_trainer_idle_s: float | None = None, step_actor_idle_s: float | None = None) -> None:
        """Add seconds of the step in which the trainer, or the sampler, was idle."""
        self._add("throughput", step_trainer_idle_s=step_trainer_idle_s, step_actor_idle_s=step_actor_idle_s)

    @contextmanager
    def measure(self, key: str) -> Iterator[None]:
        """Add the seconds spent in the `with` block to metric `key`."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.add_metric(key, time.monotonic() - started)

    def pending(self) -> tuple[dict[str, float], set[str]]:
        """Return the metrics and the scenario ids since the last row."""
        pending = self._run.pending.get(self._scope, _Pending())
        return dict(pending.values), set(pending.scenario_ids)

    async def flush(self) -> dict[str, float]:
        """Return the metrics since the last row, the sums of their costs and the sums over the run; start a new row."""
        pending = self._run.pending.pop(self._scope, _Pending())
        row = {**pending.values, **_cost_sums(pending.values)}
        for key, value in list(row.items()):
            if key.partition("/")[0] in CUMULATIVE_SECTIONS or key.endswith("_idle_s"):
                section, name = key.split("/", 1)
                total = f"{section}/cum/{name.removeprefix('step_')}"
                row[total] = self._run.sums[total] = self._run.sums.get(total, 0.0) + value
        if pending.scenario_ids:
            self._run.scenario_ids |= pending.scenario_ids
            row[UNIQUE] = float(len(self._run.scenario_ids))
        for role in ("trainer", "actor"):
            tokens, seconds = (self._run.sums.get(key) for key in (f"data/cum/{role}_tokens", f"time/cum/{role}_s"))
            if tokens is not None and seconds and {f"data/step_{role}_tokens", f"time/step_{role}_s"} & set(row):
                row[f"throughput/avg_{role}_tok_per_s"] = tokens / seconds
        return row

    def activate(self) -> Token["MetricsBuilder"]:
        """Make this the active builder, for `track_api_cost` and judges, in this task and the tasks that it starts."""
        return _active.set(self)

    @contextmanager
    def activate_context(self) -> Iterator["MetricsBuilder"]:
        """Make this the active builder in the `with` block."""
        token = self.activate()
        try:
            yield self
        finally:
            _active.reset(token)

    @staticmethod
    def get_active() -> "MetricsBuilder":
        """Return the active builder. Raises: LookupError when there is none."""
        return _active.get()

    @staticmethod
    def active_or_none() -> "MetricsBuilder | None":
        """Return the active builder, or None."""
        return _active.get(None)

    def for_cost_context(self, cost_context: str, *, buffer_scope: str | None = None) -> "MetricsBuilder":
        """Return a builder for another context. buffer_scope: the context whose rows include its metrics; None: its own."""
        return MetricsBuilder(cost_context, _run=self._run, _scope=buffer_scope)

    def register_cost_extractor(self, provider: str, extractor: Callable[[Any], float | None]) -> None:
        """Use `extractor` for this provider's responses that state no cost; it returns US dollars, or None if unknown."""
        self._run.extractors[_nonempty("provider", provider).lower()] = extractor

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
        """Set a model's prices in US dollars per million tokens; see `TokenPricing`."""
        self._run.pricing[_nonempty("model_name", model_name)] = TokenPricing(
            prompt_per_million, completion_per_million, cached_prompt_per_million, cache_creation_per_million,
            cache_read_per_million,
        )  # fmt: skip

    def counters(self) -> tuple[Any, ...]:
        """Return a copy of all counters, for `restore_counters`."""
        return deepcopy((self._run.pending, self._run.sums, self._run.scenario_ids))

    def restore_counters(self, before: tuple[Any, ...]) -> None:
        """Restore a copy made by `counters`."""
        self._run.pending, self._run.sums, self._run.scenario_ids = before

    def state_dict(self) -> dict[str, Any]:
        """Return the sums and scenario ids of the run as JSON values."""
        return {"cum_state": dict(self._run.sums), "unique_scenario_ids": sorted(self._run.scenario_ids)}

    def load_state_dict(self, state: dict[str, Any], *, keep_pending: bool = False) -> None:
        """Restore the sums over the run; drop the metrics since the last row unless `keep_pending`."""
        self._run.sums = {str(key): float(value) for key, value in state.get("cum_state", {}).items()}
        self._run.scenario_ids = set(map(str, state.get("unique_scenario_ids", ())))
        if not keep_pending:
            self._run.pending.clear()

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
    """Decorate a sync or async function that returns an API response: add its cost to the active `MetricsBuilder`, if any.

    response_getter: extracts the response from the return value. Others and errors: as in `add_response_cost`.
    """
    for name, given in {"source": source.strip("/"), "provider": provider, "model_name": model_name}.items():
        _nonempty(name, given)

    def count(result: Any) -> Any:
        if builder := MetricsBuilder.active_or_none():
            builder.add_response_cost(
                source,
                response_getter(result) if response_getter else result,
                provider=provider,
                model_name=model_name,
                prompt_price_per_million=prompt_price_per_million,
                completion_price_per_million=completion_price_per_million,
                cached_prompt_price_per_million=cached_prompt_price_per_million,
                cache_creation_price_per_million=cache_creation_price_per_million,
                cache_read_price_per_million=cache_read_price_per_million,
            )
        return result

    async def counted(answer: Awaitable[Any]) -> Any:
        return count(await answer)

    def decorate(function: F) -> F:
        def called(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)  # openai's `create` is a plain function that returns an awaitable
            return counted(result) if isawaitable(result) else count(result)

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await called(*args, **kwargs)

        return wraps(function)(awaited if iscoroutinefunction(function) else called)  # type: ignore[return-value]

    return decorate


def _cost_sums(values: dict[str, float]) -> dict[str, float]:
    """Return sums of costs: costs/a is the sum of costs/a/b and costs/a/c, costs/all the sum of all."""
    costs = {key: value for key, value in values.items() if key.startswith("costs/")}
    sums: dict[str, float] = {}
    for key, value in costs.items():
        parts = key.split("/")
        for parent in ["costs/all", *("/".join(parts[:depth]) for depth in range(2, len(parts)))]:
            sums[parent] = sums.get(parent, 0.0) + value
    return sums


def _nonempty(what: str, given: str) -> str:
    if not given.strip():
        raise ValueError(f"{what} is {given!r}: expected a non-empty string")
    return given.strip()
