"""uvicorn's HTTP protocol with limits on open connections and on the time for headers and body, before authentication.

`guard` checks a request once its headers are complete. Without these limits, a client without the token could hold sockets
open and send nothing, until the process has no file descriptor left for the owner's requests.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0  # for a request's headers, from its first byte; for the first request, from the connection's start
BODY_RATE = 4096  # minimum bytes per second of a body, averaged over HEADER_SECONDS
MAX_CONNECTIONS = 2000
RESERVED = 128  # file descriptors for everything but connections
BACKLOG = 64  # connections that are accepted at a time
AUTHENTICATED = "art_nb.authenticated"  # key of a request's scope: whether its token or cookie is valid
REPEATED = ("socket.accept() out of system resource", "Invalid HTTP request received")  # messages that any client can cause


def max_connections() -> int:
    """Return the maximum number of open connections: below the process's limit on open files, at least 16."""
    if not hasattr(os, "sysconf"):  # Windows, which has no such limit
        return MAX_CONNECTIONS
    files = os.sysconf("SC_OPEN_MAX")
    return max(16, min(MAX_CONNECTIONS, files - RESERVED - BACKLOG)) if files >= 0 else MAX_CONNECTIONS


def network(address: str) -> str:
    """Return the part that one client's addresses share: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    return str(ip_network((parsed, 64), strict=False)) if isinstance(parsed, IPv6Address) else str(parsed)


class LimitedProtocol(H11Protocol):
    """One connection. Above the limit, aborts the oldest closable one of the network with the most, or else this one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.network = network(self.client[0] if self.client else "")
        self.opened, self._incomplete, self._bytes = time.monotonic(), "headers", 0
        self._timer = self.loop.call_later(HEADER_SECONDS, self._on_timeout)
        open_now: list[Any] = [each for each in self.connections if not each.transport.is_closing()]
        if len(open_now) > max_connections():
            idle = [c for c in open_now if isinstance(c, LimitedProtocol) and c is not self and c.may_be_closed]
            held = Counter(each.network for each in idle)
            oldest = max(idle, key=lambda each: (held[each.network], -each.opened), default=self)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        super().data_received(data)

    def handle_events(self) -> None:
        """Handle the received events, and time what is incomplete; uvicorn also calls this after a response (pipelining)."""
        super().handle_events()
        if self.transport.get_protocol() is not self:  # this is a WebSocket now, which has a protocol of its own
            return self._timer.cancel()
        state = self.conn.their_state
        has_begun = state is h11.IDLE and self.conn.trailing_data[0]
        incomplete = "body" if state is h11.SEND_BODY else "headers" if has_begun else ""
        if incomplete != self._incomplete:
            self._incomplete, self._bytes = incomplete, 0
            self._timer.cancel()
            if incomplete:
                self._timer = self.loop.call_later(HEADER_SECONDS, self._on_timeout)

    @property
    def may_be_closed(self) -> bool:
        """Whether no authenticated request is being answered."""
        return self.cycle is None or self.cycle.response_complete or not self.cycle.scope.get(AUTHENTICATED)

    def _on_timeout(self) -> None:
        """Close the connection, unless the body arrives fast enough or reading it is paused."""
        in_time = self._incomplete == "body" and (self._bytes >= BODY_RATE * HEADER_SECONDS or self.flow.read_paused)
        if not in_time:
            return self.transport.abort()
        self._bytes = 0
        self._timer = self.loop.call_later(HEADER_SECONDS, self._on_timeout)


class RepeatedMessages(logging.Filter):
    """Passes at most one message of REPEATED every ten seconds, and all other messages."""

    last = -1e9

    def filter(self, record: logging.LogRecord) -> bool:
        if not any(text in record.getMessage() for text in REPEATED):
            return True
        passes, now = time.monotonic() - self.last > 10, time.monotonic()
        self.last = now if passes else self.last
        return passes
