"""The email task: its tools, its reward and its environment for TRL.

The task, its limit of ten turns and its reward are those of the ART-E example of OpenPipe's ART. The tools search only the
inbox of the user who asks, and answer every call with text, even a call that fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date
from typing import Any

from art_nb.environments import RefusedCall, ToolEnvironment, ToolEpisode, clean, quoted, tool
from art_nb.trajectories import Trajectory
from email_search.mailbox import SORTS, Hit, Mail, Mailbox, course_mailbox
from email_search.scenarios import SPLITS, Scenario, same_answer, scenarios

__all__ = [
    "I_DONT_KNOW", "MAX_TURNS", "OVER", "TOOLS", "EmailSearch", "EmailSearchEnvironment", "Scenario", "course_mailbox",
    "first_message", "same_answer", "scenarios",
]  # fmt: skip

MAX_TURNS = 10
MAX_RESULTS = 10
MAX_ARGUMENT_LENGTH = 300  # characters
MAX_BODY_LENGTH = 3000  # characters of an email that are shown
I_DONT_KNOW = "I don't know"
OVER = "The search is over."


def first_message(scenario: Scenario) -> str:
    """Return the agent's task: the address of the inbox, the day, the question."""
    return f"Inbox: {scenario.inbox}\nToday: {scenario.asked}\n{scenario.question}"


class EmailSearch(ToolEpisode):
    """One search for the answer to a question.

    Attributes: those of `ToolEpisode`, whose `ended_by` may also be "answered" or "gave up"; answer and sources (as given;
    None and () before), correct (by `same_answer`; a judge may overwrite it before the reward is read), shown and read
    (message ids that a search listed, and that were read), invalid_reads (reads of a message that does not exist).
    """

    over_message = OVER
    no_call_message = I_DONT_KNOW

    def __init__(self, mailbox: Mailbox, scenario: Scenario, max_turns: int = MAX_TURNS):
        super().__init__(max_turns)
        self.mailbox, self.scenario = mailbox, scenario
        self.invalid_reads = 0
        self.shown: set[str] = set()
        self.read: set[str] = set()
        self.answer: str | None = None
        self.sources: tuple[str, ...] = ()
        self.correct = False
        self._best_rank = math.inf  # of a correct email in a search so far

    def first_message(self) -> str:
        return first_message(self.scenario)

    def progress(self) -> float:
        """Return the value of the search so far; its changes reward each call.

        0.5 over the best rank of a correct email in a search, plus 0.5 if a correct email was read, plus 1 for a correct
        answer, or -1 for a malformed call.
        """
        read = bool(self.read & set(self.scenario.sources))
        return 0.5 / self._best_rank + 0.5 * read + (self.ended_by == "answered" and self.correct) - (self.fault is not None)

    def trajectory(self, **metadata: Any) -> Trajectory:
        """As `ToolEpisode.trajectory`, with the true answer and its sources in the metadata."""
        scenario = self.scenario
        truth = {"truth": scenario.answer, "truth_sources": " ".join(scenario.sources)}
        return super().trajectory(scenario=scenario.id, **truth, **metadata)

    # The descriptions are short, for small models: SmolLM2's prompts contain them, and data/real_email was trained on them.
    # nano_email's chat template shows only the names of tools and parameters.
    @tool
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
        for name, text in (("keywords", keywords), ("from_addr", from_addr), ("to_addr", to_addr)):
            if len(text) > MAX_ARGUMENT_LENGTH:
                raise RefusedCall(f"{name} is longer than {MAX_ARGUMENT_LENGTH} characters")
        for name, text in (("sent_after", sent_after), ("sent_before", sent_before)):
            if text and not _is_day(text):
                raise RefusedCall(f"{name} must be a day like 2024-05-31, not {quoted(text)}")
        if sort not in SORTS:
            raise RefusedCall(f"sort must be {', '.join(SORTS)}, not {quoted(sort)}")
        if not 1 <= max_results <= MAX_RESULTS:
            raise RefusedCall(f"max_results must be 1 to {MAX_RESULTS}")
        hits = self.mailbox.search(
            self.scenario.inbox, keywords, sender=from_addr, recipient=to_addr, after=sent_after, before=sent_before,
            sort=sort, limit=max_results,
        )  # fmt: skip
        self.shown.update(hit.message_id for hit in hits)
        ranks = [rank for rank, hit in enumerate(hits, start=1) if hit.message_id in self.scenario.sources]
        self._best_rank = min([self._best_rank, *ranks])
        return "\n".join(map(_hit_line, hits)) or "No mail fits."

    @tool
    def read_email(self, message_id: str) -> str:
        """
        Show one mail.

        Args:
            message_id: its id, as a search lists it.
        """
        mail = self.mailbox.read(self.scenario.inbox, message_id.strip())
        if mail is None:
            self.invalid_reads += 1
            return f"There is no mail {quoted(message_id)}."
        self.read.add(mail.message_id)
        return _mail_page(mail)

    @tool
    def return_final_answer(self, answer: str, sources: list[str]) -> str:
        """
        Answer the question. This ends the search.

        Args:
            answer: a few words, or I don't know.
            sources: ids of the mails it stands in.
        """
        if not answer.strip() or len(answer) > MAX_ARGUMENT_LENGTH:
            raise RefusedCall(f"answer must have 1 to {MAX_ARGUMENT_LENGTH} characters")
        self.answer, self.sources = clean(answer), tuple(dict.fromkeys(clean(source).strip() for source in sources))
        self.correct = same_answer(self.answer, self.scenario.answer)
        self.ended_by = "gave up" if same_answer(self.answer, I_DONT_KNOW) else "answered"
        return "Thank you."

    def reward_parts(self, wrong: float = -1.0) -> dict[str, float]:
        """Return the components whose sum is the reward.

        wrong: the base of a wrong answer. With ART-E's -1 a wrong answer is worse than none, with 0 it is worth the same.

        A correct answer earns 1, plus 0.3 if a correct source is among those named, up to 0.1 for naming few sources and up
        to 0.1 for using few turns. Otherwise the base is -1 for a wrong answer, 0 for none and -2 to -1.8 for a malformed
        call, plus up to 0.1 for each of: a correct email was found, it was read, no email that does not exist was read, a
        correct email was named as a source, and the share of turns used (for not giving up early). These add up to at
        most 0.5, less than the distance between these bases (with `wrong=-1`). Source: the reward of ART's ART-E example.
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
        """Return the sum of `reward_parts`; an unfinished search counts as one without an answer."""
        return sum(self.reward_parts(wrong).values())

    def metrics(self) -> dict[str, float]:
        """Return the numbers to chart: flags are 0 or 1; each component of the reward is `reward_` and its name."""
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


TOOLS = EmailSearch.tools
"""The tools' OpenAI schemas, sorted by name as TRL lists them, to pass to a model as `tools=TOOLS`."""


