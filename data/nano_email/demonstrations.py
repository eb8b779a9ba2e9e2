"""Demonstrations of the email task for the nano base model: how to search, read and answer, by a mediocre player.

Its searches contain the question's keywords, or some of them. Their order fits the question somewhat more often than
not (`ordered`), or does not depend on it. It reads the listed mails, mostly from the top, and then gives up more often
than it answers. It answers one of the values in a mail, not always of the right kind. Each call is well formed, none is
skilled. The mailboxes are made like the course's, from other seeds, so no fact of the course's mailbox is shown.
"""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from data.demonstration import Demonstration, Recorder
from email_search.environment import I_DONT_KNOW, TOOLS, EmailSearch, Scenario, first_message
from email_search.mailbox import Mailbox, write_mailbox
from email_search.questions import read_question
from environments.email_search.maker.maker import make
from environments.email_search.maker.words import EVENTS, KINDS, PAPERS, PASSES, SERIES, TRIPS

PATIENCE = 7  # turns after which the player ends the search
NEWEST_SHARE = {"first": 0.35, "": 0.5, "final": 0.65}  # by the value asked for: how often the newest mails come first
TOPICS = EVENTS + PAPERS + PASSES + SERIES + TRIPS
Answer = tuple[str, str]  # kind and value


class DemonstrationsEmail:
    """Draw searches in `mailboxes` made-up mailboxes. ordered: see `mediocre_searcher`."""

    def __init__(self, rng: random.Random, mailboxes: int = 4, ordered: bool = False):
        self.rng, self.ordered = rng, ordered
        self.questions: list[tuple[Mailbox, Scenario]] = []
        for _ in range(mailboxes):
            mails, scenarios = make(rng.randrange(1, 2**31))  # seed 0 is the course's own
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                write_mailbox(Path(folder) / "mailbox", mails)
                mailbox = Mailbox(Path(folder) / "mailbox")  # stays open when its file is deleted; Windows keeps the file
            self.questions += [(mailbox, scenario) for scenario in scenarios]

    def __call__(self, turns: int = 0) -> Demonstration:
        """Return one search. turns: ignored; a search has as many as it takes."""
        search = EmailSearch(*self.rng.choice(self.questions))
        recorder = Recorder(first_message(search.scenario))

        def call(name: str, **arguments) -> str:
            observation = search.call(name, arguments)
            recorder.call(name, arguments, observation)
            return observation

        mediocre_searcher(self.rng, search.scenario, call, self.ordered)
        return recorder.demonstration(self.rng, TOOLS)


def mediocre_searcher(rng: random.Random, scenario: Scenario, call: Callable[..., str], ordered: bool = False) -> None:
    """Play a search until it is answered.

    call: (tool's name, **arguments) -> observation. ordered: every search has an order, drawn by NEWEST_SHARE, and four of
    five searches for a month have its dates. Otherwise half of the searches have an order, drawn regardless of the question,
    and half have dates; data/real_email was trained on these.
    """
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
            if rng.random() < 0.03:  # a wrong id, so that the observation of it is learned, too
                call("read_email", message_id=f"m{rng.randrange(1000, 8000)}")
                continue
            last = unread.pop(0) if rng.random() < 0.9 else unread.pop(rng.randrange(len(unread)))
            values = _values(call("read_email", message_id=last))
        else:
            unread = re.findall(r"^(m\d+) ", call("search_emails", **_query(rng, scenario, ordered)), re.MULTILINE)
            values = []


def _query(rng: random.Random, scenario: Scenario, ordered: bool) -> dict[str, str | int]:
    """Return the arguments of a search: words of the question, a sender or dates if it names them, and an order."""
    words = [word for word in re.findall(r"\w+", scenario.question) if word.lower() in scenario.about]
    words.sort(key=str.islower)  # a project before its topic
    if len(words) > 1:
        kept = rng.random()
        words = words if kept < 0.8 else words[:1] if kept < 0.9 else words[1:]
    if rng.random() < 0.06:  # a wrong word, so that an empty result is learned, too
        words = [*words[:-1], rng.choice(TOPICS)]
    query: dict[str, str | int] = {"keywords": " ".join(words)}
    if scenario.sender and rng.random() < 0.5:
        query["from_addr"] = " ".join(re.findall(r"[A-Z]\w+", scenario.question)[1:3])
    if scenario.after and rng.random() < (0.8 if ordered else 0.5):
        query |= {"sent_after": scenario.after, "sent_before": scenario.before}
    if ordered:
        query["sort"] = "newest" if rng.random() < NEWEST_SHARE[read_question(scenario.question).which] else "oldest"
    elif (order := rng.random()) < 0.5:
        query["sort"] = "newest" if order < 0.22 else "oldest" if order < 0.44 else "relevance"
    if rng.random() < 0.1:
        query["max_results"] = rng.choice((1, 2, 3, 5))
    return query


def _values(page: str) -> list[Answer]:
    """Return every value in the mail's text, of every kind, once."""
    body = page.partition("\n\n")[2]
    found = [(m.start(), (kind, m[0])) for kind, about in KINDS.items() for m in about.pattern.finditer(body)]
    return list(dict.fromkeys(value for _, value in sorted(found)))


def _pick(rng: random.Random, scenario: Scenario, values: list[Answer]) -> str:
    """Draw one of the values; those of the question's kind are three times as likely."""
    return rng.choices(values, [3 if kind == scenario.kind else 1 for kind, _ in values])[0][1]


def _sources(rng: random.Random, read: str, unread: list[str]) -> list[str]:
    """Return the mail that was read; sometimes with another one, sometimes none."""
    draw = rng.random()
    return [read] if draw < 0.7 or not unread else [read, unread[0]] if draw < 0.85 else []
