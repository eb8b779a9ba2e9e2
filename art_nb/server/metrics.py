"""Numbers for Prometheus: requests by route, what is sampled, where training stands."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from art_nb.server.served import Served
from art_nb.storage import checkpoints


class Metrics:
    """Counts requests as they go through `middleware`; the rest is read when it is asked for."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, served: Served) -> None:
        self.served, self.registry = served, CollectorRegistry()
        self.requests = Counter("art_nb_requests", "Requests", ["route", "status"], registry=self.registry)
        self.seconds = Histogram("art_nb_request_seconds", "Until the last byte", ["route"], registry=self.registry)
        self.registry.register(self)

    def text(self) -> bytes:
        """All of them, in Prometheus' format."""
        return generate_latest(self.registry)

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """`app`, its requests counted."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return await app(scope, receive, send)
            started, status = time.perf_counter(), "500"

            async def noted(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = str(message["status"])
                await send(message)

            try:
                await app(scope, receive, noted)
            finally:
                route = getattr(scope.get("route"), "path", "none")  # its pattern: what clients write is no label
                self.requests.labels(route, status).inc()
                self.seconds.labels(route).observe(time.perf_counter() - started)

        return counted

    def collect(self) -> Iterator[Metric]:
        """For prometheus_client."""
        for name, value in self.served.sampling().items():
            kind: Any = CounterMetricFamily if name in ("tokens", "seconds") else GaugeMetricFamily
            yield kind(f"art_nb_sampling_{name}", f"Sampling: {name}", value=value)
        episodes = GaugeMetricFamily("art_nb_episodes", "Episodes for workers", labels=["state"])
        for state, number in self.served.work.counts().items():
            episodes.add_metric([state], number)
        yield episodes
        steps = GaugeMetricFamily("art_nb_model_step", "Training steps behind a model", labels=["project", "model"])
        for spec in list(self.served.registry.specs.values()):
            latest = checkpoints.latest(self.served.registry.folder(spec) / "checkpoints")
            steps.add_metric([spec.project, spec.name], latest or 0)
        yield steps
