"""Many turns in one request: sampling on a server as if it were done here. The other end is `server/lines.py`."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import Counter
from itertools import count
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import httpx
import openai
from openai import NotGiven, Omit
from openai.types.chat import ChatCompletion

from art_nb.inference.chat import IGNORED, URL, RequestError
from art_nb.inference.settling import settle
from art_nb.remote.connection import Gone, encoded
from art_nb.rollouts.gathering import Gathering, cancel, outermost


class Asks(Protocol):
    """A `Connection`, or what stands in its place."""

    async def ask(self, method: str, path: str, body: Any) -> Any: ...


class Line:
    """The conversations of this process, in one event loop, with one model of a server.

    path: of the model on the server.
    """

    def __init__(self, connection: Asks, path: str) -> None:
        self._connection, self._path = connection, path
        self._ids = count()
        self._asks: dict[int, dict[str, Any]] = {}  # not answered yet, by id
        self._futures: dict[int, asyncio.Future[ChatCompletion]] = {}
        self._gatherings: WeakKeyDictionary[Gathering, str] = WeakKeyDictionary()
        self._asked: Counter[bytes] = Counter()  # how often what was asked since a gathering began alone, by digest
        self._driver: asyncio.Task | None = None
        self._news = asyncio.Event()
        self._begin()

    def _begin(self) -> None:
        """A line that the server has not heard of. Everything that is not answered is asked."""
        self._key, self._number = secrets.token_hex(8), 0
        self._new: list[int] = list(self._asks)
        self._cancelled: list[int] = []

    async def create(self, **parameters: Any) -> ChatCompletion:
        """Answer a request of OpenAI's chat completions.

        Raises: RequestError where the server refuses it; as `Connection.ask` where the server is not there.
        """
        key, gathering, request = next(self._ids), outermost(), _plain(parameters)
        if gathering is not None and gathering not in self._gatherings:
            if not any(other.in_flight for other in self._gatherings):
                self._asked.clear()
            self._gatherings[gathering] = secrets.token_hex(4)
        name = None if gathering is None else self._gatherings[gathering]
        digest = hashlib.blake2b(encoded(request), digest_size=12).digest()
        self._asks[key] = {"id": key, "gathering": name, "request": request, "asked_before": self._asked[digest]}
        self._asked[digest] += 1
        self._futures[key] = future = asyncio.get_running_loop().create_future()
        self._tell(self._new, key)
        try:
            return await future
        except asyncio.CancelledError:
            if self._asks.pop(key, None):
                del self._futures[key]
                self._tell(self._cancelled, key)
            raise

    def _tell(self, what: list[int], key: int) -> None:
        what.append(key)
        self._news.set()
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())

    async def _drive(self) -> None:
        """Exchange with the server until nothing is open. Before each exchange every coroutine that can run, runs."""
        sent: list[asyncio.Task[list[dict]]] = []
        try:
            while True:
                if not sent or self._news.is_set():
                    await settle()
                    self._news.clear()
                    sent.append(asyncio.create_task(self._exchange(self._said(len(sent)))))
                news = asyncio.create_task(self._news.wait())
                await asyncio.wait({sent[0], news}, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if not sent[0].done():
                    continue
                try:
                    answers = sent.pop(0).result()
                except Gone:
                    await cancel(sent)
                    sent = []
                    self._begin()
                    continue
                for answer in answers:
                    self._deliver(answer)
                if not (sent or answers or self._asks or self._new or self._cancelled):
                    return
        except Exception as error:
            for future in self._futures.values():
                if not future.done():
                    future.set_exception(error)
            self._asks.clear()
            self._futures.clear()
            self._begin()
        finally:
            await cancel(sent)

    def _said(self, unheard: int) -> dict[str, Any]:
        """The next exchange, while the replies to so many have not come."""
        asks = [self._asks[key] for key in self._new if key in self._asks]
        gatherings = {name: gathering.in_flight > 0 for gathering, name in self._gatherings.items()}
        said = {
            "number": self._number, "heard": self._number - unheard, "asks": asks, "cancelled": self._cancelled,
            "gatherings": gatherings,
        }  # fmt: skip
        self._number, self._new, self._cancelled = self._number + 1, [], []
        return said

    async def _exchange(self, said: dict[str, Any]) -> list[dict]:
        path = f"{self._path}/lines/{self._key}"
        while (answers := (await self._connection.ask("POST", path, said))["answers"]) is None:
            pass
        return answers

    def _deliver(self, answer: dict[str, Any]) -> None:
        self._asks.pop(answer["id"], None)
        future = self._futures.pop(answer["id"], None)
        if future is None or future.done():  # nobody waits for it any more
            return
        if "completion" in answer:
            future.set_result(ChatCompletion.model_validate(answer["completion"]))
        else:
            future.set_exception(_error(answer["status"], answer))


def _plain(parameters: dict[str, Any]) -> dict[str, Any]:
    """What of a request is for the server."""
    given = {k: v for k, v in parameters.items() if k not in IGNORED and not isinstance(v, NotGiven | Omit)}
    return given | {"messages": list(given["messages"])}


def _error(status: int, body: dict[str, Any]) -> Exception:
    """As the client of a server raises it; what the request is to blame for, as in process."""
    message = body["error"]["message"]
    if status < 500:
        return RequestError(message)
    response = httpx.Response(status, request=httpx.Request("POST", URL))
    return openai.InternalServerError(message, response=response, body=body["error"])
