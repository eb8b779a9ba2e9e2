"""Questions about a mailbox with their answers and sources, and the comparison of answers."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from art_nb.storage.checkpoints import write_file
from email_search.mailbox import DATA

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question.

    inbox: the user's address; only the emails of this inbox may be read. asked: the day of the question, `YYYY-MM-DD`.
    sources: message ids of all emails on the question in this inbox with the answer, starting with the earliest.
    kind, about, sender, after, before, which: for checks and exercises, never for the agent: kind of fact; words that
      each email on the question contains; its sender; the range of its dates, `after` included, `before` excluded ("" if
      there is no such condition); and whether the question asks for the "first" or the "final" of several values.
    """

    id: str
    split: str
    question: str
    answer: str
    sources: tuple[str, ...]
    inbox: str
    asked: str
    kind: str = ""
    about: tuple[str, ...] = ()
    sender: str = ""
    after: str = ""
    before: str = ""
    which: str = "final"


def save_scenarios(path: Path, scenarios: Iterable[Scenario]) -> None:
    """Write scenarios as JSON lines."""
    write_file(path, "".join(json.dumps(asdict(scenario)) + "\n" for scenario in scenarios).encode())


@cache
def load_scenarios(path: Path = DATA / "scenarios.jsonl") -> tuple[Scenario, ...]:
    """Load the scenarios that `save_scenarios` wrote."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return tuple(Scenario(**row | {"sources": tuple(row["sources"]), "about": tuple(row["about"])}) for row in rows)


def scenarios(split: str, n: int | None = None) -> list[Scenario]:
    """Return the first n (or all) scenarios of the course's mailbox in a split: train, val or test.

    Raises: ValueError for another split, or if n is negative or larger than the split.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    found = [scenario for scenario in load_scenarios() if scenario.split == split]
    if n is not None and not 0 <= n <= len(found):
        raise ValueError(f"n must be 0 to {len(found):,}, the size of the {split} split, not {n:,}")
    return found[:n]


# Words that may surround the value in an answer; the comparison ignores them.
_FILLERS = frozenset("a an the on at in is it was are by for to of room dollars dollar usd units code day date time".split())
_YEAR = re.compile(r"(19|20)\d\d")


def same_answer(given: str, truth: str) -> bool:
    """Return whether two answers are equal up to case, word order, punctuation and words like `the`, `room`, `dollars`.

    A year that only `given` contains is ignored: `26 October 2024` equals `October 26th`, but `27 October` does not.
    """
    ours, theirs = _content(given), _content(truth)
    for word in list(ours):
        if _YEAR.fullmatch(word) and word not in theirs:
            del ours[word]
    return ours == theirs and bool(theirs)


def _content(text: str) -> Counter[str]:
    text = unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'")
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    text = re.sub(r"(?<=\d)(st|nd|rd|th)\b", "", text)
    found = re.findall(r"\d+(?:[:.]\d+)*|[^\W\d_]+(?:'[^\W\d_]+)*|[^\W_]+", text)
    return Counter([word for word in found if word not in _FILLERS] or found)
