"""Many turns in one request: how a `RemoteBackend` samples as if the model were beside it.

All that a client's rollouts ask between two forwards comes in one exchange, and the next exchange asks for what happened:
its reply holds the answers that became ready in one forward, in their order. Until the client has spoken again the sampler
waits for it, a moment at most. So the sampler sees the same requests in the same batches as in process, and the rollouts
are the same, token for token.

An exchange has a number. One that is sent again, because its reply was lost, gets the same reply, also when further ones
have come since. One that has overtaken another is to come again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import BaseModel, Field

from art_nb.inference.settling import settle
from art_nb.rollouts.gathering import Gathering
from art_nb.server.errors import Refused, error_body, status_of

log = logging.getLogger("art_nb.server")
FORGOTTEN = 300.0  # seconds without a word after which a client is taken for dead
MOST_LINES = 256
TOGETHER = 2  # rounds of the event loop in which the answers of one forward arrive


class Ask(BaseModel):
    """One request for a chat completion: an id that the client chose, and the gathering that its rollout belongs to.

    asked_before: how often the client has asked the same in this gathering. It remembers that when the server was restarted.
    """

    id: int
    gathering: str | None = None
    request: dict[str, Any]
    asked_before: int = Field(0, ge=0)


class Exchange(BaseModel):
    """What a client says at once.

    number: 0, 1, 2, ... of this line; heard: the replies below this number have come; cancelled: ids that nobody waits for
    any more; gatherings: those of the client that are alive, and whether a rollout of theirs runs.
    """

    number: int = Field(ge=0)
    heard: int = Field(0, ge=0)
    asks: list[Ask] = []
    cancelled: list[int] = []
    gatherings: dict[str, bool] = {}


@dataclass(eq=False)
class Line:
    """One client's conversations with one model.

    answer: gives the completion of a request.
    number: of the last exchange; reply: what it gets; replies: by number, of all that may be asked for again.
    ready: answers that no reply holds yet; asked: what is not answered.
    answered: the client has got answers and not spoken since; slow: it let the sampler wait in vain.
    """

    answer: Callable[..., Awaitable[Any]]
    number: int = -1
    reply: asyncio.Future[list[dict]] | None = None
    replies: dict[int, asyncio.Future[list[dict]]] = field(default_factory=dict)
    ready: list[dict] = field(default_factory=list)
    asked: dict[int, asyncio.Task] = field(default_factory=dict)
    gatherings: dict[str, Gathering] = field(default_factory=dict)
    spoke: asyncio.Event = field(default_factory=asyncio.Event)
    answered: bool = False
    slow: bool = False
    heard_at: float = field(default_factory=time.monotonic)

    async def exchange(self, said: Exchange) -> list[dict]:
        """What became ready since the last exchange; waits for something. May be broken off and asked the same again.

        Raises: Refused when others come before it (425, too early) or it is over (409), or a request has the id of another.
        """
        self.heard_at = time.monotonic()
        if said.number == self.number + 1:
            self._begin(said)
        elif said.number not in self.replies:
            status = 425 if said.number > self.number else 409
            raise Refused(status, f"this is exchange {said.number}, and {self.number + 1} comes next")
        return await asyncio.shield(self.replies[said.number])

    def _begin(self, said: Exchange) -> None:
        if len({*self.asked, *(ask.id for ask in said.asks)}) < len(self.asked) + len(said.asks):
            raise Refused(409, "two requests have the same id")
        if self.reply is not None and not self.reply.done():
            self.reply.set_result([])  # the client has more to ask before that one was answered
        self.number, self.reply = said.number, asyncio.get_running_loop().create_future()
        self.replies = {number: reply for number, reply in self.replies.items() if number >= said.heard}
        self.replies[self.number] = self.reply
        for key in said.cancelled:
            if task := self.asked.get(key):
                task.cancel()
        self._follow(said.gatherings)
        for ask in said.asks:
            work = self._answer(ask)
            gathering = self.gatherings.get(ask.gathering or "")
            self.asked[ask.id] = task = gathering.spawn(work) if gathering else asyncio.create_task(work)
            task.add_done_callback(partial(self._over, ask.id))
        self.answered, self.slow = False, False
        self.spoke.set()
        if self.ready or not self.asked:
            self._speak()

    def _follow(self, gatherings: dict[str, bool]) -> None:
        """The client's gatherings have a counterpart each: the backend starts each of them from nothing remembered."""
        for name, in_flight in gatherings.items():
            if name not in self.gatherings:
                self.gatherings[name] = Gathering()
            self.gatherings[name].in_flight = int(in_flight)
        for name in self.gatherings.keys() - gatherings.keys():
            self.gatherings.pop(name).in_flight = 0

    async def _answer(self, ask: Ask) -> None:
        try:
            completion = await self.answer(**{**ask.request, "asked_before": ask.asked_before})
            answer = {"id": ask.id, "completion": completion.model_dump()}
        except Exception as error:
            answer = {"id": ask.id, "status": status_of(error), **error_body(error)}
            if answer["status"] >= 500:
                log.error("a request failed", exc_info=error)
        self.ready.append(answer)
        for _ in range(TOGETHER):
            await asyncio.sleep(0)
        self._speak()

    def _over(self, key: int, task: asyncio.Task) -> None:
        """An answer is ready, or was given up. With nothing left to wait for the client is told so."""
        del self.asked[key]
        if not self.asked:
            self._speak()

    def _speak(self) -> None:
        if self.reply is not None and not self.reply.done():
            self.reply.set_result(self.ready)
            self.ready, self.answered = [], bool(self.ready)
            self.spoke.clear()

    def close(self) -> None:
        for task in self.asked.values():
            task.cancel()
        self._follow({})


class Lines:
    """All lines, by the key that each client made for its own.

    patience: seconds that the sampler waits for a client that it has just answered.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._lines: dict[str, Line] = {}

    def line(self, key: str, number: int, answer: Callable[..., Awaitable[Any]]) -> Line:
        """The client's line; a new one for exchange 0. Raises: Refused when it is not known here, or there are too many."""
        self._hang_up()
        if key not in self._lines:
            if number != 0:
                raise Refused(410, "this line is not known here: the server was started anew, or heard nothing for too long")
            if len(self._lines) >= MOST_LINES:
                raise Refused(429, f"{MOST_LINES} clients are sampling already")
            self._lines[key] = Line(answer)
        return self._lines[key]

    def _hang_up(self) -> None:
        long_ago = time.monotonic() - FORGOTTEN
        for key in [key for key, line in self._lines.items() if line.heard_at < long_ago]:
            self._lines.pop(key).close()

    async def settle(self) -> None:
        """In the place of the sampler's own pause: clients elsewhere that were answered get to ask again as well."""
        await settle()
        waited_for = [line for line in self._lines.values() if line.answered and not line.slow]
        if not waited_for:
            return
        pauses = [asyncio.create_task(line.spoke.wait()) for line in waited_for]
        _, late = await asyncio.wait(pauses, timeout=self.patience)
        for task in late:
            task.cancel()
        for line in waited_for:
            line.slow = line.answered
        await settle()
