"""Criteria of the offline judge for the email task. They use only the conversation: question, calls and observations.

They do not know the true answer. They check whether an email that was read states the given answer, whether that email is
about the question, and whether another email states, or may state, something else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from art_nb.rewards.rubric import weighted
from art_nb.trajectories import Trajectory
from email_search.environment import I_DONT_KNOW
from email_search.questions import Question, read_question
from email_search.scenarios import same_answer

HIT = re.compile(r"^(\S+) (\d{4}-\d\d-\d\d|) (.*?): (.*?) \| ", re.MULTILINE)
HEADER = re.compile(r"^(from|date|subject): (.*)$", re.MULTILINE)
QUOTE = re.compile(r"^(?:On (\d{4}-\d\d-\d\d) (.*) wrote:|-+ Forwarded message -+\nFrom: (.*))$", re.MULTILINE)
SHORT = 40  # characters up to which an answer counts as short


@dataclass(frozen=True)
class Statement:
    """A value in an email that was read. date, sender: of the original email if the value is quoted; empty if unknown."""

    value: str
    message_id: str
    date: str
    sender: str


@dataclass
class Search:
    """A search, reconstructed from its conversation.

    wasted: number of calls that brought nothing new: repeated, without a hit, refused, or for an email that does not exist.
    listed: message id -> (date, sender, subject) of emails in search results. pages: message id -> the email as it was read.
    answer: None if none was given. malformed: whether a malformed call ended the search.
    """

    question: Question
    calls: int = 0
    wasted: int = 0
    listed: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    answer: str | None = None
    sources: list[str] = field(default_factory=list)
    malformed: bool = False

    @property
    def claims(self) -> bool:
        """Whether the search ended with an answer other than "I don't know"."""
        return self.answer is not None and not same_answer(self.answer, I_DONT_KNOW)


def accuracy(trajectory: Trajectory) -> tuple[float, str]:
    """Score how likely the answer is correct, given the emails read; 0.3 for no answer, which is better than a wrong one."""
    search = searched(trajectory)
    if search.malformed:
        return 0.0, "a call that can't be carried out ended it"
    if not search.claims:
        return 0.3, "it gives no answer" if search.answer is None else "it says that it doesn't know"
    return support(search)


def efficiency(trajectory: Trajectory) -> tuple[float, str]:
    """Score 1 for a sound answer after three calls, 0.1 less for each further call, 0.05 less for each wasted call."""
    search = searched(trajectory)
    if not _sound(search):
        return 0.0, f"{search.calls} calls led to no answer that can be relied on"
    share = 1 - 0.1 * max(0, search.calls - 3) - 0.05 * search.wasted
    return max(0.0, share), f"{search.calls} calls, {search.wasted} of them brought nothing"


def completeness(trajectory: Trajectory) -> tuple[float, str]:
    """Score the share of named sources that were read and state the answer; at most 0.5, for effort, if it is not sound."""
    search = searched(trajectory)
    if not _sound(search):
        return _looked(search)
    right = {s.message_id for s in stated(search) if same_answer(search.answer or "", s.value)} & set(search.sources)
    if not search.sources:
        return 0.0, "no source is named"
    return len(right) / len(search.sources), f"{len(right)} of {len(search.sources)} named sources were read and say it"


def user_satisfaction(trajectory: Trajectory) -> tuple[float, str]:
    """Score a short, sound answer; half for an honest "I don't know"."""
    search = searched(trajectory)
    if search.malformed or search.answer is None:
        return 0.0, "there is nothing to read"
    if not search.claims:
        return 0.5, "an honest answer, but no help"
    if not _sound(search):
        return 0.0, "the answer may mislead"
    return min(1.0, SHORT / len(search.answer)), f"the answer has {len(search.answer)} characters"


CRITERIA = weighted(accuracy=accuracy, efficiency=efficiency, completeness=completeness, user_satisfaction=user_satisfaction)


def _sound(search: Search) -> bool:
    return search.claims and not search.malformed and support(search)[0] >= 0.5


def _looked(search: Search) -> tuple[float, str]:
    found = any(search.question.is_about(subject) for *_, subject in search.listed.values())
    read = any(map(search.question.is_about, search.pages.values()))
    share = 0.15 * found + 0.15 * read + 0.02 * min(10, search.calls)
    done = "read a mail" if read else "found a mail" if found else "found no mail"
    return 0.2 * share if search.malformed else share, f"in {search.calls} calls it {done} about it"


def support(search: Search) -> tuple[float, str]:
    """Return (estimate of the probability that the answer is correct, reason), from the emails that were read or listed."""
    question, answer = search.question, search.answer or ""
    found = stated(search)
    if not any(same_answer(answer, s.value) for s in found):
        # "for", because the pattern for places requires "to", "for" or "not" before the name.
        fits = question.values(f"for {answer}") or not question.pattern
        return 0.0, "no mail about it that was read says so" if fits else "the answer is not of the requested kind"
    fitting = [s for s in found if question.person in s.sender and s.date.startswith(question.month)]
    if not any(same_answer(answer, s.value) for s in fitting):
        return 0.0, f"its sender is not {question.person}" if question.person else f"it was not sent in {question.month}"
    best = (min if question.which == "first" else max)(fitting, key=lambda s: s.date)
    if not same_answer(answer, best.value):
        return 0.05, f"{best.message_id} says {best.value}, {'before' if question.which == 'first' else 'after'} that"
    unread = _unread(search, best)
    if any(by in best.sender for by in unread.values()):
        share = 0.2 if question.which else 0.85
        return share, f"{best.message_id} says so, but a mail by the same person was not read"
    # A correction quotes the old value, so an agent that read it has seen two values. A quote's date has no time of day.
    if question.which == "final" and len(best.date) > len("2024-05-31") and len({s.value for s in fitting}) == 1:
        return 0.3, f"{best.message_id} says so, but the question says that it changed, and no change was seen"
    return (0.9, f"{best.message_id} says so, not all was read") if unread else (1.0, f"{best.message_id} says so")


def _unread(search: Search, best: Statement) -> dict[str, str]:
    """Return message id -> sender of emails that were listed but not read, and may override `best`."""
    question, day = search.question, best.date[:10]
    return {
        message_id: by
        for message_id, (date, by, subject) in search.listed.items()
        if message_id not in search.pages and question.is_about(subject)
        and question.person in by and date.startswith(question.month)
        and (date < day if question.which == "first" else date > day)
    }  # fmt: skip


def searched(trajectory: Trajectory) -> Search:
    """Reconstruct the search of a trajectory.

    Raises: ValueError if there is no user message.
    """
    messages = trajectory.messages()
    user_messages = [str(message["content"]) for message in messages if message["role"] == "user"]
    if not user_messages:
        raise ValueError(f"{trajectory} has no user message; the first must ask the question")
    search = Search(read_question(user_messages[0].rpartition("\n")[2]))
    made = set()
    for name, arguments, result in _calls(messages):
        if search.answer is not None:
            break
        search.calls += 1
        search.wasted += (name, arguments) in made or result.startswith(("No mail fits", "Refused: ", "There is no mail "))
        made.add((name, arguments))
        if not name or result.startswith("Malformed: "):
            search.malformed = True
        elif name == "search_emails":
            search.listed |= {i: (date, by, subject) for i, date, by, subject in HIT.findall(result)}
        elif name == "read_email" and "\n\n" in result:
            search.pages[result.partition("\n")[0]] = result
        elif name == "return_final_answer" and result == "Thank you.":
            given = json.loads(arguments)
            search.answer, search.sources = given["answer"], list(dict.fromkeys(map(str.strip, given["sources"])))
    return search


def stated(search: Search) -> list[Statement]:
    """Return the values in emails that were read and are about the question, with date and sender of the original email."""
    return [
        Statement(value, message_id, date, sender)
        for message_id, page in search.pages.items() if search.question.is_about(page)
        for date, sender, text in _parts(page)
        for value in _values(search, text)
    ]  # fmt: skip


def _values(search: Search, text: str) -> list[str]:
    """Return the values with the form of an answer; if that form is unknown, the given answer if the text contains it."""
    if search.question.pattern:
        return search.question.values(text)
    return [search.answer] if search.answer and search.answer.lower() in text.lower() else []


def _parts(page: str) -> Iterator[tuple[str, str, str]]:
    """Yield (date, sender, text) of an email's own text and of the text it quotes or forwards."""
    head, _, body = page.partition("\n\n")
    header = dict(HEADER.findall(head))
    quote = QUOTE.search(body)
    yield header["date"], header["from"], body[: quote.start()] if quote else body
    if quote:
        yield quote[1] or "", quote[2] or quote[3], body[quote.end() :]


def _calls(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield (tool, arguments as JSON, observation) in order; ("", "", "") for an assistant message without a call."""
    results = iter([str(message["content"]) for message in messages if message["role"] == "tool"])
    for message in messages:
        if message["role"] == "assistant":
            for call in message.get("tool_calls") or []:
                yield call["function"]["name"], call["function"]["arguments"], next(results, "")
            if not message.get("tool_calls"):
                yield "", "", ""
