"""Episodes for workers elsewhere: leased with a deadline, counted once, kept in one SQLite file that survives a kill.

Knows JSON and clocks. Knows nothing about HTTP or what an episode is.

An episode is open, leased, or done. A lease that is neither renewed nor ended before its deadline is over, and the next
worker that asks gets the episode. The first result counts; a later one of the same episode changes nothing.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

MOST_LEASES = 12  # of one episode: what has ended its worker so often is given up
GIVEN_UP = {"type": "art_nb.LeaseExpired", "message": f"{MOST_LEASES} workers took it and none came back", "traceback": ""}
SCHEMA = """
CREATE TABLE IF NOT EXISTS episodes (
    batch TEXT NOT NULL, place INTEGER NOT NULL, model TEXT NOT NULL, step INTEGER NOT NULL, task TEXT NOT NULL,
    leases INTEGER NOT NULL DEFAULT 0, lease TEXT, worker TEXT, deadline REAL, result TEXT,
    PRIMARY KEY (batch, place)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS open_episodes ON episodes (deadline) WHERE result IS NULL;
"""


class WorkQueue:
    """Batches of episodes in a file. Every call is one transaction; several threads and processes may call.

    clock: gives seconds, those of the wall, so that a deadline outlives a restart.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(self._connection()) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(SCHEMA)

    def _connection(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30, isolation_level=None)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(self._connection()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise

    def add(self, batch: str, model: str, step: int, tasks: list[Any]) -> None:
        """Add a batch, once. Older batches of the model, for steps before this one, go."""
        rows = [(batch, place, model, step, json.dumps(task)) for place, task in enumerate(tasks)]
        with self._transaction() as connection:
            connection.execute("DELETE FROM episodes WHERE model = ? AND step < ?", (model, step))
            connection.executemany(
                "INSERT OR IGNORE INTO episodes (batch, place, model, step, task) VALUES (?, ?, ?, ?, ?)", rows
            )

    def lease(self, worker: str, most: int, seconds: float) -> list[dict[str, Any]]:
        """Up to `most` episodes for a worker: batch, place, model, step, task, lease.

        The oldest step first, and of it what was leased least: so a few episodes do not bear all that happens to workers.
        """
        now, lease = self._clock(), secrets.token_hex(8)
        with self._transaction() as connection:
            connection.execute(
                "UPDATE episodes SET result = ?, lease = NULL WHERE result IS NULL AND leases >= ? AND deadline < ?",
                (json.dumps({"exception": GIVEN_UP}), MOST_LEASES, now),
            )
            rows = connection.execute(
                "SELECT batch, place, model, step, task FROM episodes WHERE result IS NULL "
                "AND (deadline IS NULL OR deadline < ?) ORDER BY step, leases, batch, place LIMIT ?",
                (now, most),
            ).fetchall()
            connection.executemany(
                "UPDATE episodes SET lease = ?, worker = ?, deadline = ?, leases = leases + 1 WHERE batch = ? AND place = ?",
                [(lease, worker, now + seconds, batch, place) for batch, place, *_ in rows],
            )
        names = ("batch", "place", "model", "step")
        return [{**dict(zip(names, row, strict=False)), "task": json.loads(row[4]), "lease": lease} for row in rows]

    def renew(self, leases: list[str], seconds: float) -> int:
        """Move the deadline of what these leases still hold; how many episodes that is."""
        places = ", ".join("?" * len(leases))
        with self._transaction() as connection:
            done = connection.execute(
                f"UPDATE episodes SET deadline = ? WHERE result IS NULL AND lease IN ({places})",
                (self._clock() + seconds, *leases),
            )
            return done.rowcount

    def resume(self, seconds: float) -> None:
        """Whoever holds a lease has these seconds to say so: while no server ran, nobody could. Called when one starts.

        Without it a server that is killed often would use up the leases of episodes whose workers are alive.
        """
        with self._transaction() as connection:
            connection.execute(
                "UPDATE episodes SET deadline = ? WHERE result IS NULL AND lease IS NOT NULL", (self._clock() + seconds,)
            )

    def finish(self, batch: str, place: int, result: Any) -> bool | None:
        """Keep the result of an episode; whether it is the first. None: there is no such episode (any more).

        A result of a lease that is over counts as well, if it is the first.
        """
        with self._transaction() as connection:
            done = connection.execute(
                "UPDATE episodes SET result = ?, lease = NULL WHERE batch = ? AND place = ? AND result IS NULL",
                (json.dumps(result), batch, place),
            )
            if done.rowcount:
                return True
            known = connection.execute("SELECT 1 FROM episodes WHERE batch = ? AND place = ?", (batch, place)).fetchone()
            return False if known else None

    def counts(self, batch: str | None = None) -> dict[str, int]:
        """How many episodes of a batch, or of all, are open, leased and done."""
        where, values = ("WHERE batch = ?", (batch,)) if batch is not None else ("", ())
        with closing(self._connection()) as connection:
            row = connection.execute(
                "SELECT COUNT(*), COUNT(result), SUM(result IS NULL AND COALESCE(deadline, 0) >= ?) "
                f"FROM episodes {where}", (self._clock(), *values),
            ).fetchone()  # fmt: skip
        everything, done, leased = row[0], row[1], row[2] or 0
        return {"open": everything - done - leased, "leased": leased, "done": done}

    def results(self, batch: str) -> list[Any]:
        """The results of a batch so far, in the order of its tasks; None for what is not done."""
        with closing(self._connection()) as connection:
            rows = connection.execute("SELECT result FROM episodes WHERE batch = ? ORDER BY place", (batch,)).fetchall()
        return [None if result is None else json.loads(result) for (result,) in rows]

    def workers(self) -> dict[str, int]:
        """Of each worker that holds a lease, how many episodes."""
        with closing(self._connection()) as connection:
            return dict(
                connection.execute(
                    "SELECT worker, COUNT(*) FROM episodes WHERE result IS NULL AND deadline >= ? GROUP BY worker",
                    (self._clock(),),
                )
            )
