"""A monitor: hands what is logged to a service, from a thread of its own, and never makes training wait.

Knows how to wait, to try again, to give up and to say so once. Knows nothing about any service.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from art_nb.monitoring.entry import Entry


class Unavailable(Exception):
    """The service did not take it now: it is tried again."""


class Refused(Exception):
    """The service will take nothing, as with a wrong key: it is asked no more."""


class Monitor:
    """What all monitors share; a service's own has `send`.

    What is logged goes into a queue; a thread takes it from there to the service. If that is down, it is asked again after
    1, 2, 4, ... seconds, at most a minute; what does not fit into the queue meanwhile is not sent. What happened is said
    once, as a warning when next something is logged, and stands in `trouble`. All lies in the model's folder in any case.

    Args:
        patience: seconds that `close` waits for what is not sent yet. At the end of the program it is called.
        backlog: rows that the queue holds.

    sent, lost: rows that were and were not sent. trouble: what went wrong, None while nothing did.
    """

    service = ""  # its name, for what is said
    package = ""  # which must be installed; the extra of art-nb is called the same

    def __init__(self, *, patience: float = 10.0, backlog: int = 64):
        if find_spec(self.package) is None:
            raise ImportError(f"no package {self.package}: pip install 'art-nb[{self.package}]'")
        if patience < 0 or backlog < 1:
            raise ValueError(f"patience {patience}, backlog {backlog}: expected at least 0 seconds and at least 1 row")
        self.patience, self.backlog, self.sent, self.lost = patience, backlog, 0, 0
        self.trouble: str | None = None
        self._said = self._refused = False
        self._thread: threading.Thread | None = None  # with a queue and a sign to close of its own, as one may be stuck
        self._secrets: list[str] = []  # never in what is said

    def note(self, entry: Entry) -> None:
        """Send this, some time; returns at once."""
        self._say()
        if self._refused:
            self.lost += 1
            return
        if self._thread is None or not self._thread.is_alive():
            self._waiting: queue.Queue[Entry | None] = queue.Queue(self.backlog)  # None: that was all
            self._closing = threading.Event()
            work = (self._waiting, self._closing)
            self._thread = threading.Thread(target=self._work, args=work, name=f"{self.service} monitor", daemon=True)
            self._thread.start()
            self._close_at_exit()
        try:
            self._waiting.put_nowait(entry)
        except queue.Full:
            self.lost += 1
            self._note_trouble("it is slower than what is logged")

    def close(self) -> None:
        """Wait at most `patience` seconds for what is not sent yet, and let go of the service."""
        atexit.unregister(self.close)
        if self._thread is not None:
            until = time.monotonic() + self.patience
            self._closing.set()
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=self.patience)
            self._thread.join(max(0.0, until - time.monotonic()))
            if self._thread.is_alive():
                self._give_up()
            self._thread = None
        self._say()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, entry: Entry) -> None:
        """Give it to the service; of a service. Called from one thread alone.

        Raises: Unavailable, Refused; whatever else is raised, this is not tried again.
        """
        raise NotImplementedError

    def end(self, until: float) -> None:
        """Nothing more will come; of a service. until: `time.monotonic()` by which to be done."""

    def _work(self, waiting: queue.Queue[Entry | None], closing: threading.Event) -> None:
        while (entry := waiting.get()) is not None:
            self._deliver(entry, closing)
        try:
            self.end(time.monotonic() + self.patience)
        except Exception as error:
            self._note_trouble(error)

    def _deliver(self, entry: Entry, closing: threading.Event) -> None:
        for pause in pauses():
            if self._refused:
                break
            try:
                self.send(entry)
                self.sent += 1
                return
            except Unavailable as error:
                self._note_trouble(error)
                if closing.wait(pause):
                    break
            except Exception as error:
                self._refused = isinstance(error, Refused)
                self._note_trouble(error)
                break
        self.lost += 1

    def _give_up(self) -> None:
        """The thread is stuck in the service: it ends when that lets it go, and has nothing more to do."""
        self._note_trouble(f"it did not take everything in {self.patience:g} s")
        with contextlib.suppress(queue.Empty):
            while True:
                self.lost += self._waiting.get_nowait() is not None
        self._waiting.put(None)

    def _close_at_exit(self) -> None:
        """Before what was asked so earlier: a service's package may end its own part at exit, too."""
        atexit.unregister(self.close)
        atexit.register(self.close)

    def _note_trouble(self, what: Any) -> None:
        if self.trouble is None:
            text = f"{type(what).__name__}: {what}" if isinstance(what, Exception) else what
            for secret in self._secrets:
                text = text.replace(secret, "***")
            self.trouble = text

    def _say(self) -> None:
        if self.trouble is not None and not self._said:
            self._said = True
            rest = "Training goes on; rows and trajectories lie in the model's folder."
            warnings.warn(f"{self.service}: {self.trouble}. {rest}", stacklevel=4)


def pauses() -> Iterator[float]:
    """Seconds to wait before a service that was down is asked again: 1, 2, 4, ..., at most a minute."""
    pause = 1.0
    while True:
        yield pause
        pause = min(60.0, 2 * pause)
