"""`Monitor`: send log entries to a service from a background thread, so that training never waits for it."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from openai.types.chat.chat_completion import Choice

from art_nb.trajectories import TrajectoryGroup
from art_nb.trajectories.records import histories

RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)  # seconds before each retry; the last repeats


@dataclass(frozen=True)
class LogEntry:
    """A row of metrics and its trajectories.

    project, model, entity, run: names; entity and run may be None. folder: of the model's files.
    row: its metrics as passed to `RunLog.append_row`: without step, split and time, and not yet converted to JSON.
    trajectories: records (`trajectories.records`) with further keys: "started", seconds since 1970; in each sampled turn
        "model", the policy's name or None, and "usage", numbers of tokens: {"input": int, "output": int}, where known.
    checkpoint: the folder of the step's checkpoint, if it is on this machine.
    """

    project: str
    model: str
    entity: str | None
    run: str | None
    folder: Path
    split: str
    step: int
    row: dict[str, Any]
    trajectories: list[dict[str, Any]]
    checkpoint: Path | None = None


def snapshots(groups: Iterable[TrajectoryGroup], split: str, step: int) -> list[dict[str, Any]]:
    """Return records of all trajectories for `LogEntry`. Later changes to a trajectory do not affect them."""
    found = []
    for g, group in enumerate(groups):
        for i, trajectory in enumerate(group):
            record = trajectory.record(step=step, split=split, group=g, index=i)
            turns = [turn for history in histories(record) for turn in history]
            items = [item for history in trajectory.histories() for item in history.messages_and_choices]
            for turn, item in zip(turns, items, strict=True):
                if isinstance(item, Choice):
                    turn |= {"model": getattr(item, "policy", None), "usage": _usage(item)}
            found.append(record | {"started": trajectory.start_time.timestamp()})
    return found


def _usage(choice: Choice) -> dict[str, int]:
    content = choice.logprobs.content if choice.logprobs else None
    tokens = {"input": getattr(choice, "prompt_token_ids", None), "output": getattr(choice, "token_ids", None) or content}
    return {name: len(each) for name, each in tokens.items() if each}


class ServiceUnavailable(Exception):
    """The service cannot take an entry now; sending is retried."""


class ServiceRejected(Exception):
    """The service rejects all entries, for example because of a wrong key; sending stops."""


class Monitor(contextlib.AbstractContextManager):
    """Base class of monitors; subclasses implement `send`.

    A thread sends entries from a queue. While the service is unavailable, an entry is retried after 1, 2, 4, ... seconds
    (RETRY_DELAYS); entries that do not fit into the queue are dropped. Only the first problem is shown, as a warning.

    patience: seconds that `close`, which is called at exit, waits for unsent entries. backlog: size of the queue in entries.
    sent, lost: numbers of entries sent and dropped. trouble: the first problem, or None.
    """

    service = ""  # name for messages
    package = ""  # the required package, if any; also the name of art-nb's extra

    def __init__(self, *, patience: float = 10.0, backlog: int = 64):
        if self.package and find_spec(self.package) is None:
            raise ImportError(f"the package {self.package} is missing: pip install 'art-nb[{self.package}]'")
        if patience < 0 or backlog < 1:
            wanted = "patience >= 0 (seconds) and backlog >= 1 (entries)"
            raise ValueError(f"patience is {patience}, backlog is {backlog}: expected {wanted}")
        self.patience, self.backlog, self.sent, self.lost = patience, backlog, 0, 0
        self.trouble: str | None = None
        self._warned = self._rejected = False
        self._thread: threading.Thread | None = None  # each thread has its own queue and event: an old thread may be stuck
        self.secrets: list[str] = []  # replaced by *** in messages

    def submit(self, entry: LogEntry) -> None:
        """Queue an entry for sending; return at once."""
        self._warn_once()
        if self._thread is None or not self._thread.is_alive():
            self._waiting: queue.Queue[LogEntry | None] = queue.Queue(self.backlog)  # None marks the end
            self._closing = threading.Event()
            work = (self._waiting, self._closing)
            self._thread = threading.Thread(target=self._work, args=work, name=f"{self.service} monitor", daemon=True)
            self._thread.start()
            self.close_at_exit()
        try:
            self._waiting.put_nowait(entry)
        except queue.Full:
            self.lost += 1
            self.report_trouble(f"sending is slower than logging: the queue of {self.backlog} entries is full")

    def close(self) -> None:
        """Wait at most `patience` seconds for unsent entries, then disconnect."""
        atexit.unregister(self.close)
        if self._thread is not None:
            deadline = time.monotonic() + self.patience
            self._closing.set()
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=self.patience)
            self._thread.join(max(0.0, deadline - time.monotonic()))
            if self._thread.is_alive():  # stuck in `send`: an empty queue lets the thread end when `send` returns
                self.report_trouble(f"not all entries were sent within {self.patience:g} s: raise `patience`")
                with contextlib.suppress(queue.Empty):
                    while True:
                        self.lost += self._waiting.get_nowait() is not None
                self._waiting.put(None)
            self._thread = None
        self._warn_once()

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, entry: LogEntry) -> None:
        """Send one entry; implemented by subclasses, called from one thread only.

        Raises: ServiceUnavailable, ServiceRejected; after any other exception the entry is dropped.
        """
        raise NotImplementedError

    def end(self) -> None:
        """Disconnect after the last entry; for subclasses."""

    def _work(self, waiting: queue.Queue[LogEntry | None], closing: threading.Event) -> None:
        while (entry := waiting.get()) is not None:
            self._deliver(entry, closing)
        try:
            self.end()
        except Exception as error:
            self.report_trouble(error)

    def _deliver(self, entry: LogEntry, closing: threading.Event) -> None:
        delays = chain(RETRY_DELAYS, repeat(RETRY_DELAYS[-1]))
        while not self._rejected:
            try:
                self.send(entry)
                self.sent += 1
                return
            except ServiceUnavailable as error:
                self.report_trouble(error)
                if closing.wait(next(delays)):
                    break
            except Exception as error:
                self._rejected = isinstance(error, ServiceRejected)
                self.report_trouble(error)
                break
        self.lost += 1

    def close_at_exit(self) -> None:
        """Register `close` again: exit handlers run last in, first out, and the service's package may register its own."""
        atexit.unregister(self.close)
        atexit.register(self.close)

    def report_trouble(self, what: Any) -> None:
        if self.trouble is None:
            text = f"{type(what).__name__}: {what}" if isinstance(what, Exception) else what
            for secret in self.secrets:
                text = text.replace(secret, "***")
            self.trouble = text

    def _warn_once(self) -> None:
        if self.trouble is not None and not self._warned:
            self._warned = True
            rest = "Training goes on; the model's folder contains all rows and trajectories."
            warnings.warn(f"{self.service}: {self.trouble}. {rest}", stacklevel=4)
