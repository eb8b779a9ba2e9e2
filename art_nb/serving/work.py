"""A queue of episodes for workers, in one SQLite file that survives a kill.

An episode is open, leased or done. When a lease is neither renewed nor its episode finished before the deadline, it expires
and the episode is open again. The first result of an episode counts; later ones are ignored.
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

MAX_LEASED_BYTES = 8 * 2**20  # of the scenarios of one lease; at least one episode is leased
MAX_LEASES = 12  # of one episode; after the last expires, the episode fails, because it may be killing its workers
LEASES_EXPIRED = {"type": "art_nb.LeaseExpired", "message": f"all its {MAX_LEASES} leases expired", "traceback": ""}
SCHEMA = """
CREATE TABLE IF NOT EXISTS episodes (
    batch TEXT NOT NULL, place INTEGER NOT NULL, model TEXT NOT NULL, step INTEGER NOT NULL, task TEXT NOT NULL,
    leases INTEGER NOT NULL DEFAULT 0, lease TEXT, worker TEXT, deadline REAL, result TEXT,
    PRIMARY KEY (batch, place)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS scenarios (
    batch TEXT NOT NULL, number INTEGER NOT NULL, scenario TEXT NOT NULL, PRIMARY KEY (batch, number)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS open_episodes ON episodes (deadline) WHERE result IS NULL;
"""


class WorkQueue:
    """Batches of episodes in a file. Each method is one transaction; several threads and processes may use the file.

    clock: returns wall-clock seconds, so that deadlines stay valid across a restart.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._transaction() as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(SCHEMA)
            connection.execute("DELETE FROM episodes WHERE batch NOT IN (SELECT batch FROM scenarios)")  # of an older format

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield a new connection, whose first INSERT, UPDATE or DELETE begins a transaction that ends with the block."""
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level="IMMEDIATE")) as connection, connection:
            connection.row_factory = sqlite3.Row
            yield connection

    def add(self, batch: str, model: str, step: int, scenarios: list[Any], group_size: int, seed: int) -> None:
        """Add `group_size` episodes of each scenario, unless the batch exists. Deletes the model's batches of earlier steps.

        Each scenario (a JSON value) is stored once, not per episode. model: "project/name".
        """
        rows = [
            (batch, number * group_size + member, model, step, json.dumps([number, f"{seed} {step} {number} {member}"]))
            for number in range(len(scenarios))
            for member in range(group_size)
        ]
        stored = [(batch, number, json.dumps(scenario)) for number, scenario in enumerate(scenarios)]
        with self._transaction() as connection:
            connection.execute("DELETE FROM episodes WHERE model = ? AND step < ?", (model, step))
            connection.execute("DELETE FROM scenarios WHERE batch NOT IN (SELECT batch FROM episodes)")
            if not connection.execute("SELECT 1 FROM episodes WHERE batch = ?", (batch,)).fetchone():
                connection.executemany("INSERT INTO scenarios (batch, number, scenario) VALUES (?, ?, ?)", stored)
                connection.executemany("INSERT INTO episodes (batch, place, model, step, task) VALUES (?, ?, ?, ?, ?)", rows)

    def lease(self, worker: str, most: int, seconds: float) -> list[dict[str, Any]]:
        """Lease up to `most` episodes to a worker for `seconds`; fewer if their scenarios exceed MAX_LEASED_BYTES.

        Each has batch, place (index in the batch), model, step, task {"scenario", "seed"} and lease, the key of this call.
        Earlier steps come first, then the episodes leased least often, so that no episode uses up its leases early.
        """
        now, lease = self._clock(), secrets.token_hex(8)
        with self._transaction() as connection:
            connection.execute(
                "UPDATE episodes SET result = ?, lease = NULL WHERE result IS NULL AND leases >= ? AND deadline < ?",
                (json.dumps({"exception": LEASES_EXPIRED}), MAX_LEASES, now),
            )
            rows = connection.execute(
                "SELECT batch, place, model, step, task FROM episodes WHERE result IS NULL "
                "AND (deadline IS NULL OR deadline < ?) ORDER BY step, leases, batch, place LIMIT ?",
                (now, most),
            ).fetchall()
            leased: list[dict[str, Any]] = []
            size = 0
            for row in rows:
                number, seed = json.loads(row["task"])
                key = row["batch"], number
                text = connection.execute("SELECT scenario FROM scenarios WHERE batch = ? AND number = ?", key).fetchone()[0]
                size += len(text)
                if leased and size > MAX_LEASED_BYTES:
                    break
                leased.append({**row, "task": {"scenario": json.loads(text), "seed": seed}, "lease": lease})
            connection.executemany(
                "UPDATE episodes SET lease = ?, worker = ?, deadline = ?, leases = leases + 1 WHERE batch = ? AND place = ?",
                [(lease, worker, now + seconds, row["batch"], row["place"]) for row in leased],
            )
        return leased

    def renew(self, leases: list[str] | None, seconds: float) -> int:
        """Extend these leases (None: all) to `seconds` from now; return the number of episodes that they still hold."""
        held = "IS NOT NULL" if leases is None else f"IN ({', '.join('?' * len(leases))})"
        with self._transaction() as connection:
            return connection.execute(
                f"UPDATE episodes SET deadline = ? WHERE result IS NULL AND lease {held}",
                (self._clock() + seconds, *(leases or ())),
            ).rowcount

    def finish(self, batch: str, place: int, result: Any) -> bool | None:
        """Store the result of an episode unless it has one; return whether it was stored. None: there is no such episode."""
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
        """Return how many episodes of a batch, or of all batches, are open, leased and done."""
        where, values = ("WHERE batch = ?", (batch,)) if batch is not None else ("", ())
        now = self._clock()
        with self._transaction() as connection:
            row = connection.execute(
                "SELECT COUNT(*) FILTER (WHERE result IS NULL AND COALESCE(deadline, 0) < ?) AS open, "
                "COUNT(*) FILTER (WHERE result IS NULL AND deadline >= ?) AS leased, COUNT(result) AS done "
                f"FROM episodes {where}", (now, now, *values),
            ).fetchone()  # fmt: skip
        return dict(row)

    def results(self, batch: str) -> list[Any]:
        """Return the results of a batch in the order of its episodes, None for unfinished ones; [] for an unknown batch."""
        with self._transaction() as connection:
            rows = connection.execute("SELECT result FROM episodes WHERE batch = ? ORDER BY place", (batch,)).fetchall()
        return [None if result is None else json.loads(result) for (result,) in rows]

    def workers(self) -> dict[str, int]:
        """Return the number of leased episodes of each worker that has some."""
        query = "SELECT worker, COUNT(*) FROM episodes WHERE result IS NULL AND deadline >= ? GROUP BY worker"
        with self._transaction() as connection:
            return dict(connection.execute(query, (self._clock(),)))
