"""`LangfuseMonitor`: a Langfuse trace per trajectory, with a span and a generation per turn, and the reward as a score.

OpenTelemetry creates the spans, with the Langfuse SDK's attribute names. This module posts them to Langfuse's OTLP endpoint,
and sends scores with the SDK's API client. The SDK's own tracer is unsuitable: its spans start at their creation, after the
rollouts have ended, and all code in the process that uses the same key shares it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from art_nb.monitoring.monitor import LogEntry, Monitor, ServiceRejected, ServiceUnavailable
from art_nb.trajectories.records import histories

CLOUD = "https://cloud.langfuse.com"
BATCH = 16  # trajectories per request
TURN_DURATION = 1_000_000  # nanoseconds per turn; the real times are unknown, so these show only the order


class LangfuseMonitor(Monitor):
    """Sends logged trajectories to Langfuse.

    A trace is named "{model} {split}" and tagged with split and step; its session is the group. It has a span for each turn
    of a model, with the messages since the previous turn as input, and inside it a generation: policy, prompt, answer, token
    counts. The trace has the start and metrics["duration"] of the rollout; the times of turns show only their order.

    Args:
        public_key, secret_key: None: LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY.
        base_url: None: LANGFUSE_BASE_URL or LANGFUSE_HOST, else the public service. Spans are sent as OTLP over HTTP to
            {base_url}/api/public/otel/v1/traces.
        every: send every n-th trajectory of each entry. timeout: seconds per request. patience, backlog: see `Monitor`.

    Raises: ImportError without the extra; ValueError without keys or for an invalid argument.
    """

    service, package = "Langfuse", "langfuse"

    def __init__(
        self,
        *,
        public_key: str | None = None,
        secret_key: str | None = None,
        base_url: str | None = None,
        every: int = 1,
        timeout: float = 5.0,
        patience: float = 10.0,
        backlog: int = 64,
    ):
        super().__init__(patience=patience, backlog=backlog)
        public = public_key or os.environ.get("LANGFUSE_PUBLIC_KEY")
        secret = secret_key or os.environ.get("LANGFUSE_SECRET_KEY")
        if not public or not secret:
            raise ValueError("no keys: give public_key and secret_key, or set LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY")
        if every < 1:
            raise ValueError(f"every is {every}: expected 1 (for each trajectory) or more")
        hosts = (os.environ.get(name) for name in ("LANGFUSE_BASE_URL", "LANGFUSE_HOST"))  # in the SDK's order
        self.base_url = (base_url or next(filter(None, hosts), CLOUD)).rstrip("/")
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url is {self.base_url!r}: expected a URL such as {CLOUD}")
        self.every, self.timeout = every, timeout
        self._keys, self.secrets = (public, secret), [secret]

    def send(self, entry: LogEntry) -> None:
        from langfuse.api import LangfuseAPI
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

        chosen, answers = entry.trajectories[:: self.every], list[Any]()
        with httpx.Client(auth=self._keys, timeout=self.timeout) as client, _service_errors(self.base_url):
            api = LangfuseAPI(base_url=self.base_url, username=self._keys[0], password=self._keys[1], httpx_client=client)
            for i in range(0, len(chosen), BATCH):
                traces = [_Trace(entry, record) for record in chosen[i : i + BATCH]]
                spans = encode_spans([span for trace in traces for span in trace.spans()]).SerializeToString()
                headers = {"Content-Type": "application/x-protobuf", "x-langfuse-ingestion-version": "4"}
                _check(client.post(f"{self.base_url}/api/public/otel/v1/traces", content=spans, headers=headers).status_code)
                if scores := [trace.score() for trace in traces if math.isfinite(trace.reward)]:
                    answers.append(api.scores.create(request=scores, request_options={"max_retries": 0}))
        if rejected := sum(getattr(each, "rejected", 0) for each in answers):  # these have status 207
            reasons = [error.message for each in answers for error in getattr(each, "errors", [])]
            raise RuntimeError(f"it rejects the scores of {rejected} of {len(chosen)} trajectories: {reasons[:1]!s:.200}")


@contextmanager
def _service_errors(url: str) -> Iterator[None]:
    """Raise ServiceUnavailable, ServiceRejected or RuntimeError in place of the clients' own exceptions."""
    from langfuse.api.core import ApiError

    try:
        yield
    except httpx.TransportError as error:
        raise ServiceUnavailable(f"{url} does not answer ({type(error).__name__})") from error
    except ApiError as error:
        _check(error.status_code or 500)
        raise RuntimeError(f"{url} did not return a Langfuse API response: check base_url") from error


def _check(status: int) -> None:
    if status in (401, 403):
        raise ServiceRejected(f"the keys were rejected (HTTP {status}): check public_key, secret_key and base_url")
    if status == 429 or status >= 500:
        raise ServiceUnavailable(f"it returns HTTP {status}")
    if status >= 300:
        raise RuntimeError(f"it rejects the request (HTTP {status})")


