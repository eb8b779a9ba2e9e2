"""Requests to the server that outlive a lost connection, a restart, a slow moment: sent again, and then a clear error.

Whatever is sent again is applied once: the server knows it by its key or number, or it only reads.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any
from weakref import WeakKeyDictionary

import httpx

READ = 60.0  # seconds of silence after which an answer is taken for lost; the server is heard of more often
LATER = {425, 429, 502, 503, 504}  # statuses that pass
LONGEST_PAUSE = 5.0  # seconds


class Gone(Exception):
    """The server does not know any more what this request goes on with."""


class Unreachable(ConnectionError):
    """The server did not answer for as long as patience lasts."""


class TokenRefused(PermissionError):
    """The server does not take the token."""


class RequestRefused(ValueError):
    """The server will never serve this request; it says why."""


class Connection:
    """One server. url: of its root; api_key: its token; patience: seconds to try for before giving up."""

    def __init__(self, url: str, api_key: str, patience: float) -> None:
        self.url, self.api_key, self.patience = url.rstrip("/"), api_key, patience
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    def _http(self) -> httpx.AsyncClient:
        """A client of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            near = httpx.URL(self.url).host in ("127.0.0.1", "localhost", "::1")
            self._clients[loop] = httpx.AsyncClient(
                base_url=self.url, headers={"authorization": f"Bearer {self.api_key}"},
                timeout=httpx.Timeout(READ, connect=10), limits=httpx.Limits(max_connections=None),
                trust_env=not near, verify=self.url.startswith("https:"),
            )  # fmt: skip
        return self._clients[loop]

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        if client := self._clients.pop(asyncio.get_running_loop(), None):
            await client.aclose()

    async def ask(self, method: str, path: str, body: Any = None, timeout: float = READ) -> Any:
        """The JSON that the server answers.

        Raises: Gone (status 410), RequestRefused, TokenRefused, Unreachable; RuntimeError when the server failed itself.
        """
        return json.loads((await self.fetch(method, path, body, timeout)) or b"null")

    async def fetch(self, method: str, path: str, body: Any = None, timeout: float = READ) -> bytes:
        """The bytes that the server answers. Raises: as `ask`."""
        content = None if body is None else encoded(body)
        async for attempt in self._attempts():
            with attempt:
                response = await self._http().request(method, path, content=content, timeout=timeout, headers=_JSON)
                _check(response)
                return response.content
        raise AssertionError  # the attempts end by returning or raising

    async def lines(self, path: str, body: Any) -> AsyncIterator[dict[str, Any]]:
        """The JSON lines that the server answers with, until one that has no "progress". Begun anew where they break off.

        Raises: as `ask`.
        """
        content = encoded(body)
        async for attempt in self._attempts():
            with attempt:
                async with self._http().stream("POST", path, content=content, headers=_JSON) as response:
                    if not response.is_success:
                        await response.aread()
                    _check(response)
                    async for line in response.aiter_lines():
                        attempt.succeeded()
                        item = json.loads(line)
                        if "error" in item:
                            raise _refusal(item["status"], item)
                        yield item
                        if "progress" not in item:
                            return
                raise httpx.RemoteProtocolError("the answer broke off")

    async def _attempts(self) -> AsyncIterator[Attempt]:
        attempt = Attempt(self)
        while True:
            yield attempt
            await asyncio.sleep(attempt.pause)
            attempt.pause = min(2 * attempt.pause, LONGEST_PAUSE)


class Attempt:
    """A block that may fail for a while: what passes is swallowed, so that the next round tries again."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.succeeded()

    def succeeded(self) -> None:
        """Patience begins anew."""
        self._until, self.pause = time.monotonic() + self._connection.patience, 0.1

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> bool:
        if not isinstance(error, httpx.TransportError | Later):
            return False
        if time.monotonic() < self._until:
            return True
        raise Unreachable(
            f"{self._connection.url} did not answer for {self._connection.patience:g} seconds "
            f"({error or type(error).__name__}). Is the server running, and is this its address? Nothing is lost: run the "
            "same again once it answers."
        ) from error


class Later(Exception):
    """The server asks to try again."""


_JSON = {"content-type": "application/json"}


def encoded(body: Any) -> bytes:
    """As JSON; openai's objects as their fields."""
    return json.dumps(body, default=lambda value: value.model_dump(exclude_none=True)).encode()


def _check(response: httpx.Response) -> None:
    if response.is_success:
        return
    if response.status_code in LATER:
        raise Later(f"status {response.status_code}")
    try:
        body = response.json()
    except ValueError:
        body = {}
    raise _refusal(response.status_code, body)


def _refusal(status: int, body: Any) -> Exception:
    error = body.get("error") if isinstance(body, dict) else None
    message = error["message"] if isinstance(error, dict) else json.dumps(body)[:1000]
    if status == 401:
        return TokenRefused("the server refuses this api_key: give the token that `art-nb serve` showed at its start")
    if status == 410:
        return Gone(message)
    return RuntimeError(message) if status >= 500 else RequestRefused(message)
