"""Answering questions from a mailbox, as a task: its tools, its reward, and an environment for TRL.

The task, its limit of ten turns and its reward are those of the ART-E example of OpenPipe's ART. The tools answer every
call with text, also one that can't be carried out, and see the asker's own inbox alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Any

from art_nb.tasks.email_search.mailbox import SORTS, Hit, Mail, Mailbox, clean, course_mailbox
from art_nb.tasks.email_search.scenarios import SPLITS, Scenario, same_answer, scenarios
from art_nb.tasks.tool_calls import ByToolCalls, malformed, quoted

__all__ = [
    "I_DONT_KNOW", "MAX_TURNS", "OVER", "TOOLS", "EmailSearch", "EmailSearchEnvironment", "Scenario", "course_mailbox",
    "first_message", "same_answer", "scenarios",
]  # fmt: skip

MAX_TURNS = 10
MOST_RESULTS = 10
LONGEST_ARGUMENT = 300  # characters
LONGEST_BODY = 3000  # characters of a mail that are shown
I_DONT_KNOW = "I don't know"
OVER = "The search is over."


def _tool(name: str, description: str, required: Iterable[str], **parameters: str) -> dict:
    kinds: dict[str, dict[str, Any]] = {
        "max_results": {"type": "integer"},
        "sources": {"type": "array", "items": {"type": "string"}},
    }
    properties = {
        parameter: kinds.get(parameter, {"type": "string"}) | {"description": text} for parameter, text in parameters.items()
    }
    schema = {"type": "object", "properties": properties} | ({"required": list(required)} if required else {})
    function = {"name": name, "description": description, "parameters": schema, "return": {"type": "string"}}
    return {"type": "function", "function": function}


TOOLS = [
    _tool("read_email", "Show one mail.", ["message_id"], message_id="its id, as a search lists it."),
    _tool(
        "return_final_answer", "Answer the question. This ends the search.", ["answer", "sources"],
        answer="a few words, or I don't know.", sources="ids of the mails it stands in.",
    ),
    _tool(
        "search_emails", "List mails, best first.", (),
        keywords="words that a mail must hold, all of them.", from_addr="part of the sender's name or address.",
        to_addr="part of a recipient's name or address.", sent_after="first day, YYYY-MM-DD.",
        sent_before="day after the last, YYYY-MM-DD.", sort="relevance, newest or oldest.",
        max_results="1 to 10.",
    ),
]  # fmt: skip
"""The schemas that TRL derives from `EmailSearchEnvironment`'s tools, to pass to a model as `tools=TOOLS`; by name, as TRL
lists them."""



def first_message(scenario: Scenario) -> str:
    """What the agent is asked: whose inbox it is, the day, the question."""
    return f"Inbox: {scenario.inbox}\nToday: {scenario.asked}\n{scenario.question}"


class EmailSearch(ByToolCalls):
    """One question being answered, by whoever makes the calls.

    Fields: turns (calls made), answer and sources (as given, None and () before), correct (by `same_answer`; a judge may
    set it anew before the reward is read), ended_by (None while it runs, then "answered", "gave up", "turns" or
    "malformed"), fault (why a call was malformed: "no call", "unknown tool" or "bad arguments"), shown and read (message
    ids that a search listed, and that were read), invalid_reads, refused (calls whose arguments made no sense).
    """

    def __init__(self, mailbox: Mailbox, scenario: Scenario, max_turns: int = MAX_TURNS):
        self.mailbox, self.scenario, self.max_turns = mailbox, scenario, max_turns
        self.turns = self.invalid_reads = self.refused = 0
        self.shown: set[str] = set()
        self.read: set[str] = set()
        self.answer: str | None = None
        self.sources: tuple[str, ...] = ()
        self.correct = False
        self.fault: str | None = None

    def call(self, name: str | None, arguments: str | dict | None) -> str:
        """As `ByToolCalls.call`."""
        if self.over:
            return OVER
        self.turns += 1
        fault, given = malformed(TOOLS, name, arguments)
        if fault:
            self.fault, wrong = fault
            self.ended_by = "malformed"
            return f"Malformed: {wrong}. {OVER}"
        result = getattr(self, f"_{name}")(**given)
        if self.turns >= self.max_turns and not self.over:
            self.ended_by = "turns"
        return result

    def _search_emails(
        self, keywords="", from_addr="", to_addr="", sent_after="", sent_before="", sort="relevance", max_results=4
    ) -> str:
        texts = {"keywords": keywords, "from_addr": from_addr, "to_addr": to_addr}
        wrong = [f"{n} is longer than {LONGEST_ARGUMENT} characters" for n, t in texts.items() if len(t) > LONGEST_ARGUMENT]
        days = {"sent_after": sent_after, "sent_before": sent_before}
        wrong += [f"{n} must be a day like 2024-05-31, not {quoted(t)}" for n, t in days.items() if t and not _is_day(t)]
        wrong += [] if sort in SORTS else [f"sort must be {', '.join(SORTS)}, not {quoted(sort)}"]
        wrong += [] if 1 <= max_results <= MOST_RESULTS else [f"max_results must be 1 to {MOST_RESULTS}"]
        if wrong:
            return self._refuse(wrong[0])
        hits = self.mailbox.search(
            self.scenario.inbox, keywords, sender=from_addr, recipient=to_addr, after=sent_after, before=sent_before,
            sort=sort, limit=max_results,
        )  # fmt: skip
        self.shown.update(hit.message_id for hit in hits)
        return "\n".join(map(_line, hits)) or "No mail fits."

    def _read_email(self, message_id: str) -> str:
        mail = self.mailbox.read(self.scenario.inbox, message_id.strip())
        if mail is None:
            self.invalid_reads += 1
            return f"There is no mail {quoted(message_id)}."
        self.read.add(mail.message_id)
        return _page(mail)

    def _return_final_answer(self, answer: str, sources: list[str]) -> str:
        if not answer.strip() or len(answer) > LONGEST_ARGUMENT:
            return self._refuse(f"answer must have 1 to {LONGEST_ARGUMENT} characters")
        self.answer, self.sources = clean(answer), tuple(dict.fromkeys(clean(source).strip() for source in sources))
        self.correct = same_answer(self.answer, self.scenario.answer)
        self.ended_by = "gave up" if same_answer(self.answer, I_DONT_KNOW) else "answered"
        return "Thank you."

    def _refuse(self, wrong: str) -> str:
        self.refused += 1
        return f"Refused: {wrong}."

    def reward_parts(self, wrong: float = -1.0) -> dict[str, float]:
        """What the reward is the sum of.

        wrong: where a wrong answer starts. With ART-E's -1 it is worse than none; with 0 it is paid as none.

        A correct answer earns 1, 0.3 more if a right source is among those named, up to 0.1 for naming few sources and up
        to 0.1 for few turns. Else the start is -1 for a wrong answer, 0 for none, -2 to -1.8 for a malformed call, and up
        to 0.1 each come on top: for having found a right mail, read it, never tried to read one that is not there, named
        it as a source, and (by turns) for not giving up early; together less than the step to the next start.
        Source: the reward of the ART-E example of OpenPipe's ART.
        """
        right, used = set(self.scenario.sources), self.turns / self.max_turns
        named = bool(right & set(self.sources))
        if self.ended_by == "answered" and self.correct:
            few = 0.1 / len(self.sources) if self.sources else 0.0
            return {"base": 1.0, "sources": 0.3 * named, "few_sources": few, "few_turns": 0.1 * max(0.0, 1 - used)}
        faults = {"no call": -2.0, "unknown tool": -1.9, "bad arguments": -1.8}
        return {
            "base": faults[self.fault] if self.fault else wrong if self.ended_by == "answered" else 0.0,
            "found": 0.1 * bool(right & (self.shown | self.read)),
            "read": 0.1 * bool(right & self.read),
            "valid_reads": 0.1 * (self.invalid_reads == 0),
            "sources": 0.1 * named,
            "patience": 0.1 * used,
        }

    def reward(self, wrong: float = -1.0) -> float:
        """The sum of `reward_parts`; a search broken off counts as one without an answer."""
        return sum(self.reward_parts(wrong).values())

    def metrics(self) -> dict[str, float]:
        """What to chart: shares are 0 or 1 here; each part of the reward is `reward_` and its name."""
        right = set(self.scenario.sources)
        return {
            "correct": float(self.ended_by == "answered" and self.correct),
            "wrong": float(self.ended_by == "answered" and not self.correct),
            "gave_up": float(self.ended_by == "gave up"),
            "out_of_turns": float(self.ended_by == "turns"),
            "malformed": float(self.ended_by == "malformed"),
            "sources_right": float(bool(right & set(self.sources))),
            "hallucinated_sources": float(len(set(self.sources) - self.shown - self.read)),
            "found_right": float(bool(right & (self.shown | self.read))),
            "read_right": float(bool(right & self.read)),
            "invalid_reads": float(self.invalid_reads),
            "refused_calls": float(self.refused),
            "turns": float(self.turns),
            **{f"reward_{name}": part for name, part in self.reward_parts().items()},
        }


def _is_day(text: str) -> bool:
    try:
        return len(text) == 10 and date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _line(hit: Hit) -> str:
    """A search result on one line."""
    subject = " ".join(hit.subject.split())[:80]
    return f"{hit.message_id} {hit.date[:10]} {hit.sender.name or hit.sender.address}: {subject} | {hit.snippet}"


def _page(mail: Mail) -> str:
    """A mail as it is read; a long body is cut, with a line that says so."""
    lines = [mail.message_id, f"from: {mail.sender}"]
    for name, people in (("to", mail.to), ("cc", mail.cc)):
        lines += [f"{name}: {', '.join(person.name or person.address for person in people[:20])}"] if people else []
    lines += [f"date: {mail.date}", f"subject: {' '.join(mail.subject.split())}"]
    lines += [f"attached: {', '.join(mail.attachments[:20])}"] if mail.attachments else []
    body = mail.body
    if len(body) > LONGEST_BODY:
        body = f"{body[:LONGEST_BODY]}\n[{len(body) - LONGEST_BODY:,} more characters]"
    return "\n".join(lines) + f"\n\n{body}"


class EmailSearchEnvironment:
    """The task as a tool-calling episode for TRL's `environment_factory`; its reward is `EmailSearch.reward`.

    Pass the class itself, or `functools.partial(EmailSearchEnvironment, mailbox=..., scenarios=...)` for other mails. The
    dataset's rows carry the id of a `scenario` and a prompt whose last user message the question is appended to: leave its
    content empty. TRL's loop ends when the model answers without a call, or at its own limits; every call after the end
    is told that the search is over. A call that TRL itself can't make (another tool, an unknown argument) never gets here
    and is not counted as malformed.
    """

    def __init__(
        self,
        mailbox: Mailbox | None = None,
        scenarios: Iterable[Scenario] | None = None,
        max_turns: int = MAX_TURNS,
    ):
        self._mailbox = mailbox or course_mailbox()
        self._scenarios = {scenario.id: scenario for scenario in (scenarios or _all_scenarios())}
        self._max_turns = max_turns
        self.reset(next(iter(self._scenarios)))

    def reset(self, scenario: str = "train-0", **kwargs: Any) -> str:
        """Starts the search for this scenario's answer and returns its question; the row's other columns are ignored."""
        self.search = EmailSearch(self._mailbox, self._scenarios[scenario], self._max_turns)
        return first_message(self.search.scenario)

    # The tools' schemas, made from these docstrings, are in every prompt: short, for a small model's sake.
    def search_emails(
        self,
        keywords: str = "",
        from_addr: str = "",
        to_addr: str = "",
        sent_after: str = "",
        sent_before: str = "",
        sort: str = "relevance",
        max_results: int = 4,
    ) -> str:
        """
        List mails, best first.

        Args:
            keywords: words that a mail must hold, all of them.
            from_addr: part of the sender's name or address.
            to_addr: part of a recipient's name or address.
            sent_after: first day, YYYY-MM-DD.
            sent_before: day after the last, YYYY-MM-DD.
            sort: relevance, newest or oldest.
            max_results: 1 to 10.
        """
        given = {
            "keywords": keywords, "from_addr": from_addr, "to_addr": to_addr, "sent_after": sent_after,
            "sent_before": sent_before, "sort": sort, "max_results": max_results,
        }  # fmt: skip
        return self.search.call("search_emails", given)

    def read_email(self, message_id: str) -> str:
        """
        Show one mail.

        Args:
            message_id: its id, as a search lists it.
        """
        return self.search.call("read_email", {"message_id": message_id})

    def return_final_answer(self, answer: str, sources: list[str]) -> str:
        """
        Answer the question. This ends the search.

        Args:
            answer: a few words, or I don't know.
            sources: ids of the mails it stands in.
        """
        return self.search.call("return_final_answer", {"answer": answer, "sources": sources})

    def get_reward(self) -> float:
        """The search's reward; one that was broken off counts as one without an answer."""
        return self.search.reward()


def _all_scenarios() -> list[Scenario]:
    return [scenario for split in SPLITS for scenario in scenarios(split)]
