"""Parse a question about a mailbox by its words, for players without a model and for the offline judge."""

from __future__ import annotations

import re
from dataclasses import dataclass

MONTHS = "January February March April May June July August September October November December".split()

STOP_WORDS = frozenset(
    "a about after ask at be before begin by can change code come comes correct count date day desk did do does final first "
    "for go have how i in is it last leads many me meet moved much need now of on our place room runs see settle show "
    "start suggest the this time to total units wants want was we what when where which who will".split()
)

# (words of the question, form of its answers)
PATTERNS = (
    (r"\b(time|start|begin)\b", r"\b\d{1,2}:\d{2}\b"),
    (r"\b(room|meet)\b", r"\broom \d+\b"),
    (r"\b(total|much|come)\b", r"\b\d+ dollars\b"),
    (r"\b(code|desk)\b", r"\b[A-Z]\d+\b"),
    (r"\b(count|units)\b", r"\b\d+ units\b"),
    (r"\b(place|go)\b", r"(?:to|for|not) ([A-Z]\w+)"),
    (r"\bwho\b", r"\b(?!Hi |Ask )[A-Z]\w+ [A-Z]\w+\b"),
    (r"\b(when|day|date)\b", r"\b\d{1,2} [A-Z]\w+\b"),
)
PERSON = re.compile(r"(?<=[a-z] )[A-Z][a-z]+ [A-Z][a-z]+\b")
QUOTED = re.compile(r"^(On .* wrote:|From: .*)$", re.MULTILINE)
MONTH = re.compile(rf"\b({'|'.join(MONTHS)}) (\d{{4}})\b")


@dataclass(frozen=True)
class Question:
    """A parsed question.

    pattern: a regular expression for its answers, or None if unknown. words: keywords that an email about it contains, in
    the question's order. person, month (`YYYY-MM`): the sender and time of the email, or empty. which: "first" or "final"
    if the question implies that there are several values, else empty.
    """

    pattern: str | None
    words: tuple[str, ...]
    person: str = ""
    month: str = ""
    which: str = ""

    def values(self, text: str) -> list[str]:
        """Return every part of an email's text that has the form of an answer, except in the header lines of quotes."""
        text = QUOTED.sub("", text)
        return [found[found.re.groups] for found in re.finditer(self.pattern, text)] if self.pattern else []

    def is_about(self, text: str) -> bool:
        """Return whether an email's subject or text contains all the words."""
        return set(map(str.lower, self.words)) <= set(re.findall(r"\w+", text.lower()))


def read_question(text: str) -> Question:
    """Parse a question: `What is the final room of the Falcon review?` is about Falcon and review, and asks for a room."""
    lowered = text.lower()
    person, month = PERSON.search(text), MONTH.search(text)
    rest = MONTH.sub("", PERSON.sub("", text))
    return Question(
        pattern=next((answer for words, answer in PATTERNS if re.search(words, lowered)), None),
        words=tuple(word for word in re.findall(r"\w+", rest) if word.lower() not in STOP_WORDS),
        person=person[0] if person else "",
        month=f"{month[2]}-{MONTHS.index(month[1]) + 1:02d}" if month else "",
        which="first" if re.search(r"\b(first|before)\b", lowered)
        else "final" if re.search(r"\b(now|final|last|correct)\b", lowered) else "",
    )  # fmt: skip
