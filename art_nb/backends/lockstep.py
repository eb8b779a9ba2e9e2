"""Lockstep sampling: requests from another process are batched as if their rollouts ran in the sampler's process.

The client sends the requests that its rollouts make between two forward passes as one exchange. The reply holds the answers
completed since the previous reply, normally those of one forward, in completion order. The sampler then waits up to
`patience` seconds for the client's next exchange, unless it has requests of another client, which must not wait for a slow
one. A single client that sends in time thus gets the same batches as in process, and identical rollouts, token for token.

Exchanges are numbered. One that is resent because its reply was lost gets the same reply, even if later ones have arrived.
One that overtakes its predecessor is rejected with status 425 (Too Early) and resent; one of an unknown session, with 410.

`RemoteBackend`, `art-nb worker` and `RayBackend` use `LockstepClient`; the server and Ray's samplers use
`LockstepSessions`. This module does not depend on the transport (HTTP or Ray) or on how a request is answered.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import httpx
import openai
from openai import NotGiven, Omit
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, Field

from art_nb.backends.connection import Gone, digest
from art_nb.backends.errors import StatusError, logged_error, status_of
from art_nb.inference.bounded import MAX_PROMPTS, BoundedDict
from art_nb.inference.chat import IGNORED, URL, RequestError
from art_nb.rollouts.gathering import Gathering, cancel, drain_event_loop, outermost

if TYPE_CHECKING:
    from art_nb.inference.decoder import Decoder

SESSION_TIMEOUT = 300.0  # seconds without an exchange after which a session is closed
MAX_SESSIONS = 256
ROUNDS_PER_FORWARD = 2  # rounds of the event loop within which all answers of one forward arrive


class SampleRequest(BaseModel):
    """One request for a chat completion. id: chosen by the client. gathering: its gather call's name; None: outside of any.

    min_occurrence: for `Sampler.create`: the number of earlier identical requests since the client last reset its counts.
    The client counts them, so that the count survives a restart of the server.
    """

    id: int
    gathering: str | None = None
    request: dict[str, Any]
    min_occurrence: int = Field(0, ge=0)


class Exchange(BaseModel):
    """The requests and cancellations that a client sends at once.

    number: 0, 1, 2, ... within the session. received: the replies to all exchanges below this number have arrived.
    cancelled: ids of requests to cancel. gatherings: the client's gather calls by name; True: a rollout of it is running.
    """

    number: int = Field(ge=0)
    received: int = Field(0, ge=0)
    requests: list[SampleRequest] = []
    cancelled: list[int] = []
    gatherings: dict[str, bool] = {}


class LockstepClient:
    """Samples from one model for the rollouts of one event loop.

    send: called with the session's key and an `Exchange` as a dict; returns the answers. It raises Gone when the other side
        does not know the session; the client then starts a new one and sends all unanswered requests again.
    """

    def __init__(self, send: Callable[[str, dict[str, Any]], Awaitable[list[dict]]]) -> None:
        self._send = send
        self._ids = count()
        self._open: dict[int, dict[str, Any]] = {}  # unanswered requests by id
        self._futures: dict[int, asyncio.Future[ChatCompletion]] = {}
        self._gatherings: WeakKeyDictionary[Gathering, str] = WeakKeyDictionary()
        self._occurrences = BoundedDict[str, int](MAX_PROMPTS)  # by digest; cleared when a gather call starts alone
        self.driver: asyncio.Task | None = None
        self._changed = asyncio.Event()
        self._start_session()

    def _start_session(self) -> None:
        self._key, self._number = secrets.token_hex(8), 0
        self._new: list[int] = list(self._open)
        self._cancelled: list[int] = []

    async def create(self, **parameters: Any) -> ChatCompletion:
        """Answer a chat request. Raises: RequestError if rejected, InternalServerError if it fails, others as `send`."""
        key, gathering = next(self._ids), outermost()
        request = {k: v for k, v in parameters.items() if k not in IGNORED and not isinstance(v, NotGiven | Omit)}
        if gathering is not None and gathering not in self._gatherings:
            if not any(other.in_flight for other in self._gatherings):
                self._occurrences.clear()
            self._gatherings[gathering] = secrets.token_hex(4)
        name = None if gathering is None else self._gatherings[gathering]
        earlier = self._occurrences.get(shown := digest(request), 0)
        self._open[key] = {"id": key, "gathering": name, "request": request, "min_occurrence": earlier}
        self._occurrences[shown] = earlier + 1
        self._futures[key] = future = asyncio.get_running_loop().create_future()
        self._notify_driver(self._new, key)
        try:
            return await future
        except asyncio.CancelledError:
            if self._open.pop(key, None):
                del self._futures[key]
                self._notify_driver(self._cancelled, key)
            raise

    def _notify_driver(self, pending: list[int], key: int) -> None:
        pending.append(key)
        self._changed.set()
        if self.driver is None or self.driver.done():
            self.driver = asyncio.create_task(self._drive())

    async def _drive(self) -> None:
        """Send exchanges, each after draining the event loop, until a last one has confirmed the answers to all requests."""
        sent: list[asyncio.Task[list[dict]]] = []
        try:
            while True:
                if not sent or self._changed.is_set():
                    await drain_event_loop()
                    self._changed.clear()
                    sent.append(asyncio.ensure_future(self._send(self._key, self._next_exchange(len(sent)))))
                changed = asyncio.create_task(self._changed.wait())
                await asyncio.wait({sent[0], changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if not sent[0].done():
                    continue
                try:
                    answers = sent.pop(0).result()
                except Gone:
                    await cancel(sent)
                    sent = []
                    self._start_session()
                    continue
                for answer in answers:
                    self._deliver(answer)
                if not (sent or answers or self._open or self._new or self._cancelled):
                    return
        except Exception as error:
            await cancel(sent)  # before the futures fail: a request made during this await starts no driver
            sent.clear()
            for future in self._futures.values():
                if not future.done():
                    future.set_exception(error)
            self._open.clear()
            self._futures.clear()
            self._start_session()
        finally:
            await cancel(sent)

    def _next_exchange(self, unanswered: int) -> dict[str, Any]:
        """Build an exchange from the pending requests and cancellations. unanswered: earlier exchanges without a reply."""
        exchange = {
            "number": self._number, "received": self._number - unanswered, "cancelled": self._cancelled,
            "requests": [self._open[key] for key in self._new if key in self._open],
            "gatherings": {name: gathering.in_flight > 0 for gathering, name in self._gatherings.items()},
        }  # fmt: skip
        self._number, self._new, self._cancelled = self._number + 1, [], []
        return exchange

    def _deliver(self, answer: dict[str, Any]) -> None:
        self._open.pop(answer["id"], None)
        future = self._futures.pop(answer["id"], None)
        if future is None or future.done():  # cancelled meanwhile
            return
        if "completion" in answer:
            future.set_result(ChatCompletion.model_validate(answer["completion"]))
        else:
            future.set_exception(_client_error(answer["status"], answer["error"]))


def _client_error(status: int, error: dict[str, Any]) -> Exception:
    """Return the exception for an error reply: RequestError below status 500, as in process, else InternalServerError."""
    if status < 500:
        return RequestError(error["message"])
    response = httpx.Response(status, request=httpx.Request("POST", URL))
    return openai.InternalServerError(error["message"], response=response, body=error)


@dataclass(eq=False)
class LockstepSession:
    """One client's requests to one model.

    answer: async function that returns the completion of a request. key: unique to the session. owner: the client's network.
    number: the latest exchange's number; reply: its reply; replies: by number, all that the client may request again.
    ready: answers not yet in a reply; running: the tasks of unanswered requests, by id.
    replied: whether the last reply had answers and no exchange has arrived since; slow: whether the sampler's patience has
    run out since that reply. waiting: number of exchanges that wait for their reply.
    """

    answer: Callable[..., Awaitable[Any]]
    key: str = ""
    owner: str = ""
    number: int = -1
    reply: asyncio.Future[list[dict]] | None = None
    replies: dict[int, asyncio.Future[list[dict]]] = field(default_factory=dict)
    ready: list[dict] = field(default_factory=list)
    running: dict[int, asyncio.Task] = field(default_factory=dict)
    gatherings: dict[str, Gathering] = field(default_factory=dict)
    exchanged: asyncio.Event = field(default_factory=asyncio.Event)
    replied: bool = False
    slow: bool = False
    waiting: int = 0
    last_exchange: float = field(default_factory=time.monotonic)

    async def exchange(self, exchange: Exchange) -> list[dict]:
        """Return the answers completed since the last reply; wait if there are none. May be cancelled and repeated.

        Returns [] if no request is open or the next exchange arrives first. Raises: StatusError 425 if its predecessor has
        not arrived, 409 if the client has confirmed its reply already or two open requests have the same id.
        """
        if exchange.number == self.number + 1:
            self._start(exchange)
        elif exchange.number not in self.replies:
            status = 425 if exchange.number > self.number else 409
            raise StatusError(status, f"this is exchange {exchange.number}, but {self.number + 1} is expected next")
        self.waiting += 1
        try:
            return await asyncio.shield(self.replies[exchange.number])
        finally:
            self.waiting -= 1
            self.last_exchange = time.monotonic()

    def _start(self, exchange: Exchange) -> None:
        if len({*self.running, *(each.id for each in exchange.requests)}) < len(self.running) + len(exchange.requests):
            raise StatusError(409, "two open requests have the same id: give each request a new one")
        if self.reply is not None and not self.reply.done():
            self.reply.set_result([])  # the client sent another exchange before this one was answered
        self.number, self.reply = exchange.number, asyncio.get_running_loop().create_future()
        self.replies = {number: reply for number, reply in self.replies.items() if number >= exchange.received}
        self.replies[self.number] = self.reply
        for key in exchange.cancelled:
            if task := self.running.get(key):
                task.cancel()
        self._mirror(exchange.gatherings)
        for request in exchange.requests:
            work = self._answer(request)
            gathering = self.gatherings.get(request.gathering or "")
            self.running[request.id] = task = gathering.spawn(work) if gathering else asyncio.create_task(work)
            task.add_done_callback(partial(self._finished, request.id))
        self.replied, self.slow = False, False
        self.exchanged.set()
        if self.ready or not self.running:
            self._reply()

    def _mirror(self, gatherings: dict[str, bool]) -> None:
        """Mirror the client's gather calls, because a sampler resets its counts when one starts (`GatherResetDetector`)."""
        for name, in_flight in gatherings.items():
            self.gatherings.setdefault(name, Gathering()).in_flight = int(in_flight)
        for name in self.gatherings.keys() - gatherings.keys():
            self.gatherings.pop(name).in_flight = 0

    async def _answer(self, request: SampleRequest) -> None:
        try:
            own = {"min_occurrence": request.min_occurrence, "client": self.key}
            completion = await self.answer(**{**request.request, **own})
            answer = {"id": request.id, "completion": completion.model_dump()}
        except Exception as error:
            answer = {"id": request.id, "status": status_of(error), **logged_error(error, "a request")}
        self.ready.append(answer)
        for _ in range(ROUNDS_PER_FORWARD):
            await asyncio.sleep(0)
        self._reply()

    def _finished(self, key: int, task: asyncio.Task) -> None:
        """Remove a request that was answered or cancelled. When none is left, reply even without answers."""
        del self.running[key]
        if not self.running:
            self._reply()

    def _reply(self) -> None:
        if self.reply is not None and not self.reply.done():
            self.reply.set_result(self.ready)
            self.ready, self.replied = [], bool(self.ready)
            self.exchanged.clear()

    def close(self) -> None:
        """Cancel all requests."""
        for task in self.running.values():
            task.cancel()
        self._mirror({})


