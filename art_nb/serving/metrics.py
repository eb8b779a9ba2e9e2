"""Metrics for Prometheus: requests by route, sampling, episodes, training steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from art_nb.serving.state import ServerState


class ServerMetrics:
    """Counts the requests that pass `Guard`, in `middleware`; `collect` reads the other metrics from the server's state."""

    def __init__(self, state: ServerState) -> None:
        self.state, self.registry = state, CollectorRegistry()
        self.requests = Counter("art_nb_requests", "Requests", ["route", "status"], registry=self.registry)
        self.seconds = Histogram("art_nb_request_seconds", "Seconds until the last byte", ["route"], registry=self.registry)
        self.registry.register(self)

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Wrap `app` to count its HTTP requests and their seconds. Status 499: the body ended early or was rejected."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return await app(scope, receive, send)
            started, status = time.perf_counter(), "500"

            async def note_status(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = str(message["status"])
                await send(message)

            try:
                await app(scope, receive, note_status)
            except ClientDisconnect:
                status = "499"
                raise
            finally:
                route = getattr(scope.get("route"), "path", "none")  # the route's pattern, so that labels stay few
                self.requests.labels(route, status).inc()
                self.seconds.labels(route).observe(time.perf_counter() - started)

        return counted

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are not counted per request; called by prometheus_client."""
        for name, value in self.state.sampling().items():
            kind: Any = CounterMetricFamily if name in ("tokens", "seconds") else GaugeMetricFamily
            yield kind(f"art_nb_sampling_{name}", f"Sampling: {name}", value=value)
        episodes = GaugeMetricFamily("art_nb_episodes", "Episodes for workers", labels=["state"])
        for status, number in self.state.work.counts().items():
            episodes.add_metric([status], number)
        yield episodes
        steps = GaugeMetricFamily("art_nb_model_step", "Training step of a model", labels=["project", "model"])
        for spec in list(self.state.models.specs.values()):
            steps.add_metric(spec.key, self.state.models.describe(spec)["step"])
        yield steps