class EmailSearchEnvironment(ToolEnvironment, episode=EmailSearch):
    """The email task for TRL's `environment_factory`; the reward is `EmailSearch.reward`.

    Pass the class itself, or `functools.partial(EmailSearchEnvironment, mailbox=..., scenarios=...)` for other emails. Each
    row of the dataset has the id of a `scenario` and a prompt whose last user message is empty: see `ToolEnvironment`.

    Raises: ValueError if `scenarios` is empty.
    """

    episode: EmailSearch

    def __init__(
        self, mailbox: Mailbox | None = None, scenarios: Iterable[Scenario] | None = None, max_turns: int = MAX_TURNS
    ):
        self._mailbox = mailbox or course_mailbox()
        self._scenarios = {each.id: each for each in (_all_scenarios() if scenarios is None else scenarios)}
        if not self._scenarios:
            raise ValueError("scenarios is empty: pass at least one scenario, or None for the course's scenarios")
        self._max_turns = max_turns
        self.reset(next(iter(self._scenarios)))

    def reset(self, scenario: str = "", **row: Any) -> str:
        """Start the search for this scenario's answer, by default the first. Returns its first message.

        Other columns are ignored. Raises: ValueError for an unknown scenario.
        """
        scenario = scenario or next(iter(self._scenarios))
        if scenario not in self._scenarios:
            raise ValueError(f"scenario is {scenario!r}: expected the id of one of this environment's scenarios")
        self.episode = EmailSearch(self._mailbox, self._scenarios[scenario], self._max_turns)
        return self.episode.first_message()


def _all_scenarios() -> list[Scenario]:
    return [scenario for split in SPLITS for scenario in scenarios(split)]


def _is_day(text: str) -> bool:
    try:
        return len(text) == 10 and date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _hit_line(hit: Hit) -> str:
    subject = " ".join(hit.subject.split())[:80]
    return f"{hit.message_id} {hit.date[:10]} {hit.sender.name or hit.sender.address}: {subject} | {hit.snippet}"


def _mail_page(mail: Mail) -> str:
    """Return an email as the agent reads it; a long body is truncated, and a line says by how much."""
    lines = [mail.message_id, f"from: {mail.sender}"]
    for name, people in (("to", mail.to), ("cc", mail.cc)):
        lines += [f"{name}: {', '.join(person.name or person.address for person in people[:20])}"] if people else []
    lines += [f"date: {mail.date}", f"subject: {' '.join(mail.subject.split())}"]
    lines += [f"attached: {', '.join(mail.attachments[:20])}"] if mail.attachments else []
    body = mail.body
    if len(body) > MAX_BODY_LENGTH:
        body = f"{body[:MAX_BODY_LENGTH]}\n[{len(body) - MAX_BODY_LENGTH:,} more characters]"
    return "\n".join(lines) + f"\n\n{body}"