class LockstepSessions:
    """All sessions, by key. patience: maximum number of seconds that a sampler waits for a client's next exchange."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._sessions: dict[str, LockstepSession] = {}

    def session(self, key: str, number: int, answer: Callable[..., Awaitable[Any]], owner: str = "") -> LockstepSession:
        """Close sessions that have timed out, then return the session `key`; exchange 0 creates it if it does not exist.

        Raises: StatusError 410 for a later exchange of an unknown session; 429 when MAX_SESSIONS exist, or half as many of
        one owner.
        """
        long_ago = time.monotonic() - SESSION_TIMEOUT
        for old, session in list(self._sessions.items()):
            if not session.waiting and session.last_exchange < long_ago:
                self._sessions.pop(old).close()
        if key not in self._sessions:
            if number != 0:
                raise StatusError(410, "unknown session: the server was restarted, or the session has timed out")
            if len(self._sessions) >= MAX_SESSIONS:
                raise StatusError(429, f"{MAX_SESSIONS} clients are sampling already: try again later")
            if owner and sum(each.owner == owner for each in self._sessions.values()) >= MAX_SESSIONS // 2:
                raise StatusError(429, f"{owner} has {MAX_SESSIONS // 2} open sessions: end some, or try again later")
            self._sessions[key] = LockstepSession(answer, key, owner)
        return self._sessions[key]

    def attach(self, decoder: Decoder) -> None:
        """Make a decoder whose requests all come from one client wait for that client before a forward (see `Decoder`).

        It waits if the last reply had answers, until the next exchange or another request arrives, up to `patience` seconds.
        """
        submitted = asyncio.Event()
        decoder.on_submit = submitted.set

        async def before_forward() -> None:
            await drain_event_loop()
            clients = {generation.client for generation in (*decoder.waiting, *decoder.active)}
            session = self._sessions.get(clients.pop() or "") if len(clients) == 1 else None
            if session is None or not session.replied or session.slow:
                return
            submitted.clear()
            waits = [asyncio.create_task(event.wait()) for event in (session.exchanged, submitted)]
            done, _ = await asyncio.wait(waits, timeout=self.patience, return_when=asyncio.FIRST_COMPLETED)
            for task in waits:
                task.cancel()
            session.slow = session.replied and not done
            await drain_event_loop()

        decoder.before_forward = before_forward
