"""Players to compare an agent with: two heuristics, searchers that make random mistakes, a model that avoids giving up."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from datetime import date, timedelta
from types import SimpleNamespace
from typing import Any

from art_nb.environments import play
from email_search.environment import I_DONT_KNOW, EmailSearch
from email_search.questions import PATTERNS, STOP_WORDS, Question, read_question

__all__ = ["ENDS", "Player", "avoid_giving_up", "heuristic_player", "ordering_player", "play", "searcher"]

Player = Callable[[EmailSearch], None]

ENDS: tuple[tuple[str | None, dict[str, Any] | None], ...] = (
    ("return_final_answer", {"answer": I_DONT_KNOW, "sources": []}), (None, None), ("reply", {}), ("read_email", {}),
)  # fmt: skip
"""The calls that end a search without an answer: giving up, and malformed calls of each kind."""


def heuristic_player(search: EmailSearch, **arguments: str) -> None:
    """Search for the question's content words, dropping the last until an email is found; read two; answer with a match.

    A match is text of the form that the question calls for, such as a date for "when". arguments: added to every search.
    """
    question = search.scenario.question
    words = [word for word in re.findall(r"\w+", question) if word.lower() not in STOP_WORDS]
    ids: list[str] = []
    while words and not ids:
        result = search.call("search_emails", {"keywords": " ".join(words), **arguments})
        ids = _ids(result)
        words.pop()
    pattern = next((answer for words_asked, answer in PATTERNS if re.search(words_asked, question.lower())), None)
    for message_id in ids[:2]:
        page = search.call("read_email", {"message_id": message_id})
        if pattern and (found := re.search(pattern, page.partition("\n\n")[2])):
            answer = found[found.re.groups]
            search.call("return_final_answer", {"answer": answer, "sources": [message_id]})
            return
    search.call("return_final_answer", {"answer": I_DONT_KNOW, "sources": []})


def ordering_player(search: EmailSearch) -> None:
    """`heuristic_player` with the newest emails first where the question asks for the final value, else the oldest first."""
    final = read_question(search.scenario.question).which == "final"
    heuristic_player(search, sort="newest" if final else "oldest")


def searcher(skill: float, seed: int) -> Player:
    """Return a player that makes each choice well with probability `skill`, and at random otherwise.

    Its choices: whether to continue, the query and the sort, the email to read, the value in it to return, whether to copy
    that correctly, and the sources to name.
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


def avoid_giving_up(client: Any, tries: int = 16) -> Any:
    """Return a chat client that samples `tries` answers, and returns the most probable one that does not give up.

    If all give up, it returns the most probable. A malformed answer is not giving up. A control without training: it
    shows how much of an improvement comes from not giving up, and from choosing more probable answers. client: must
    support `n` and `logprobs`. Raises: ValueError for fewer than one try.
    """
    if tries < 1:
        raise ValueError(f"tries must be at least 1, not {tries}")

    def rank(choice: Any) -> tuple[bool, float]:
        functions = [call.function for call in choice.message.tool_calls or []]
        gives_up = any(f.name == "return_final_answer" and I_DONT_KNOW in f.arguments for f in functions)
        return not gives_up, sum(token.logprob for token in choice.logprobs.content)

    async def create(**request: Any) -> Any:
        completion = await client.chat.completions.create(**request | {"n": tries, "logprobs": True})
        completion.choices = [max(completion.choices, key=rank)]
        return completion

    return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))


def _ids(result: str) -> list[str]:
    return re.findall(r"^(\S+) (?:\d{4}-\d\d-\d\d)? ", result, re.MULTILINE)


def _query(question: Question) -> dict[str, str]:
    """Return arguments of a search that answers a question."""
    arguments = {"keywords": " ".join(question.words)} if question.words else {}
    if question.person:
        arguments["from_addr"] = question.person
    if question.month:
        first = date.fromisoformat(f"{question.month}-01")
        arguments |= {"sent_after": str(first), "sent_before": str((first + timedelta(days=31)).replace(day=1))}
    return arguments | {"sort": "oldest" if question.which == "first" else "newest"}


def _poor_queries(question: Question) -> list[dict[str, str]]:
    words = question.words or ("",)
    return [
        {"keywords": " ".join(words)}, {"keywords": words[0]}, {"keywords": words[-1], "sort": "oldest"},
        {"keywords": " ".join([*words, "answer"])}, {"keywords": " ".join(words), "sort": "oldest"},
    ]  # fmt: skip


def _misread(value: str, rng: random.Random) -> str:
    """Return the value with a random first digit, or without its last letter."""
    return re.sub(r"\d", str(rng.randrange(1, 10)), value, count=1) if re.search(r"\d", value) else value[:-1]
