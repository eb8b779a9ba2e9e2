"""A mail store: SQLite with a full-text index, written once, then read one inbox at a time.

It does not depend on agents or questions. Every method that reads emails takes an inbox, a person's address, and accesses
only the emails delivered to it. Values are always SQL parameters, so any text is safe in any argument.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from art_nb.environments import clean
from art_nb.storage.checkpoints import write_file, write_folder

DATA = Path(__file__).resolve().parent / "data"
SNIPPET_LENGTH = 40  # characters; an answer further on in an email is visible only by reading it

SCHEMA = """
CREATE TABLE addresses (
    id INTEGER PRIMARY KEY, address TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
    folded TEXT NOT NULL  -- "name address" casefolded, for filters
);
CREATE TABLE emails (
    id INTEGER PRIMARY KEY, message_id TEXT NOT NULL UNIQUE, in_reply_to TEXT NOT NULL, date TEXT NOT NULL,
    from_id INTEGER NOT NULL REFERENCES addresses, subject TEXT NOT NULL, body TEXT NOT NULL
);
CREATE TABLE recipients (
    address_id INTEGER NOT NULL REFERENCES addresses, email_id INTEGER NOT NULL REFERENCES emails,
    kind TEXT NOT NULL CHECK (kind IN ('to', 'cc', 'bcc')), position INTEGER NOT NULL,
    PRIMARY KEY (address_id, email_id, kind)
) WITHOUT ROWID;
CREATE TABLE attachments (
    email_id INTEGER NOT NULL REFERENCES emails, position INTEGER NOT NULL, filename TEXT NOT NULL,
    PRIMARY KEY (email_id, position)
) WITHOUT ROWID;
CREATE TABLE deliveries (  -- the mails of an inbox by date, so that its newest are found without sorting
    inbox_id INTEGER NOT NULL REFERENCES addresses, date TEXT NOT NULL, email_id INTEGER NOT NULL REFERENCES emails,
    PRIMARY KEY (inbox_id, date, email_id)
) WITHOUT ROWID;
CREATE VIRTUAL TABLE email_text USING fts5(subject, body, content='', tokenize='porter unicode61');
"""

INDEXES = """
CREATE INDEX emails_by_sender ON emails (from_id, date);
CREATE INDEX recipients_by_email ON recipients (email_id);
INSERT INTO email_text (email_text) VALUES ('optimize');
ANALYZE;
"""

_PEOPLE = "SELECT id FROM addresses WHERE instr(folded, {})"
_FILTERS = f"""
d.inbox_id = (SELECT id FROM addresses WHERE address = :inbox) AND d.date >= :after AND d.date < :before
AND (:sender = '' OR e.from_id IN ({_PEOPLE.format(":sender")}))
AND (:recipient = '' OR e.id IN (SELECT email_id FROM recipients WHERE address_id IN ({_PEOPLE.format(":recipient")})))
"""
_HIT = "e.message_id, e.date, a.name, a.address, e.subject, substr(e.body, 1, 400)"
_BY_WORDS = f"""
SELECT {_HIT} FROM email_text CROSS JOIN emails e ON e.id = email_text.rowid
CROSS JOIN deliveries d ON d.date = e.date AND d.email_id = e.id JOIN addresses a ON a.id = e.from_id
WHERE email_text MATCH :match AND {_FILTERS}
"""
_WITHOUT_WORDS = f"""
SELECT {_HIT} FROM deliveries d CROSS JOIN emails e ON e.id = d.email_id JOIN addresses a ON a.id = e.from_id
WHERE {_FILTERS}
"""
_ORDERS = {
    "relevance": "ORDER BY bm25(email_text, 2.0, 1.0), d.date DESC, d.email_id DESC LIMIT :limit",  # subjects count double
    "newest": "ORDER BY d.date DESC, d.email_id DESC LIMIT :limit",
    "oldest": "ORDER BY d.date, d.email_id LIMIT :limit",
}
SORTS = tuple(_ORDERS)


class Address(NamedTuple):
    name: str
    address: str

    def __str__(self) -> str:
        return f"{self.name} <{self.address}>" if self.name else self.address


@dataclass(frozen=True, slots=True)
class Mail:
    """One email.

    date: `YYYY-MM-DD HH:MM`, or empty if unknown. in_reply_to: a message id or empty. attachments: file names.
    inboxes: the addresses of the people who have it in their mailbox, including the sender.
    """

    message_id: str
    date: str
    sender: Address
    to: tuple[Address, ...]
    subject: str
    body: str
    cc: tuple[Address, ...] = ()
    bcc: tuple[Address, ...] = ()
    attachments: tuple[str, ...] = ()
    in_reply_to: str = ""
    inboxes: tuple[str, ...] = ()


class Hit(NamedTuple):
    """A search result. snippet: the beginning of the email, at most SNIPPET_LENGTH characters."""

    message_id: str
    date: str
    sender: Address
    subject: str
    snippet: str


def snippet(body: str) -> str:
    """Return the beginning of an email as a mail client lists it: whole words, at most SNIPPET_LENGTH characters."""
    text = " ".join(body[:400].split())
    if len(text) <= SNIPPET_LENGTH:
        return text
    return text[: text.rfind(" ", 0, SNIPPET_LENGTH + 1)] if " " in text[: SNIPPET_LENGTH + 1] else text[:SNIPPET_LENGTH]


class Mailbox:
    """The emails that `write_mailbox` wrote to `folder`, opened read-only; several threads may share it.

    Raises: FileNotFoundError if there is no mailbox.
    """

    def __init__(self, folder: Path):
        path = Path(folder) / "mail.sqlite"
        if not path.exists():
            raise FileNotFoundError(f"there is no mailbox in {folder}; make one with write_mailbox or import_mail")
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        self._database = sqlite3.connect(uri, uri=True, check_same_thread=False)

    def inboxes(self) -> list[str]:
        """Return the addresses of all inboxes, sorted."""
        rows = self._database.execute(
            "SELECT address FROM addresses a WHERE EXISTS (SELECT 1 FROM deliveries WHERE inbox_id = a.id) ORDER BY address"
        )
        return [address for (address,) in rows]

    def search(
        self,
        inbox: str,
        keywords: str = "",
        *,
        sender: str = "",
        recipient: str = "",
        after: str = "",
        before: str = "",
        sort: str = "relevance",
        limit: int = 10,
    ) -> list[Hit]:
        """Return the emails of an inbox that match all arguments, in the order of `sort`.

        Args:
            keywords: words that the subject or body must contain, all of them, in any grammatical form; no operators.
                Without keywords the sort `relevance` is `newest`.
            sender, recipient: part of a name or address, ignoring case; recipients are to, cc and bcc.
            after, before: `YYYY-MM-DD`; sent on or after the first and before the second day. No date counts as the oldest.
            sort: one of SORTS. limit: maximum number of hits.
        """
        match = fts_query(keywords)
        if keywords and not match:
            return []
        if not match and sort == "relevance":
            sort = "newest"
        values = {
            "inbox": clean(inbox).lower(), "match": match, "sender": clean(sender).strip().casefold(),
            "recipient": clean(recipient).strip().casefold(), "after": after, "before": before or "~", "limit": limit,
        }  # fmt: skip
        rows = self._database.execute((_BY_WORDS if match else _WITHOUT_WORDS) + _ORDERS[sort], values)
        return [Hit(id_, date, Address(name, addr), subj, snippet(text)) for id_, date, name, addr, subj, text in rows]

    def read(self, inbox: str, message_id: str) -> Mail | None:
        """Return the email with this id, or None if the inbox does not have it."""
        row = self._database.execute(
            "SELECT e.id, e.message_id, e.date, a.name, a.address, e.subject, e.body, e.in_reply_to "
            "FROM emails e JOIN addresses a ON a.id = e.from_id WHERE e.message_id = :id AND EXISTS "
            "(SELECT 1 FROM deliveries d JOIN addresses i ON i.id = d.inbox_id "
            " WHERE i.address = :inbox AND d.date = e.date AND d.email_id = e.id)",
            {"id": clean(message_id), "inbox": clean(inbox).lower()},
        ).fetchone()
        return self._mail(row) if row else None

    def mails(self, inbox: str) -> Iterator[Mail]:
        """Yield all emails of an inbox, oldest first."""
        rows = self._database.execute(
            "SELECT e.id, e.message_id, e.date, a.name, a.address, e.subject, e.body, e.in_reply_to "
            "FROM deliveries d JOIN emails e ON e.id = d.email_id JOIN addresses a ON a.id = e.from_id "
            "WHERE d.inbox_id = (SELECT id FROM addresses WHERE address = ?) ORDER BY d.date, d.email_id",
            (clean(inbox).lower(),),
        )
        return map(self._mail, rows)

    def _mail(self, row: tuple) -> Mail:
        key, message_id, date, name, address, subject, body, in_reply_to = row
        recipients: dict[str, list[Address]] = {"to": [], "cc": [], "bcc": []}
        for kind, *person in self._database.execute(
            "SELECT kind, name, address FROM recipients JOIN addresses ON id = address_id WHERE email_id = ? "
            "ORDER BY kind, position",
            (key,),
        ):
            recipients[kind].append(Address(*person))
        query = "SELECT filename FROM attachments WHERE email_id = ? ORDER BY position"
        attachments = tuple(filename for (filename,) in self._database.execute(query, (key,)))
        to, cc, bcc = map(tuple, recipients.values())
        return Mail(
            message_id, date, Address(name, address), to, subject, body, cc, bcc, attachments, in_reply_to,
        )  # fmt: skip


def fts_query(keywords: str) -> str:
    """Return the FTS5 query for emails with all words, each quoted so that none is an operator; empty without words."""
    terms = [term.replace('"', " ") for term in clean(keywords).split()]
    return " ".join(f'"{term}"' for term in terms if any(map(str.isalnum, term)))


def write_mailbox(folder: str | Path, mails: Iterable[Mail]) -> None:
    """Create or replace the mailbox in `folder`, whole or not at all.

    Raises: sqlite3.IntegrityError if two emails have the same message id.
    """

    def fill(new: Path) -> None:
        database = sqlite3.connect(new / "mail.sqlite", isolation_level=None)
        # No journal is needed: a killed writer leaves only an unfinished temporary folder.
        database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + SCHEMA)
        database.execute("BEGIN")
        ids: dict[str, int] = {}
        named: set[str] = set()  # addresses whose name is known; the first one seen is kept
        for key, mail in enumerate(mails, start=1):
            _insert(database, ids, named, key, mail)
        database.execute("COMMIT")
        database.executescript(INDEXES)
        database.close()

    write_folder(folder, fill)


def _insert(database: sqlite3.Connection, ids: dict[str, int], named: set[str], key: int, mail: Mail) -> None:
    def known(address: str, name: str = "") -> int:
        if address not in ids:
            ids[address] = len(ids) + 1
            database.execute("INSERT INTO addresses VALUES (?, ?, '', ?)", (ids[address], address, address.casefold()))
        if name and address not in named:
            named.add(address)
            folded = f"{name} {address}".casefold()
            database.execute("UPDATE addresses SET name = ?, folded = ? WHERE id = ?", (name, folded, ids[address]))
        return ids[address]

    sender = known(mail.sender.address, mail.sender.name)
    values = (key, mail.message_id, mail.in_reply_to, mail.date, sender, mail.subject, mail.body)
    database.execute("INSERT INTO emails VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    recipients = [
        (known(person.address, person.name), key, kind, position)
        for kind, people in (("to", mail.to), ("cc", mail.cc), ("bcc", mail.bcc))
        for position, person in enumerate(people)
    ]
    database.executemany("INSERT OR IGNORE INTO recipients VALUES (?, ?, ?, ?)", recipients)
    names = [(key, position, name) for position, name in enumerate(mail.attachments)]
    database.executemany("INSERT INTO attachments VALUES (?, ?, ?)", names)
    held = [(known(clean(address).lower()), mail.date, key) for address in mail.inboxes]
    database.executemany("INSERT OR IGNORE INTO deliveries VALUES (?, ?, ?)", held)
    database.execute("INSERT INTO email_text (rowid, subject, body) VALUES (?, ?, ?)", (key, mail.subject, mail.body))


def save_mails(path: Path, mails: Iterable[Mail]) -> None:
    """Write emails as gzipped JSON lines; equal emails make equal files."""
    lines = "".join(json.dumps(asdict(mail), ensure_ascii=False) + "\n" for mail in mails)
    write_file(path, gzip.compress(lines.encode(), mtime=0))


def load_mails(path: Path) -> Iterator[Mail]:
    """Yield the emails that `save_mails` wrote."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            people = {kind: tuple(Address(*person) for person in row[kind]) for kind in ("to", "cc", "bcc")}
            texts = {"attachments": tuple(row["attachments"]), "inboxes": tuple(row["inboxes"])}
            yield Mail(**row | people | texts | {"sender": Address(*row["sender"])})


@cache
def course_mailbox(data: Path = DATA) -> Mailbox:
    """Return the course's made-up mailbox. Its database is built from data/mails.jsonl.gz on first use (seconds).

    The database is in the user's cache folder, under a name that depends on the emails and the schema.
    """
    mails = data / "mails.jsonl.gz"
    digest = hashlib.sha256(mails.read_bytes() + SCHEMA.encode() + INDEXES.encode()).hexdigest()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "art_nb" / f"mailbox-{digest[:16]}"
    if not (folder / "mail.sqlite").exists():
        write_mailbox(folder, load_mails(mails))
    return Mailbox(folder)
