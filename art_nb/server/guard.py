"""Who may ask, from where, how much and how often: in front of every route, so that no route can be forgotten.

Without the token all there is to learn is that a server runs. The first line that fits is the answer, status and words,
whatever else is sent along and whether there is such a route or not; tests/test_server_stranger.py asks every one.

    GET   /healthz  200 {"status":"ok"}
    *     /healthz  405 {"detail":"Method Not Allowed"}
    GET   /         200 a form for the token, the same on every server
    POST  /login    401 this is not the token
    *     /login    405 {"detail":"Method Not Allowed"}
    WS    *         403
    *     *         401 show the token

Besides, to anybody: 403 to a page of another origin, 413 to what is too long, 429 to too much at once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from art_nb.server.errors import Refused, error_body
from art_nb.server.pages import SCRIPT_HASH
from art_nb.server.settings import Settings
from art_nb.server.tokens import Token

OPEN = {"/healthz", "/login"}
MOST_ADDRESSES = 10_000
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    f"script-src 'self' {SCRIPT_HASH}; "
    "form-action 'self'; base-uri 'none'; object-src 'none'; frame-ancestors 'self'",
}  # fmt: skip


class Guard:
    """ASGI middleware that lets through who shows the token, in the limits that the settings name.

    login: the page for those who have not shown it yet.
    """

    def __init__(self, app: ASGIApp, settings: Settings, token: Token, login: bytes) -> None:
        self.app, self.settings, self.token, self.login = app, settings, token, login
        self._open: Counter[str] = Counter()  # requests in flight, by address
        self._rates: dict[str, tuple[float, float]] = {}  # of an address: what is left to it, and when that was counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        address = (scope.get("client") or ("", 0))[0]
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check(scope, headers, address)
        except Refused as refused:
            if refused.status == 401 and scope["type"] == "http" and scope["path"] == "/" and scope["method"] == "GET":
                return await _respond(send, 200, self.login, "text/html; charset=utf-8")
            return await _refuse(scope, receive, send, refused)
        self._open[address] += 1
        try:
            await self._limited(scope, receive, send)
        finally:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

    def _check(self, scope: Scope, headers: dict[bytes, str], address: str) -> None:
        self._spend(address)
        origin = headers.get(b"origin")
        if origin is not None and not self._is_ours(origin, headers.get(b"host", "")):
            raise Refused(403, "a page of another origin may not ask here")
        if self._open[address] >= self.settings.concurrency:
            raise Refused(429, f"{self._open[address]} requests of this address are being answered", **{"retry-after": "1"})
        if scope["path"] not in OPEN and not self._is_known(headers):
            raise Refused(401, "show the token: Authorization: Bearer ...", **{"www-authenticate": "Bearer"})
        length = headers.get(b"content-length", "0")
        if not length.isdecimal() or int(length) > self._most(scope):
            raise self._too_long(scope)

    def _too_long(self, scope: Scope) -> Refused:
        return Refused(413, f"a request may have {self._most(scope)} bytes")

    def _most(self, scope: Scope) -> int:
        return 4096 if scope["path"] in OPEN else self.settings.max_body

    def _spend(self, address: str) -> None:
        """One request of what the address may ask. Raises: Refused when nothing is left."""
        now, rate = time.monotonic(), self.settings.rate
        left, then = self._rates.get(address, (2 * rate, now))
        left = min(2 * rate, left + (now - then) * rate)
        if len(self._rates) >= MOST_ADDRESSES:
            self._rates.clear()
        self._rates[address] = (max(left - 1, 0.0), now)
        if left < 1:
            raise Refused(429, f"more than {rate:g} requests a second", **{"retry-after": "1"})

    def _is_ours(self, origin: str, host: str) -> bool:
        try:
            return urlsplit(origin).netloc == host or origin in self.settings.origins
        except ValueError:
            return False

    def _is_known(self, headers: dict[bytes, str]) -> bool:
        scheme, _, given = headers.get(b"authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.token.fits(given.strip())
        try:
            morsel = SimpleCookie(headers.get(b"cookie", "")).get(self.token.cookie)
        except CookieError:
            return False
        return morsel is not None and self.token.cookie_fits(morsel.value)

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The app, with a body that is counted, whatever its length was said to be, and its end when the server stops."""
        got, refused, begun = 0, False, False

        async def counted() -> Message:
            nonlocal got, refused
            message = await receive()
            got += len(message.get("body", b""))
            if got > self._most(scope):
                refused = True
                await _refuse(scope, receive, send, self._too_long(scope))
                return {"type": "http.disconnect"}
            return message

        async def marked(message: Message) -> None:
            nonlocal begun
            if refused:  # what the app makes of half a body is of no interest
                return
            begun = True
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((n.encode(), v.encode()) for n, v in HEADERS.items())]
            await send(message)

        try:
            await self.app(scope, counted, marked)
        except asyncio.CancelledError:  # uvicorn stops, and has waited long enough for it
            if scope["type"] == "http" and not begun and not refused:
                await _refuse(scope, receive, send, Refused(503, "the server stops", **{"retry-after": "1"}))


async def _refuse(scope: Scope, receive: Receive, send: Send, refused: Refused) -> None:
    if scope["type"] == "websocket":
        await receive()  # the request to connect; closed before it is accepted, it is answered by 403
        return await send({"type": "websocket.close", "code": 1008})
    await _respond(send, refused.status, json.dumps(error_body(refused)).encode(), "application/json", refused.headers)


async def _respond(send: Send, status: int, body: bytes, kind: str, more: dict[str, str] | None = None) -> None:
    headers = {"content-type": kind, "content-length": str(len(body)), **HEADERS, **(more or {})}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
