"""HTTP requests that are retried when a connection is lost or a server restarts.

Every request may be sent more than once, so it must be idempotent: the server recognises a repeated one by its key or
number, or it only reads.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import httpx
from pydantic import BaseModel

READ_TIMEOUT = 60.0  # seconds without a byte; the server sends at least one in any such interval
RETRIED = {425, 429, 502, 503, 504}  # status codes
CONNECT_TIMEOUT = 10.0  # seconds
MAX_PAUSE = 5.0  # seconds between two attempts
MAX_CUT_OFF = 20  # streams in a row cut off without a new line; after that, repeated lines do not restart the clock


class Gone(Exception):
    """The server no longer knows the session that this request belongs to (status 410)."""


class Unreachable(ConnectionError):
    """The server did not answer within `patience` seconds."""


class TokenRefused(PermissionError):
    """The server refuses the token (status 401)."""


class RequestRefused(ValueError):
    """The request was rejected; the message gives the reason. final: its content is at fault, so a retry cannot succeed.

    A rejection that is not final comes, for example, from a proxy or from a limit that can be raised.
    """

    def __init__(self, message: str, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class ServerFailed(RuntimeError):
    """An internal error of the server (status 500 or more, other than those that are retried)."""


class Connection:
    """Connection to one server.

    url: the server's address, or the base URL of its OpenAI clients. api_key: its token. patience: seconds to retry before
    giving up. Raises: ValueError for an invalid address, or a token that no HTTP header can hold.
    """

    def __init__(self, url: str, api_key: str, patience: float) -> None:
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname or address.port == 0:  # .port checks its range
            raise ValueError(f"url is {url!r}: expected something like http://127.0.0.1:8000")
        api_key = api_key.strip()  # a token read from a file may end with a newline
        if not (api_key.isascii() and api_key.isprintable()):
            raise ValueError("the token has characters that an HTTP header cannot hold: expected printable ASCII")
        self.url = re.sub(r"(/projects/[^/]+)?/v1$", "", url.rstrip("/"))
        self.api_key, self.patience = api_key, patience
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    def _http(self) -> httpx.AsyncClient:
        """Return the client of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            url = httpx.URL(self.url)
            local = url.host in ("127.0.0.1", "localhost", "::1")
            self._clients[loop] = httpx.AsyncClient(
                base_url=self.url, headers={"authorization": f"Bearer {self.api_key}"},
                timeout=httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT), limits=httpx.Limits(max_connections=None),
                trust_env=not local, verify=url.scheme == "https",
            )  # fmt: skip
        return self._clients[loop]

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        if client := self._clients.pop(asyncio.get_running_loop(), None):
            await client.aclose()

    async def ask(self, method: str, path: str, body: Any = None, timeout: float = READ_TIMEOUT) -> Any:
        """Send a request; return the parsed JSON of the response, None if it is empty. timeout: seconds without a byte.

        Raises: Gone, RequestRefused, TokenRefused, ServerFailed, Unreachable.
        """
        content = await self.fetch(method, path, body, timeout)
        try:
            return json.loads(content or b"null")
        except ValueError as error:
            raise RequestRefused(f"{self.url} did not answer in JSON: is this the server's address?") from error

    async def fetch(self, method: str, path: str, body: Any = None, timeout: float = READ_TIMEOUT) -> bytes:
        """Send a request; return the response's bytes, b"" if a repeated DELETE finds nothing (404). Raises: as `ask`."""
        content = None if body is None else encoded(body)
        retries, accepted, limits = Retries(self), 200, httpx.Timeout(timeout, connect=CONNECT_TIMEOUT)
        while True:
            try:
                response = await self._http().request(method, path, content=content, timeout=limits, headers=_JSON)
                _check(response, accepted)
                return b"" if response.status_code == 404 else response.content
            except httpx.TransportError as error:
                accepted = 404 if method == "DELETE" else 200
                await retries.pause(error)

    async def lines(self, path: str, body: Any) -> AsyncIterator[dict[str, Any]]:
        """POST `body`; yield the response's JSON lines, up to and including the first without "progress".

        If the response is cut off, sends the request again; lines may repeat. Raises: as `ask`; also for an "error" line.
        """
        content, retries, seen, cut_off = encoded(body), Retries(self), set[str](), 0
        while True:
            first = True
            try:
                async with self._http().stream("POST", path, content=content, headers=_JSON) as response:
                    if not response.is_success:
                        await response.aread()
                    _check(response)
                    async for line in response.aiter_lines():
                        item = json.loads(line)
                        cut_off, first = (cut_off + first if line in seen else 0), False
                        seen.add(line)
                        if cut_off < MAX_CUT_OFF:
                            retries.restart()
                        if "error" in item:
                            raise _refusal(item["status"], item)
                        yield item
                        if "progress" not in item:
                            return
                raise httpx.RemoteProtocolError("the response was cut off")
            except (httpx.TransportError, json.JSONDecodeError) as error:  # it may be cut off inside a line
                await retries.pause(error)


class Retries:
    """The pauses between attempts, until the connection's patience runs out."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.restart()

    def restart(self) -> None:
        """Restart the clock, after progress."""
        self._until, self._seconds = time.monotonic() + self._connection.patience, 0.1

    async def pause(self, error: Exception) -> None:
        """Wait before the next attempt. Raises: Unreachable when the connection's patience has run out."""
        if time.monotonic() >= self._until:
            raise Unreachable(
                f"{self._connection.url} did not answer for {self._connection.patience:g} seconds "
                f"({str(error) or type(error).__name__}). Is the server running, and is this its address? Nothing is lost: "
                "run the same code again once it answers."
            ) from error
        await asyncio.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, MAX_PAUSE)


_JSON = {"content-type": "application/json"}


def encoded(body: Any) -> bytes:
    """Return `body` as JSON, pydantic models as dicts of the fields that are not None. Raises: TypeError for others."""
    return json.dumps(body, default=_json_fields).encode()


def _json_fields(value: Any) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_none=True)
    raise TypeError(f"cannot send {value!r:.200}: expected JSON values, such as a dict, not a {type(value).__name__}")


def digest(body: Any) -> str:
    """Return a hash of `encoded(body)`: 24 hexadecimal digits."""
    return hashlib.blake2b(encoded(body), digest_size=12).hexdigest()


def _check(response: httpx.Response, accepted: int = 200) -> None:
    if response.is_success or response.status_code == accepted:
        return
    if response.status_code in RETRIED:
        raise httpx.RemoteProtocolError(f"status {response.status_code} {response.text:.300}".strip())  # retried
    try:
        body = response.json()
    except ValueError:
        body = {}
    raise _refusal(response.status_code, body)


def _refusal(status: int, body: Any) -> Exception:
    error = body.get("error") if isinstance(body, dict) else None
    # An answer without a message comes from another program, such as a proxy.
    message = error["message"] if isinstance(error, dict) and "message" in error else None
    final = status == 422 or (message is not None and status in (400, 409))
    message = message or f"status {status}: {json.dumps(body)[:1000]}"
    if status == 401:
        return TokenRefused("wrong api_key: give the token that `art-nb serve` showed at its first start, or vLLM's API key")
    if status == 410:
        return Gone(message)
    return ServerFailed(message) if status >= 500 else RequestRefused(message, final)
