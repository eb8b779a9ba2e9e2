"""Import real mail: an .mbox file, a folder of .eml files, or the Enron emails and questions.

Your own mail stays on this machine: only `load_enron` uses the network, to download that data set. Real mail has broken
headers, unknown encodings and missing dates: text that cannot be decoded is replaced or left out. All your
own emails are imported, except duplicates.
"""

from __future__ import annotations

import mailbox as standard_mailbox
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from email import message_from_bytes
from email.errors import HeaderParseError
from email.header import Header, decode_header
from email.message import Message
from email.parser import BytesHeaderParser
from email.utils import getaddresses, parsedate_to_datetime
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path

from art_nb.environments import clean
from email_search.mailbox import Address, Mail, Mailbox, write_mailbox
from email_search.scenarios import Scenario

ENRON_MAILS = "corbt/enron-emails"
ENRON_QUESTIONS = "corbt/enron_emails_sample_questions"
# The ART-E example excludes emails beyond these limits; its questions assume this.
ENRON_MAX_BODY, ENRON_MAX_RECIPIENTS = 5000, 30

_ADDRESS = re.compile(r"[^\s<>,;:\"'()]+@[^\s<>,;:\"'()]+")
_BLOCKS = frozenset("article blockquote br dd div dl dt h1 h2 h3 h4 h5 h6 hr li ol p pre section table td th tr ul".split())
_HIDDEN = frozenset(("script", "style", "title", "template"))


def import_mail(source: Path, owner: str, folder: Path) -> Mailbox:
    """Write the emails of `source` into a mailbox in `folder`, as the inbox of `owner`, and open it.

    Args:
        source: an .mbox file, or a folder with .eml files at any depth.
        owner: your address.

    Raises: FileNotFoundError if `source` does not exist; ValueError if it contains no email.
    """
    mails = read_mails(source, owner)
    if (first := next(mails, None)) is None:
        raise ValueError(f"{source} contains no email: expected an .mbox file, or a folder with .eml files")
    write_mailbox(folder, chain([first], mails))
    return Mailbox(folder)


def read_mails(source: Path, owner: str) -> Iterator[Mail]:
    """Yield the emails of an .mbox file or of a folder of .eml files, all in the inbox of `owner`; see `import_mail`."""
    source = Path(source)
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist; it should be an .mbox file or a folder of .eml files")
    if source.is_dir():
        files = [path for path in source.rglob("*") if path.suffix.lower() == ".eml" and path.is_file()]
        letters: Iterator[bytes] = (path.read_bytes() for path in sorted(files))
    else:
        letters = _letters(source)
    return _with_own_ids(_read(letter, owner) for letter in letters)


def _letters(source: Path) -> Iterator[bytes]:
    with closing(standard_mailbox.mbox(source, create=False)) as box:
        for key in box.iterkeys():
            yield box.get_file(key).read()


def _read(letter: bytes, owner: str) -> Mail:
    try:
        return mail_of(message_from_bytes(letter), owner)
    except RecursionError:  # parts nested hundreds deep: keep only the headers
        return mail_of(BytesHeaderParser().parsebytes(letter), owner)


def mail_of(message: Message, owner: str) -> Mail:
    """Convert a parsed message (policy compat32, which never raises on a broken header)."""
    people = {kind: tuple(_addresses(message, kind)) for kind in ("to", "cc", "bcc")}
    sender = next(_addresses(message, "from"), Address("", "unknown"))
    names = (" ".join(_header(name).split()) for part in message.walk() if (name := _parameter(part.get_filename)))
    return Mail(
        _id(message["message-id"]), _date(message), sender, subject=" ".join(_header(message["subject"]).split()),
        body=_body(message), attachments=tuple(names), in_reply_to=_id(message["in-reply-to"]),
        inboxes=(owner.strip().lower(),), to=people["to"], cc=people["cc"], bcc=people["bcc"],
    )  # fmt: skip


def _with_own_ids(mails: Iterable[Mail]) -> Iterator[Mail]:
    """Yield the emails with unique ids: replace ids that are missing or taken, drop copies of an email with an id."""
    seen, taken = set(), set()
    for number, mail in enumerate(mails, start=1):
        if mail.message_id and hash(mail) in seen:
            continue
        seen.add(hash(mail))
        unique = mail.message_id or f"mail#{number}"
        while unique in taken:
            unique += f"#{number}"
        taken.add(unique)
        yield replace(mail, message_id=unique)


def _header(value: Header | str | None) -> str:
    """Return a header's text, with encoded words decoded as far as possible; empty for None."""
    if value is None:
        return ""
    try:
        parts = decode_header(value)
    except HeaderParseError:
        parts = [(str(value), None)]
    return clean("".join(part if isinstance(part, str) else _text(part, charset) for part, charset in parts))


def _text(data: bytes, charset: str | None) -> str:
    """Decode bytes with the declared charset, else UTF-8, else Windows-1252."""
    for name in (charset or "utf-8", "utf-8"):
        try:
            return data.decode(name)
        except (LookupError, ValueError):  # unknown charset, or invalid in it
            continue
    return data.decode("cp1252", "replace")


def _id(value: Header | str | None) -> str:
    return "".join(_header(value).split()).strip("<>")


