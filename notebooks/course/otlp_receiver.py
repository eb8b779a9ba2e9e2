"""A receiver of OpenTelemetry traces over HTTP (OTLP) in this process: shows what a monitor sends, without a service.

It implements two routes of Langfuse: POST /api/public/otel/v1/traces accepts protobuf, POST /api/public/scores JSON.
"""

from __future__ import annotations

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class OtlpReceiver:
    """Listen on a free port of this machine until it is closed.

    url: its address. spans: OpenTelemetry's `Span` messages in the order of arrival; scores: those sent to Langfuse's API.
    requests: (path, headers) of each request.
    """

    def __init__(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.spans: list[Any] = []
        self.scores: list[dict[str, Any]] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        receiver = self

        class OtlpHandler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                receiver.requests.append((self.path, dict(self.headers)))
                if self.path.endswith("/v1/traces"):
                    request = ExportTraceServiceRequest.FromString(body)
                    scopes = [scope for resource in request.resource_spans for scope in resource.scope_spans]
                    receiver.spans += [span for scope in scopes for span in scope.spans]
                    self._answer(200, "application/x-protobuf", b"")
                else:
                    receiver.scores += json.loads(body)
                    self._answer(202, "application/json", b'{"message": "Accepted"}')

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), OtlpHandler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def attributes(span: Any) -> dict[str, Any]:
    """Return a span's attributes as Python values."""
    return {pair.key: _value(pair.value) for pair in span.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None  # a None in a list has no kind
