"""A judge behind an HTTP server with OpenAI's chat API, scripted to answer correctly or to fail in a given way.

    with JudgeServer(lambda n, request: ok(request)) as server: ...   # server.url ends in /v1

A script gets the number of the request, from 0, and the `JudgeRequest`; it returns a `Response`.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class JudgeRequest:
    """A request to the judge. attempts: {id: messages after the shared start}, in the order shown."""

    body: dict[str, Any]

    @cached_property
    def document(self) -> dict[str, Any]:
        return json.loads(self.body["messages"][1]["content"])

    @cached_property
    def attempts(self) -> dict[str, list[dict]]:
        return {attempt["id"]: attempt["messages"] for attempt in self.document["attempts"]}


@dataclass
class Response:
    """An HTTP response; delay: seconds before it; drop: close the connection instead."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drop: bool = False


def completion(text: str | None, finish_reason: str = "stop", **message: Any) -> Response:
    """A completion whose message is `text`."""
    choice = {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", "content": text, **message}}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "judge", "choices": [choice], "usage": usage}
    return Response(json.dumps(body).encode(), headers={"content-type": "application/json"})


def error_response(status: int, message: str = "scripted", **headers: str) -> Response:
    """An error in the format of OpenAI's API."""
    body = json.dumps({"error": {"message": message, "type": "scripted", "code": None}}).encode()
    return Response(body, status, {"content-type": "application/json", **headers})


def score_of(messages: list[dict]) -> float:
    """The correct score: a trajectory of these tests ends with a message such as "I am worth 0.25"."""
    return float(str(messages[-1]["content"]).rsplit(" ", 1)[-1])


def entries(request: JudgeRequest) -> list[dict]:
    """The correct scores, in the order shown."""
    return [{"trajectory_id": i, "explanation": f"worth {score_of(m)}", "score": score_of(m)} for i, m in request.attempts.items()]


def ok(request: JudgeRequest) -> Response:
    """The correct answer."""
    return completion(json.dumps({"scores": entries(request)}))


def changed(change: Callable[[list[dict]], Any]) -> Callable[[JudgeRequest], Response]:
    """The correct answer, with its list of scores changed in place or replaced."""

    def answer(request: JudgeRequest) -> Response:
        scores = entries(request)
        replaced = change(scores)
        return completion(json.dumps({"scores": scores if replaced is None else replaced}))

    return answer


def _first(value: Any) -> Callable[[JudgeRequest], Response]:
    return changed(lambda scores: scores[0].update(score=value))


# Answers that must not be used.
BAD_ANSWERS: dict[str, Callable[[JudgeRequest], Response]] = {
    "malformed": lambda request: completion('{"scores": [{"trajectory_id": "1", "score": }]}'),
    "prose": lambda request: completion("The first one is the best, I would say 0.9."),
    "quoted in prose": lambda request: completion("One attempt says:\n```json\n" + json.dumps({"scores": entries(request)}) + "\n```\nNo."),
    "cut off": lambda request: completion(json.dumps({"scores": entries(request)})[:-20], "length"),
    "empty": lambda request: completion(""),
    "null": lambda request: completion(None),
    "missing": changed(lambda scores: scores[1:]),
    "repeated": changed(lambda scores: scores[0].update(trajectory_id=scores[-1]["trajectory_id"])),
    "extra": changed(lambda scores: [*scores, {"trajectory_id": "99", "explanation": "", "score": 1}]),
    "seven": _first(7),
    "ten": _first(10),
    "negative": _first(-0.1),
    "0.8x": _first("0.8x"),
    "percent": _first("80%"),
    "out of ten": _first("8/10"),
    "NaN": _first(float("nan")),
    "infinite": _first(float("inf")),
    "true": _first(True),
    "none": _first(None),
    "refusal": lambda request: completion(None, refusal="I can't help with that."),
    "filtered": lambda request: completion("", "content_filter"),
}
FAILURES: dict[str, Callable[[JudgeRequest], Response]] = {
    "429": lambda request: error_response(429),
    "429 with a time": lambda request: error_response(429, **{"retry-after": "0.01"}),
    "408": lambda request: error_response(408),
    "500": lambda request: error_response(500),
    "502 in HTML": lambda request: Response(b"<html>bad gateway</html>", 502, {"content-type": "text/html"}),
    "503": lambda request: error_response(503),
    "529": lambda request: error_response(529),
    "dropped": lambda request: Response(drop=True),
    "not JSON": lambda request: Response(b"{", headers={"content-type": "application/json"}),
    "HTML": lambda request: Response(b"<html>log in</html>", headers={"content-type": "text/html"}),
    "no choices": lambda request: Response(b'{"choices": []}', headers={"content-type": "application/json"}),
}


class JudgeServer:
    """The server, while the `with` block runs. requests: all bodies; most_at_once: maximum of concurrent requests."""

    def __init__(self, script: Callable[[int, JudgeRequest], Response]):
        self.script, self.requests, self.headers = script, [], []
        self.most_at_once, self._in_flight, self._lock = 0, 0, threading.Lock()
        outer = self

        class JudgeHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                outer._answer(self)

            def log_message(self, *args):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), JudgeHandler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        with self._lock:
            number = len(self.requests)
            self.requests.append(body)
            self.headers.append(dict(handler.headers))
            self._in_flight += 1
            self.most_at_once = max(self.most_at_once, self._in_flight)
        try:
            response = self.script(number, JudgeRequest(body))
            time.sleep(response.delay)
        finally:
            with self._lock:
                self._in_flight -= 1
        if response.drop:
            handler.close_connection = True
            handler.connection.close()
            return
        try:
            handler.send_response(response.status)
            for name, value in {**response.headers, "content-length": str(len(response.body))}.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(response.body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client did not wait

    def __enter__(self) -> "JudgeServer":
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()
