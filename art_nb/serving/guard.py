"""Authentication and limits, as middleware in front of every route, so that no route can lack them.

Without the token, a client learns only that a server is running. The first line that matches a request determines the
response, whatever else the request contains and whether or not the route exists (tests/serving/test_server_stranger.py):

    GET   /healthz  200 {"status":"ok"}
    *     /healthz  405 {"detail":"Method Not Allowed"}
    GET   /         200 the login page, the same on every server
    POST  /login    401 invalid token
    *     /login    405 {"detail":"Method Not Allowed"}
    WS    *         403
    *     *         401 missing or invalid token

With or without the token: 403 for a browser page of another origin, 413 for a body that is too long, 429 over the limits.
With `--origins`, CORS preflight requests are answered before any check; the answer reveals whether an origin is allowed.
Requests without the token or from other origins have rate and concurrency limits of their own, apart from the owner's.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import time
from collections import Counter
from pathlib import Path

from starlette.requests import ClientDisconnect, cookie_parser
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from art_nb.backends.errors import StatusError, error_body
from art_nb.serving.connections import AUTHENTICATED, network
from art_nb.serving.settings import Settings
from art_nb.serving.tokens import AccessToken

# The login page reads the login code from its URL's fragment (#code=...), which browsers do not send, and submits it.
LOGIN = Path(__file__).with_name("ui").joinpath("login.html").read_bytes()
_DIGESTS = [hashlib.sha256(script).digest() for script in re.findall(rb"<script>(.*?)</script>", LOGIN, re.DOTALL)]
SCRIPT_HASH = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in _DIGESTS)
PUBLIC_PATHS = {"/healthz", "/login"}
MAX_PUBLIC_BODY = 4096  # bytes
MAX_ADDRESSES = 10_000
ClientKey = tuple[str, bool]  # a client's network, and whether its requests are authenticated
RETRY = {"retry-after": "1"}  # seconds
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    f"script-src 'self' {SCRIPT_HASH}; "
    "form-action 'self'; base-uri 'none'; object-src 'none'; frame-ancestors 'self'",
}  # fmt: skip


class Guard:
    """ASGI middleware: passes on requests within the settings' limits that carry the token or go to PUBLIC_PATHS."""

    def __init__(self, app: ASGIApp, settings: Settings, token: AccessToken) -> None:
        self.app, self.settings, self.token = app, settings, token
        self._in_flight: Counter[ClientKey] = Counter()  # requests
        self._body_bytes = 0  # of all requests in flight
        self._buckets: dict[ClientKey, tuple[float, float]] = {}  # requests left, and the time of that count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        origin, host = headers.get(b"origin"), headers.get(b"host", "")
        is_foreign = origin is not None and origin.partition("//")[2] != host and origin not in self.settings.origins
        scope[AUTHENTICATED] = not is_foreign and self._is_authenticated(headers)
        client = network((scope.get("client") or ("", 0))[0]), scope[AUTHENTICATED]
        try:
            self._check(scope, headers, client, is_foreign)
        except StatusError as error:
            if error.status == 401 and scope["type"] == "http" and scope["path"] == "/" and scope["method"] == "GET":
                return await HTMLResponse(LOGIN, headers=HEADERS)(scope, receive, send)
            return await _reject(scope, receive, send, error)
        self._in_flight[client] += 1
        try:
            await self._call_app(scope, receive, send)
        finally:
            self._in_flight[client] -= 1
            if not self._in_flight[client]:
                del self._in_flight[client]

    def _check(self, scope: Scope, headers: dict[bytes, str], client: ClientKey, is_foreign: bool) -> None:
        self._take_from_bucket(client)
        if is_foreign:
            raise StatusError(403, "this origin is not allowed; add it to the server's --origins")
        if self._in_flight[client] >= self.settings.concurrency:
            raise StatusError(429, f"{self.settings.concurrency} requests from this address are in flight: wait", **RETRY)
        if scope["path"] not in PUBLIC_PATHS and not scope[AUTHENTICATED]:
            message = "missing or invalid token: send it as Authorization: Bearer ..."
            raise StatusError(401, message, **{"www-authenticate": "Bearer"})
        length = headers.get(b"content-length", "0")
        if not length.isdecimal() or int(length) > self._max_body(scope):
            raise self._too_long(scope)

    def _too_long(self, scope: Scope) -> StatusError:
        return StatusError(413, f"the body exceeds the maximum of {self._max_body(scope)} bytes")

    def _max_body(self, scope: Scope) -> int:
        return MAX_PUBLIC_BODY if scope["path"] in PUBLIC_PATHS else self.settings.max_body

    def _take_from_bucket(self, client: ClientKey) -> None:
        """Take one request from the client's token bucket. Raises: StatusError when it is empty."""
        now, rate = time.monotonic(), self.settings.rate
        burst = max(1.0, 2 * rate)
        left, counted_at = self._buckets.get(client, (burst, now))
        left = min(burst, left + (now - counted_at) * rate)
        if len(self._buckets) >= MAX_ADDRESSES:
            self._buckets.clear()
        self._buckets[client] = (left - 1 if left >= 1 else left, now)
        if left < 1:
            raise StatusError(429, f"more than {rate:g} requests per second from this address: send fewer", **RETRY)

    def _is_authenticated(self, headers: dict[bytes, str]) -> bool:
        scheme, _, token = headers.get(b"authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.token.matches(token.strip())
        # Lenient: cookies of other programs on localhost, whose ports share them, may be malformed.
        cookie = cookie_parser(headers.get(b"cookie", "")).get(self.token.cookie_name)
        return cookie is not None and self.token.accepts_cookie(cookie)

    async def _call_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app. Limit the bytes received, whatever content-length states; answer 503 when the server shuts down."""
        received, rejected, started = 0, False, False

        async def count_body() -> Message:
            nonlocal received, rejected
            message = await receive()
            received += (size := len(message.get("body", b"")))
            self._body_bytes += size
            error = self._too_long(scope) if received > self._max_body(scope) else None
            if error is None and self._body_bytes > 2 * self.settings.max_body:
                error = StatusError(429, "the bodies of all requests in flight exceed the limit: try again later", **RETRY)
            if error is not None:
                rejected = True
                await _reject(scope, receive, send, error)
                return {"type": "http.disconnect"}
            return message

        async def add_headers(message: Message) -> None:
            nonlocal started
            if rejected:  # the app's response to an incomplete body is dropped
                return
            started = True
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((n.encode(), v.encode()) for n, v in HEADERS.items())]
            await send(message)

        try:
            await self.app(scope, count_body, add_headers)
        except asyncio.CancelledError:  # uvicorn is shutting down and its grace period is over
            if scope["type"] == "http" and not started and not rejected:
                await _reject(scope, receive, send, StatusError(503, "the server is shutting down", **RETRY))
        except ClientDisconnect:  # before the body was complete: no one awaits a response, and any client could fill the log
            pass
        finally:
            self._body_bytes -= received


async def _reject(scope: Scope, receive: Receive, send: Send, error: StatusError) -> None:
    if scope["type"] == "websocket":
        await receive()  # the request to connect; closing before it is accepted sends status 403
        return await send({"type": "websocket.close", "code": 1008})
    await JSONResponse(error_body(error), error.status, HEADERS | error.headers)(scope, receive, send)
