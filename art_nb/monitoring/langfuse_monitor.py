"""Trajectories as traces in Langfuse: a trace each, in it a span a turn, in that a generation, and the reward as a score.

Spans are made by OpenTelemetry and go to Langfuse's OTLP endpoint under the names of its SDK; scores go by the SDK's client
of its API. The SDK's own tracer is not used: its spans begin when they are made, and the rollouts are over by then; and
there is one for each key in a process, so it would be that of the learner's own code as well.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from typing import Any

import httpx

from art_nb.api_costs import MILLION, TokenPricing
from art_nb.monitoring.entry import Entry
from art_nb.monitoring.monitor import Monitor, Refused, Unavailable

CLOUD = "https://cloud.langfuse.com"
AT_ONCE = 16  # trajectories in a request
MOMENT = 1_000_000  # nanoseconds from one turn to the next: nobody noted when they were said, so this is only their order


class LangfuseMonitor(Monitor):
    """Sends every logged trajectory to Langfuse.

    The trace is called "{model} {split}" and tagged with split and step; its session is the group, so that what GRPO
    compares lies side by side. It holds a span for each turn of a model, from what it was told last to what it said, and in
    that a generation: model and checkpoint, the whole prompt, the answer, tokens, cost. The reward is a score; metrics and
    facts are metadata. The trace's times are those of the rollout; those of turns give their order, no duration.

    Args:
        public_key, secret_key: None takes LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY.
        base_url: None takes LANGFUSE_BASE_URL, else the public service. Any server that takes OTLP over HTTP at
            {base_url}/api/public/otel/v1/traces sees the spans.
        pricing: what a token costs, for the cost of generations; None: none is said.
        every: send one trajectory of so many.
        timeout: seconds that a request may take.
        patience, backlog: see `Monitor`.
    """

    service, package = "Langfuse", "langfuse"

    def __init__(
        self,
        *,
        public_key: str | None = None,
        secret_key: str | None = None,
        base_url: str | None = None,
        pricing: TokenPricing | None = None,
        every: int = 1,
        timeout: float = 5.0,
        patience: float = 10.0,
        backlog: int = 64,
    ):
        super().__init__(patience=patience, backlog=backlog)
        public = public_key or os.environ.get("LANGFUSE_PUBLIC_KEY")
        secret = secret_key or os.environ.get("LANGFUSE_SECRET_KEY")
        if not public or not secret:
            raise ValueError("give public_key and secret_key, or set LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY")
        if every < 1:
            raise ValueError(f"every is {every}: expected 1, for each trajectory, or more")
        self.base_url = (base_url or os.environ.get("LANGFUSE_BASE_URL") or CLOUD).rstrip("/")
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url is {self.base_url!r}: expected something like {CLOUD}")
        self.pricing, self.every, self.timeout = pricing, every, timeout
        self._keys, self._secrets = (public, secret), [secret]

    def send(self, entry: Entry) -> None:
        from langfuse.api import LangfuseAPI
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

        chosen = entry.trajectories[:: self.every]
        with httpx.Client(auth=self._keys, timeout=self.timeout) as client:
            api = LangfuseAPI(base_url=self.base_url, username=self._keys[0], password=self._keys[1], httpx_client=client)
            for i in range(0, len(chosen), AT_ONCE):
                traces = [_Trace(entry, record, self.pricing) for record in chosen[i : i + AT_ONCE]]
                spans = encode_spans([span for trace in traces for span in trace.spans()]).SerializeToString()
                self._post(client, spans)
                if scores := [trace.score() for trace in traces if math.isfinite(trace.reward)]:
                    _scored(api, scores)

    def _post(self, client: httpx.Client, spans: bytes) -> None:
        headers = {"Content-Type": "application/x-protobuf", "x-langfuse-ingestion-version": "4"}
        try:
            answer = client.post(f"{self.base_url}/api/public/otel/v1/traces", content=spans, headers=headers)
        except httpx.TransportError as error:
            raise Unavailable(f"{self.base_url} does not answer ({type(error).__name__})") from error
        _checked(answer.status_code)


def _checked(status: int) -> None:
    if status in (401, 403):
        raise Refused(f"it refuses the key (HTTP {status})")
    if status == 429 or status >= 500:
        raise Unavailable(f"it answers HTTP {status}")
    if status >= 300:
        raise RuntimeError(f"it does not take this (HTTP {status})")


def _scored(api: Any, scores: list[dict[str, Any]]) -> None:
    from langfuse.api.core import ApiError

    try:
        api.scores.create(request=scores, request_options={"max_retries": 0})
    except httpx.TransportError as error:
        raise Unavailable(f"it does not take scores ({type(error).__name__})") from error
    except ApiError as error:
        _checked(error.status_code or 500)


class _Trace:
    """The spans and the score of one trajectory. Its ids follow from its place in the run: sent twice, it is there once."""

    def __init__(self, entry: Entry, record: dict[str, Any], pricing: TokenPricing | None):
        self.entry, self.record, self.pricing, self.reward = entry, record, pricing, float(record["reward"])
        place = [str(entry.folder), entry.split, entry.step, record["group"], record["index"], record["started"]]
        self._seed = json.dumps(place)
        self.id, self._ids = self._digest("trace", 16), 0
        self._made: list[Any] = []
        self._now = int(record["started"] * 1e9)  # nanoseconds

    def spans(self) -> list[Any]:
        """Finished spans, the trace's own first."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=Resource({"service.name": "art_nb"}), shutdown_on_exit=False, id_generator=self
        )
        self._tracer = provider.get_tracer("art_nb")
        began, seconds = self._now, self.record["metrics"].get("duration", 0.0)
        whole = self._span(None, f"{self.entry.model} {self.entry.split}", self._of_trace())
        for number, turns in enumerate([self.record["turns"], *self.record.get("additional_turns", [])]):
            for i, asked in _turns(turns):
                self._turn(whole, f"turn {i}" if number == 0 else f"turn {number}.{i}", turns, asked)
        whole.end(max(self._now, began + int(seconds * 1e9)))
        return self._made

    def score(self) -> dict[str, Any]:
        """The reward, as Langfuse's API takes it."""
        return {
            "id": f"{self.id:032x}-reward", "traceId": f"{self.id:032x}", "name": "reward",
            "value": self.reward, "dataType": "NUMERIC",
        }  # fmt: skip

    def generate_trace_id(self) -> int:
        """For OpenTelemetry, as the next one."""
        return self.id

    def generate_span_id(self) -> int:
        self._ids += 1
        return self._digest(f"span {self._ids}", 8)

    def is_trace_id_random(self) -> bool:
        return False

    def _digest(self, what: str, size: int) -> int:
        return int.from_bytes(hashlib.blake2b(f"{self._seed} {what}".encode(), digest_size=size).digest(), "big")

    def _span(self, parent: Any, name: str, attributes: dict[str, Any]) -> Any:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        context = Context() if parent is None else set_span_in_context(parent, Context())
        known = {key: value for key, value in (self._everywhere() | attributes).items() if value is not None}
        self._made.append(self._tracer.start_span(name, context=context, start_time=self._now, attributes=known))
        return self._made[-1]

    def _everywhere(self) -> dict[str, Any]:
        """What Langfuse wants to find on each span of a trace."""
        from langfuse import LangfuseOtelSpanAttributes as names

        entry = self.entry
        group = f"{entry.project}/{entry.model}/{entry.split}/{entry.step:04d}/{self.record['group']}"
        return {
            names.TRACE_NAME: f"{entry.model} {entry.split}",
            names.TRACE_SESSION_ID: group,
            names.TRACE_TAGS: [entry.split, f"step {entry.step}"],
        }

    def _of_trace(self) -> dict[str, Any]:
        from langfuse import LangfuseOtelSpanAttributes as names

        record = self.record
        facts = {name: record[name] for name in ("step", "split", "group", "index", "reward", "advantage")}
        facts = {**record["metadata"], **record["metrics"], **facts, "logs": "\n".join(record["logs"]) or None}
        answers = [turn for turn in record["turns"] if turn["trainable"]]
        return {
            names.OBSERVATION_TYPE: "agent",
            names.OBSERVATION_INPUT: _messages(record["turns"][: _first_answer(record["turns"])]),
            names.OBSERVATION_OUTPUT: _messages(answers[-1:]),
            **{f"{names.OBSERVATION_METADATA}.{name}": value for name, value in facts.items()},
        }

    def _turn(self, whole: Any, name: str, turns: list[dict[str, Any]], asked: slice) -> None:
        from langfuse import LangfuseOtelSpanAttributes as names

        turn = turns[asked.stop]
        spoken = {names.OBSERVATION_OUTPUT: _messages([turn])}
        about = {f"{names.OBSERVATION_METADATA}.reward": turn.get("reward")}
        heard = {names.OBSERVATION_TYPE: "span", names.OBSERVATION_INPUT: _messages(turns[asked])}
        span = self._span(whole, name, {**heard, **spoken, **about})
        usage = turn["usage"]
        cost = self._cost(usage)
        generation = self._span(span, "generation", {
            names.OBSERVATION_TYPE: "generation",
            names.OBSERVATION_MODEL: turn.get("model") or self.entry.model,
            names.OBSERVATION_INPUT: _messages(turns[: asked.stop]),
            names.OBSERVATION_USAGE_DETAILS: json.dumps(usage) if usage else None,
            names.OBSERVATION_COST_DETAILS: json.dumps(cost) if cost else None,
            **spoken,
        })  # fmt: skip
        self._now += MOMENT
        generation.end(self._now)
        span.end(self._now)

    def _cost(self, usage: dict[str, int]) -> dict[str, float]:
        if self.pricing is None:
            return {}
        prices = {"input": self.pricing.prompt_per_million, "output": self.pricing.completion_per_million}
        return {name: tokens * prices[name] / MILLION for name, tokens in usage.items()}


def _first_answer(turns: list[dict[str, Any]]) -> int:
    return next((i for i, turn in enumerate(turns) if turn["trainable"]), len(turns))


def _turns(turns: list[dict[str, Any]]) -> Iterator[tuple[int, slice]]:
    """Number from 1 of each turn of the model, and the messages since the one before: up to it, where it stands."""
    begin = 0
    for number, i in enumerate((i for i, turn in enumerate(turns) if turn["trainable"]), start=1):
        yield number, slice(begin, i)
        begin = i + 1


def _messages(turns: list[dict[str, Any]]) -> str:
    """As OpenAI's messages, in JSON."""
    messages = []
    for turn in turns:
        calls = [{"type": "function", "function": call} for call in turn.get("tool_calls", ())]
        messages.append({"role": turn["role"], "content": turn["content"], **({"tool_calls": calls} if calls else {})})
    return json.dumps(messages)
