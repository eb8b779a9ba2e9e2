"""Agents without a model for the email task: a heuristic, and searchers of any skill who draw their mistakes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

from art_nb.tasks.email_search.environment import I_DONT_KNOW, TOOLS, EmailSearch, first_message
from art_nb.tasks.email_search.mailbox import Mailbox
from art_nb.tasks.email_search.questions import PATTERNS, STOP_WORDS, Question, read_question
from art_nb.tasks.email_search.scenarios import Scenario
from art_nb.trajectories import Trajectory

Player = Callable[[EmailSearch], None]

# How a search may end without an answer: by giving up, or by a call that can't be carried out.
ENDS: tuple[tuple[str | None, dict[str, Any] | None], ...] = (
    ("return_final_answer", {"answer": I_DONT_KNOW, "sources": []}), (None, None), ("reply", {}), ("read_email", {}),
)  # fmt: skip


def play(player: Player, search: EmailSearch) -> EmailSearch:
    """Lets a player answer a question; returns the search, over or given up."""
    player(search)
    return search


class RecordedSearch(EmailSearch):
    """A search that keeps its calls and results, as the conversation with a model that made them."""

    def __init__(self, mailbox: Mailbox, scenario: Scenario):
        super().__init__(mailbox, scenario)
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": first_message(scenario)}]

    def call(self, name: str | None, arguments: str | dict | None) -> str:
        result = super().call(name, arguments)
        if name:
            said = arguments if isinstance(arguments, str) else json.dumps(arguments)
            function = {"name": name, "arguments": said}
            call = {"id": f"call_{self.turns}", "type": "function", "function": function}
            self.messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        else:
            self.messages.append({"role": "assistant", "content": I_DONT_KNOW})
        return result

    def trajectory(self) -> Trajectory:
        """What was said, and how it came out."""
        asked = self.scenario
        return Trajectory(
            messages_and_choices=self.messages, tools=TOOLS, reward=self.reward(), metrics=self.metrics(),
            metadata={"scenario": asked.id, "truth": asked.answer, "truth_sources": " ".join(asked.sources)},
        )  # fmt: skip


def heuristic_player(search: EmailSearch) -> None:
    """Searches for the question's content words, fewer of them if nothing fits; reads two mails; answers the first match."""
    question = search.scenario.question
    words = [word for word in re.findall(r"\w+", question) if word.lower() not in STOP_WORDS]
    ids: list[str] = []
    while words and not ids:
        result = search.call("search_emails", {"keywords": " ".join(words)})
        ids = _ids(result)
        words.pop()
    pattern = next(answer for asked, answer in PATTERNS if re.search(asked, question.lower()))
    for message_id in ids[:2]:
        page = search.call("read_email", {"message_id": message_id})
        if found := re.search(pattern, page.partition("\n\n")[2]):
            answer = found[found.re.groups]
            search.call("return_final_answer", {"answer": answer, "sources": [message_id]})
            return
    search.call("return_final_answer", {"answer": I_DONT_KNOW, "sources": []})


def searcher(skill: float, seed: int) -> Player:
    """A player that makes each of its choices well with probability `skill`, and draws it otherwise.

    Its choices: whether to go on, what to search for and in which order, which mail to read, which value in it to take and
    whether to copy it rightly, and which sources to name.
    """
    rng = random.Random(seed)

    def choose(best, others):
        return best if rng.random() < skill else rng.choice(others)

    def player(search: EmailSearch) -> None:
        question = read_question(search.scenario.question)
        ids: list[str] = []
        while not search.over:
            if choose(False, [False, False, True]):
                search.call(*rng.choice(ENDS))
            elif not ids:
                ids = _ids(search.call("search_emails", choose(_query(question), _poor_queries(question))))
            else:
                message_id = choose(ids[0], ids)
                page = search.call("read_email", {"message_id": message_id})
                if values := question.values(page.partition("\n\n")[2]):
                    value = choose(values[0], [*values, _misread(values[0], rng)])
                    sources = choose([message_id], [[], ids, ids[-1:]])
                    search.call("return_final_answer", {"answer": value, "sources": sources})
                ids.remove(message_id)

    return player


def _ids(result: str) -> list[str]:
    return re.findall(r"^(m\d+) ", result, re.MULTILINE)


def _query(question: Question) -> dict[str, str]:
    """The search that finds what a question asks for."""
    arguments = {"keywords": " ".join(question.words)} if question.words else {}
    if question.person:
        arguments["from_addr"] = question.person
    if question.month:
        first = date.fromisoformat(f"{question.month}-01")
        arguments |= {"sent_after": str(first), "sent_before": str((first + timedelta(days=31)).replace(day=1))}
    return arguments | {"sort": "oldest" if question.which == "first" else "newest"}


def _poor_queries(question: Question) -> list[dict[str, str]]:
    words = question.words
    return [
        {"keywords": " ".join(words)}, {"keywords": words[0]}, {"keywords": words[-1], "sort": "oldest"},
        {"keywords": " ".join([*words, "answer"])}, {"keywords": " ".join(words), "sort": "oldest"},
    ]  # fmt: skip


def _misread(value: str, rng: random.Random) -> str:
    """With another first digit, or without its last letter."""
    return re.sub(r"\d", str(rng.randrange(1, 10)), value, count=1) if re.search(r"\d", value) else value[:-1]
