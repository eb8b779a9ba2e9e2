"""Proves scenarios sound from the finished mails alone: each answer is in its sources, and no other mail answers.

It knows nothing of how mails are made. A mail is about a question when it holds the question's key words and fits its
sender and dates. What a mail itself says ends where it begins to quote.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from art_nb.tasks.email_search.mailbox import Mail, snippet
from art_nb.tasks.email_search.scenarios import Scenario
from data.mailbox.words import KINDS

_QUOTE = re.compile(r"^(?:>|On .* wrote:$|-{5,} ?(?:Forwarded|Original) )", re.MULTILINE)


def problems(mails: Iterable[Mail], scenarios: Sequence[Scenario]) -> list[str]:
    """What is wrong with each scenario, and with the splits; empty when all is sound."""
    by_inbox: dict[str, list[Mail]] = defaultdict(list)
    for mail in mails:
        for inbox in mail.inboxes:
            by_inbox[inbox].append(mail)
    found = [f"{s.id}: {problem}" for s in scenarios for problem in problems_of(s, by_inbox[s.inbox])]
    return found + list(_shared(scenarios))


def problems_of(scenario: Scenario, inbox: Sequence[Mail]) -> Iterator[str]:
    """What is wrong with one scenario, given all mails of its inbox."""
    about = sorted((mail for mail in inbox if _is_about(mail, scenario)), key=lambda mail: mail.date)
    showing = {mail.message_id for mail in about if _holds(mail.body, scenario.answer)}
    if not scenario.sources:
        yield "it has no source"
    if missing := set(scenario.sources) - showing:
        yield f"its answer {scenario.answer!r} is not in its sources {sorted(missing)}"
    if others := showing - set(scenario.sources):
        yield f"its answer {scenario.answer!r} is also in {sorted(others)}"
    stated = [values for mail in about if (values := KINDS[scenario.kind].pattern.findall(own_text(mail.body)))]
    if not stated or set(stated[0 if scenario.which == "first" else -1]) != {scenario.answer}:
        yield f"the mails state {stated}, of which the {scenario.which} is not {scenario.answer!r}"
    for mail in about:
        if _holds(f"{mail.sender.name}\n{mail.date[:10]}\n{mail.subject}\n{snippet(mail.body)}", scenario.answer):
            yield f"its answer {scenario.answer!r} can be seen without reading {mail.message_id}"
    if _holds(scenario.question, scenario.answer):
        yield "the question holds its own answer"
    if unsaid := set(scenario.about) - _words(scenario.question):
        yield f"the question does not say {sorted(unsaid)}"


def own_text(body: str) -> str:
    """A mail's body up to where it quotes another."""
    return _QUOTE.split(body, maxsplit=1)[0]


def _is_about(mail: Mail, scenario: Scenario) -> bool:
    text = f"{mail.subject} {mail.body}".lower()
    return (
        all(word in text for word in scenario.about)  # saves time, for few mails pass
        and set(scenario.about) <= _words(text)
        and scenario.sender in ("", mail.sender.address)
        and scenario.after <= mail.date < (scenario.before or "~")
    )


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _holds(text: str, answer: str) -> bool:
    """Whether the answer stands in the text as whole words, however lines are broken."""
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", " ".join(text.replace("\n> ", " ").split())) is not None


def _shared(scenarios: Sequence[Scenario]) -> Iterator[str]:
    """Inboxes of two splits, and facts that are asked for twice."""
    splits: dict[str, set[str]] = defaultdict(set)
    facts: dict[tuple, set[str]] = defaultdict(set)
    for s in scenarios:
        splits[s.inbox].add(s.split)
        whose = s.inbox if s.sender else ""  # what somebody suggested is a fact about one inbox
        facts[(s.kind, s.about, s.sender, whose, s.after, s.which)].add(s.id)
    yield from (f"{inbox} is in the splits {sorted(found)}" for inbox, found in splits.items() if len(found) > 1)
    yield from (f"{sorted(found)} ask for the same fact" for found in facts.values() if len(found) > 1)