def _addresses(message: Message, kind: str) -> Iterator[Address]:
    for value in message.get_all(kind, []):
        raw = _header(value) if isinstance(value, Header) else value  # a Header contains non-ASCII bytes
        found = [(name, address) for name, address in getaddresses([raw]) if _ADDRESS.fullmatch(address)]
        for name, address in found or [("", address) for address in _ADDRESS.findall(_header(value))]:
            yield Address(" ".join(_header(name).split()), clean(address).lower())


def _date(message: Message) -> str:
    """Return when the email was sent, in UTC; else when the last server received it; else empty."""
    received = str(message["received"] or "").rpartition(";")[2]
    for value in (str(message["date"] or ""), received):
        try:
            moment = parsedate_to_datetime(value)
            return (moment.astimezone(UTC) if moment.tzinfo else moment).isoformat(" ")[:16]
        except (ValueError, TypeError, OverflowError):  # not a date
            continue
    return ""


def _body(message: Message) -> str:
    """Return the text of all plain parts, or of the HTML parts if the plain parts have no text."""
    parts = [part for part in message.walk() if not part.is_multipart() and not _parameter(part.get_filename)]
    for kind in ("text/plain", "text/html"):
        texts = [_decoded(part) for part in parts if part.get_content_type() == kind]
        texts = [text_of_html(text) if kind == "text/html" else text for text in texts]
        if found := "\n\n".join(text.strip() for text in texts if text.strip()):
            return clean(found.replace("\r\n", "\n"))
    return ""


def _parameter(read: Callable[[], str | None]) -> str | None:
    """Return a parameter of a part; None where its encoding is broken (RFC 2231)."""
    try:
        return read()
    except ValueError:  # UnicodeError is one
        return None


def _decoded(part: Message) -> str:
    payload = part.get_payload(decode=True)
    return _text(payload if isinstance(payload, bytes) else b"", _parameter(part.get_content_charset))


class _VisibleText(HTMLParser):
    """Collect the visible text of a page."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.hidden: str | None = None

    def handle_starttag(self, tag, attrs):
        if tag in _BLOCKS:
            self.found.append("\n")
        if tag in _HIDDEN:
            self.hidden = self.hidden or tag

    def handle_endtag(self, tag):
        if tag in _BLOCKS:
            self.found.append("\n")
        if tag == self.hidden:
            self.hidden = None

    def handle_data(self, data):
        if not self.hidden:
            self.found.append(re.sub(r"\s+", " ", data))


def text_of_html(html: str) -> str:
    """Return the visible text of a page, one line per block, without scripts and styles."""
    parser = _VisibleText()
    parser.feed(html.replace("<![", "<! ["))  # HTMLParser fails on unknown marked sections
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.found).split("\n"))
    return "\n".join(line for line in lines if line)


def load_enron(
    folder: Path, mails: str | Iterable[dict] = ENRON_MAILS, questions: str | Iterable[dict] = ENRON_QUESTIONS
) -> tuple[Mailbox, list[Scenario]]:
    """Write the Enron emails into a mailbox in `folder`. Returns it with the questions about them.

    mails, questions: names of data sets on the Hugging Face hub, which are downloaded, or rows in their format.
    """
    write_mailbox(folder, enron_mails(_rows(mails, ["train"])))
    return Mailbox(folder), [enron_scenario(row) for row in _rows(questions, ["train", "test"])]


def _rows(source: str | Iterable[dict], splits: list[str]) -> Iterator[dict]:
    if not isinstance(source, str):
        yield from source
        return
    from datasets import load_dataset

    for split in splits:
        yield from ({"split": split, **row} for row in load_dataset(source, split=split))


def enron_mails(rows: Iterable[dict]) -> Iterator[Mail]:
    """Convert rows with message_id, subject, from, to, cc, bcc (lists), date and body to emails.

    An email is in the inboxes of its sender and recipients. Very long emails, emails to many recipients and duplicates are
    excluded.
    """
    seen = set()
    for row in rows:
        people = {kind: tuple(Address("", a.lower()) for a in row[kind] or () if a) for kind in ("to", "cc", "bcc")}
        sender, subject, body = (row["from"] or "").lower(), row["subject"] or "", row["body"] or ""
        copy = (subject, body, sender)
        if len(body) > ENRON_MAX_BODY or sum(map(len, people.values())) > ENRON_MAX_RECIPIENTS or copy in seen:
            continue
        seen.add(copy)
        addresses = [sender, *(person.address for kind in people.values() for person in kind)]
        yield Mail(
            row["message_id"], _enron_date(row["date"]), Address("", sender), subject=clean(subject), body=clean(body),
            inboxes=tuple(dict.fromkeys(filter(None, addresses))), to=people["to"], cc=people["cc"], bcc=people["bcc"],
        )  # fmt: skip


def _enron_date(value: datetime | str | None) -> str:
    return value.isoformat(" ")[:16] if isinstance(value, datetime) else str(value or "").replace("T", " ")[:16]


def enron_scenario(row: dict) -> Scenario:
    """Convert a row with id, question, answer, message_ids, inbox_address, query_date, and split (by default "train")."""
    return Scenario(
        f"enron-{row['id']}", row.get("split", "train"), row["question"], row["answer"], tuple(row["message_ids"]),
        row["inbox_address"].lower(), str(row["query_date"])[:10],
    )  # fmt: skip
