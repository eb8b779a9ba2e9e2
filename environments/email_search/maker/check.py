"""Check scenarios against the finished emails: each answer is in its sources, and in no other email about the question.

It shares only the patterns of values (`words.KINDS`) with the maker. An email is about a question if it contains the
question's keywords and matches its sender and dates. An email's own text ends where it begins to quote.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from email_search.mailbox import Mail, snippet
from email_search.scenarios import Scenario
from environments.email_search.maker.words import KINDS

_QUOTE = re.compile(r"^(?:>|On .* wrote:$|-{5,} ?(?:Forwarded|Original) )", re.MULTILINE)


def problems(mails: Iterable[Mail], scenarios: Sequence[Scenario]) -> list[str]:
    """Return the faults of the scenarios and their splits; empty if all are sound."""
    by_inbox: dict[str, list[Mail]] = defaultdict(list)
    for mail in mails:
        for inbox in mail.inboxes:
            by_inbox[inbox].append(mail)
    found = [f"{s.id}: {problem}" for s in scenarios for problem in problems_of(s, by_inbox[s.inbox])]
    return found + list(_shared(scenarios))


def problems_of(scenario: Scenario, inbox: Sequence[Mail]) -> Iterator[str]:
    """Yield the faults of one scenario, given all emails of its inbox."""
    about = sorted((mail for mail in inbox if _is_about(mail, scenario)), key=lambda mail: mail.date)
    showing = {mail.message_id for mail in about if _contains(mail.body, scenario.answer)}
    if not scenario.sources:
        yield "it has no sources"
    if missing := set(scenario.sources) - showing:
        yield f"its answer {scenario.answer!r} is not in its sources {sorted(missing)}"
    if others := showing - set(scenario.sources):
        yield f"its answer {scenario.answer!r} is also in {sorted(others)}"
    stated = [values for mail in about if (values := KINDS[scenario.kind].pattern.findall(own_text(mail.body)))]
    if not stated or set(stated[0 if scenario.which == "first" else -1]) != {scenario.answer}:
        yield f"the emails state {stated}; the {scenario.which} of these is not {scenario.answer!r}"
    for mail in about:
        if _contains(f"{mail.sender.name}\n{mail.date[:10]}\n{mail.subject}\n{snippet(mail.body)}", scenario.answer):
            yield f"its answer {scenario.answer!r} is visible without reading {mail.message_id}"
    if _contains(scenario.question, scenario.answer):
        yield "the question contains its own answer"
    if missing_words := set(scenario.about) - _words(scenario.question):
        yield f"the question does not contain {sorted(missing_words)}"


def own_text(body: str) -> str:
    """Return the body up to where it quotes another email."""
    return _QUOTE.split(body, maxsplit=1)[0]


def _is_about(mail: Mail, scenario: Scenario) -> bool:
    text = f"{mail.subject} {mail.body}".lower()
    return (
        all(word in text for word in scenario.about)  # a fast filter; few emails pass
        and set(scenario.about) <= _words(text)
        and scenario.sender in ("", mail.sender.address)
        and scenario.after <= mail.date < (scenario.before or "~")
    )


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _contains(text: str, answer: str) -> bool:
    """Return whether the text contains the answer as whole words, across line breaks."""
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", " ".join(text.replace("\n> ", " ").split())) is not None


def _shared(scenarios: Sequence[Scenario]) -> Iterator[str]:
    """Yield inboxes that are in two splits, and facts that two questions ask for."""
    splits: dict[str, set[str]] = defaultdict(set)
    facts: dict[tuple, set[str]] = defaultdict(set)
    for s in scenarios:
        splits[s.inbox].add(s.split)
        owner = s.inbox if s.sender else ""  # a suggestion is a fact about one inbox
        facts[(s.kind, s.about, s.sender, owner, s.after, s.which)].add(s.id)
    yield from (f"{inbox} is in the splits {sorted(found)}" for inbox, found in splits.items() if len(found) > 1)
    yield from (f"{sorted(found)} ask for the same fact" for found in facts.values() if len(found) > 1)