class _Trace:
    """The spans and the score of one trajectory. Ids are derived from its place in the run, so that resending overwrites."""

    def __init__(self, entry: LogEntry, record: dict[str, Any]):
        self.entry, self.record, self.reward = entry, record, float(record["reward"])
        place = [str(entry.folder), entry.split, entry.step, record["group"], record["index"], record["started"]]
        self._seed = json.dumps(place)
        self.id, self._ids = self._digest("trace", 16), 0
        self._spans: list[Any] = []
        self._now = int(record["started"] * 1e9)  # nanoseconds

    def spans(self) -> list[Any]:
        """Return the finished spans, the root first."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=Resource({"service.name": "art_nb"}), shutdown_on_exit=False, id_generator=self
        )
        self._tracer = provider.get_tracer("art_nb")
        started, seconds = self._now, float(self.record["metrics"].get("duration", 0.0))  # parses "NaN"
        root = self._span(None, f"{self.entry.model} {self.entry.split}", self._root_attributes())
        for history, turns in enumerate(histories(self.record)):
            begin = 0
            for number, end in enumerate((i for i, turn in enumerate(turns) if turn["trainable"]), start=1):
                self._turn(root, f"turn {number}" if history == 0 else f"turn {history}.{number}", turns, slice(begin, end))
                begin = end + 1
        root.end(max(self._now, started + int(seconds * 1e9 if math.isfinite(seconds) else 0)))
        return self._spans

    def score(self) -> dict[str, Any]:
        """Return the reward as a score of Langfuse's API."""
        return {
            "id": f"{self.id:032x}-reward", "traceId": f"{self.id:032x}", "name": "reward",
            "value": self.reward, "dataType": "NUMERIC",
        }  # fmt: skip

    # These three methods implement OpenTelemetry's IdGenerator.
    def generate_trace_id(self) -> int:
        return self.id

    def generate_span_id(self) -> int:
        self._ids += 1
        return self._digest(f"span {self._ids}", 8)

    def is_trace_id_random(self) -> bool:
        return False

    def _digest(self, what: str, size: int) -> int:
        return int.from_bytes(hashlib.blake2b(f"{self._seed} {what}".encode(), digest_size=size).digest(), "big")

    def _span(self, parent: Any, name: str, attributes: dict[str, Any]) -> Any:
        from langfuse import LangfuseOtelSpanAttributes as names
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        entry = self.entry
        of_trace = {  # Langfuse expects these on each span
            names.TRACE_NAME: f"{entry.model} {entry.split}",
            names.TRACE_SESSION_ID: f"{entry.project}/{entry.model}/{entry.split}/{entry.step:04d}/{self.record['group']}",
            names.TRACE_TAGS: [entry.split, f"step {entry.step}"],
        }
        context = Context() if parent is None else set_span_in_context(parent, Context())
        known = {key: value for key, value in (of_trace | attributes).items() if value is not None}
        self._spans.append(self._tracer.start_span(name, context=context, start_time=self._now, attributes=known))
        return self._spans[-1]

    def _root_attributes(self) -> dict[str, Any]:
        from langfuse import LangfuseOtelSpanAttributes as names

        record, turns = self.record, self.record["turns"]
        fields = {name: record[name] for name in ("step", "split", "group", "index", "reward", "advantage")}
        metadata = {**record["metadata"], **record["metrics"], **fields, "logs": "\n".join(record["logs"]) or None}
        answers = [i for i, turn in enumerate(turns) if turn["trainable"]]
        return {
            names.OBSERVATION_TYPE: "agent",
            names.OBSERVATION_INPUT: _messages(turns[: answers[0]] if answers else turns),
            names.OBSERVATION_OUTPUT: _messages([turns[i] for i in answers[-1:]]),
            **{f"{names.OBSERVATION_METADATA}.{name}": value for name, value in metadata.items()},
        }

    def _turn(self, root: Any, name: str, turns: list[dict[str, Any]], preceding: slice) -> None:
        """Add the span and generation of the turn that follows `preceding`, the messages since the model's previous turn."""
        from langfuse import LangfuseOtelSpanAttributes as names

        turn = turns[preceding.stop]
        output, usage = {names.OBSERVATION_OUTPUT: _messages([turn])}, turn["usage"]
        span = self._span(root, name, {
            names.OBSERVATION_TYPE: "span",
            names.OBSERVATION_INPUT: _messages(turns[preceding]),
            f"{names.OBSERVATION_METADATA}.reward": turn.get("reward"),
            **output,
        })  # fmt: skip
        generation = self._span(span, "generation", {
            names.OBSERVATION_TYPE: "generation",
            names.OBSERVATION_MODEL: turn.get("model") or self.entry.model,
            names.OBSERVATION_INPUT: _messages(turns[: preceding.stop]),
            names.OBSERVATION_USAGE_DETAILS: json.dumps(usage) if usage else None,
            **output,
        })  # fmt: skip
        self._now += TURN_DURATION
        generation.end(self._now)
        span.end(self._now)


def _messages(turns: list[dict[str, Any]]) -> str:
    """Return turns as a JSON list of OpenAI messages."""
    messages = []
    for turn in turns:
        calls = [{"type": "function", "function": call} for call in turn.get("tool_calls", ())]
        messages.append({"role": turn["role"], "content": turn["content"], **({"tool_calls": calls} if calls else {})})
    return json.dumps(messages)
