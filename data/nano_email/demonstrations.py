"""What the nano base model is taught about the email task: how to search, read and answer, by a mediocre searcher.

Its searches hold the question's key words, or some of them, mostly in an order that doesn't fit the question. It reads the
list's mails, mostly from the top, and then gives up more often than it answers. It answers one of the values that it finds
in a mail, not always of the kind that was asked for. Each step is well formed, none is clever. It works in mailboxes of its
own, made like the course's from other seeds, so it shows no fact of the course's mailbox.
"""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from art_nb.tasks.email_search.environment import I_DONT_KNOW, TOOLS, EmailSearch, Scenario, first_message
from art_nb.tasks.email_search.mailbox import Mailbox, write_mailbox
from data.demonstration import Demonstration, Recorder
from data.mailbox.maker import make
from data.mailbox.words import EVENTS, KINDS, PAPERS, PASSES, SERIES, TRIPS

PATIENCE = 7  # turns after which it ends the search
TOPICS = EVENTS + PAPERS + PASSES + SERIES + TRIPS
Answer = tuple[str, str]  # kind and value


class DemonstrationsEmail:
    """Searches in `mailboxes` made-up mailboxes."""

    def __init__(self, rng: random.Random, mailboxes: int = 4):
        self.rng = rng
        self.asked: list[tuple[Mailbox, Scenario]] = []
        for _ in range(mailboxes):
            mails, scenarios = make(rng.randrange(1, 2**31))  # seed 0 is the course's own
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                write_mailbox(Path(folder) / "mailbox", mails)
                mailbox = Mailbox(Path(folder) / "mailbox")  # is read on when its file is gone; Windows keeps it
            self.asked += [(mailbox, scenario) for scenario in scenarios]

    def __call__(self, turns: int = 0) -> Demonstration:
        """One search, of as many turns as it takes."""
        search = EmailSearch(*self.rng.choice(self.asked))
        recorder = Recorder(first_message(search.scenario))

        def call(name: str, **arguments) -> str:
            said = search.call(name, arguments)
            recorder.call(name, arguments, said)
            return said

        mediocre_searcher(self.rng, search.scenario, call)
        return recorder.demonstration(self.rng, TOOLS)


def mediocre_searcher(rng: random.Random, scenario: Scenario, call: Callable[..., str]) -> None:
    """Makes its calls by `call(tool's name, **arguments)`, which returns what the tool says, until it has answered."""
    unread: list[str] = []
    values: list[Answer] = []
    last, turn = "", 0
    while True:
        turn += 1
        draw = rng.random()
        if values and (draw < 0.4 or turn >= PATIENCE):
            call("return_final_answer", answer=_pick(rng, scenario, values), sources=_sources(rng, last, unread))
            return
        if turn > 1 and (turn >= PATIENCE or draw > (0.5 if values else 0.85)):
            call("return_final_answer", answer=I_DONT_KNOW, sources=[])
            return
        if unread and draw < 0.8:
            if rng.random() < 0.03:  # misread: what the tool then says must have been seen, too
                call("read_email", message_id=f"m{rng.randrange(1000, 8000)}")
                continue
            last = unread.pop(0) if rng.random() < 0.9 else unread.pop(rng.randrange(len(unread)))
            values = _values(call("read_email", message_id=last))
        else:
            unread = re.findall(r"^(m\d+) ", call("search_emails", **_query(rng, scenario)), re.MULTILINE)
            values = []


def _query(rng: random.Random, scenario: Scenario) -> dict[str, str | int]:
    """The arguments of a search: words of the question, a sender or dates where it names them, and any order."""
    words = [word for word in re.findall(r"\w+", scenario.question) if word.lower() in scenario.about]
    words.sort(key=str.islower)  # a project before its topic
    if len(words) > 1:
        kept = rng.random()
        words = words if kept < 0.8 else words[:1] if kept < 0.9 else words[1:]
    if rng.random() < 0.06:  # misremembered: that nothing fits must have been seen, too
        words = [*words[:-1], rng.choice(TOPICS)]
    query: dict[str, str | int] = {"keywords": " ".join(words)}
    if scenario.sender and rng.random() < 0.5:
        query["from_addr"] = " ".join(re.findall(r"[A-Z]\w+", scenario.question)[1:3])
    if scenario.after and rng.random() < 0.5:
        query |= {"sent_after": scenario.after, "sent_before": scenario.before}
    if (order := rng.random()) < 0.5:
        query["sort"] = "newest" if order < 0.22 else "oldest" if order < 0.44 else "relevance"
    if rng.random() < 0.1:
        query["max_results"] = rng.choice((1, 2, 3, 5))
    return query


def _values(page: str) -> list[Answer]:
    """Every value that the mail's text holds, of each kind, once."""
    body = page.partition("\n\n")[2]
    found = [(m.start(), (kind, m[0])) for kind, about in KINDS.items() for m in about.pattern.finditer(body)]
    return list(dict.fromkeys(value for _, value in sorted(found)))


def _pick(rng: random.Random, scenario: Scenario, values: list[Answer]) -> str:
    """One of them; three times as likely one of the kind that the question is for."""
    return rng.choices(values, [3 if kind == scenario.kind else 1 for kind, _ in values])[0][1]


def _sources(rng: random.Random, read: str, unread: list[str]) -> list[str]:
    """The mail that was read, now and then with another or without any."""
    draw = rng.random()
    return [read] if draw < 0.7 or not unread else [read, unread[0]] if draw < 0.85 else []
