"""Convert a trajectory of the email task to data for the viewer: queries and hits, emails read, answer and true answer."""

from __future__ import annotations

import json
import re
import sqlite3
from itertools import takewhile, zip_longest

from art_nb.environments import clean
from email_search.environment import I_DONT_KNOW, OVER, TOOLS, same_answer
from email_search.mailbox import fts_query
from email_search.players import STOP_WORDS

READ, ANSWER, SEARCH = (tool["function"]["name"] for tool in TOOLS)  # TOOLS is sorted by name
OUTCOMES = ("correct", "wrong", "gave_up", "out_of_turns", "malformed")
QUESTION = re.compile(r"Inbox: (?P<inbox>.*)\nToday: (?P<today>.*)\n(?P<question>(?s:.*))")
NOTHING = "No mail fits."
REFUSALS = {"Malformed:": "malformed", "Refused:": "refused", "There is no mail ": "no such mail", OVER: "too late"}


def mail_view(record: dict) -> dict | None:
    """Return the view of a trajectory record, or None for a record of another task.

    A record is of this task if it calls one of its tools, or has the sources of the true answer in its metadata.

    Returns: {"question", "inbox", "today", "truth": str, "truth_sources": [id], "outcome": one of OUTCOMES or "answered",
      "answer": str or None, "sources": [id], "steps": [step]}.
      step: {"turn", "result": indices of the turns (result: or None), "name": of the tool, "given": [[argument, value]],
      "fault": why the call was not carried out, or "", "note": the observation if it is neither hits nor an email,
      "hits": [{"id", "date", "sender", "subject", "snippet"}] or None, "mail": {"id", "headers": [[name, pieces]], "body"}
      or None}. Subject, snippet and body are lists of pieces: a string, or [string, "query" or "question"] for a word of
      the last query or of the question, in any grammatical form that a search finds.
    """
    metadata, turns = record.get("metadata") or {}, record["turns"]
    names = {call["name"] for turn in turns for call in turn.get("tool_calls") or []}
    if not names & {SEARCH, READ, ANSWER} and "truth_sources" not in metadata:
        return None
    first_message = next((turn["content"] or "" for turn in turns if turn["role"] == "user"), "")
    found = QUESTION.fullmatch(first_message)
    view = found.groupdict() if found else {"question": first_message, "inbox": "", "today": ""}
    steps = _steps(turns, _Marker(view["question"]))
    answered = next((dict(step["given"]) for step in reversed(steps) if step["name"] == ANSWER and not step["fault"]), {})
    answer, sources = answered.get("answer"), answered.get("sources", [])
    view |= {
        "truth": str(metadata.get("truth", "")), "truth_sources": str(metadata.get("truth_sources", "")).split(),
        "answer": " ".join(answer) if isinstance(answer, list) else answer,
        "sources": [sources] if isinstance(sources, str) else sources, "steps": steps,
    }  # fmt: skip
    return view | {"outcome": _outcome(view, record.get("metrics") or {})}


def mail_lines(view: dict) -> list[str]:
    """Return the view as lines of text: the question, each step, the answer and the true answer."""
    lines = [_plain(view["question"])]
    for step in view["steps"]:
        given = "  ".join(f"{_plain(name)}: {_plain(value)}" for name, value in step["given"])
        shown = step["fault"] or (f"{len(step['hits'])} hits" if step["hits"] is not None else "")
        if step["mail"]:
            shown = next((_plain(_text(pieces)) for name, pieces in step["mail"]["headers"] if name == "subject"), "")
        if step["name"] != ANSWER or step["fault"]:
            lines.append(f"  {_plain(step['name']) or 'no call'}  {given}" + (f"  → {shown}" if shown else ""))
    answer = "none" if view["answer"] is None else _plain(view["answer"])
    return [*lines, f"{view['outcome'].replace('_', ' ')}: {answer}   (truth: {_plain(view['truth'])})"]


def _plain(value) -> str:
    return " ".join(clean(str(value)).split())[:90]


def _text(pieces: list) -> str:
    return "".join(piece if isinstance(piece, str) else piece[0] for piece in pieces)


def _outcome(view: dict, metrics: dict) -> str:
    """Return the outcome in the metrics; for a trajectory without metrics, derive it by the same rules."""
    if counted := [name for name in OUTCOMES if metrics.get(name) == 1]:
        return counted[0]
    if view["answer"] is None:
        return "malformed" if any(step["fault"] == "malformed" for step in view["steps"]) else "out_of_turns"
    if same_answer(view["answer"], I_DONT_KNOW):
        return "gave_up"
    return "answered" if not view["truth"] else "correct" if same_answer(view["answer"], view["truth"]) else "wrong"


def _steps(turns: list[dict], marker: _Marker) -> list[dict]:
    steps = []
    for i, turn in enumerate(turns):
        if turn["role"] != "assistant":
            continue
        calls = turn.get("tool_calls") or [None]
        results = list(takewhile(lambda j: turns[j]["role"] == "tool", range(i + 1, len(turns))))[: len(calls)]
        for call, j in zip_longest(calls, results):
            result = None if j is None else turns[j]["content"] or ""
            text = turn["content"] or ""
            steps.append({"turn": i, "result": j, **(_step(call, result, marker) if call else _without_a_call(text))})
    return steps


def _without_a_call(text: str) -> dict:
    return {"name": "", "given": [], "fault": "malformed", "note": text, "hits": None, "mail": None}


def _step(call: dict, result: str | None, marker: _Marker) -> dict:
    given = _arguments(call["arguments"])
    if call["name"] == SEARCH:
        marker.query = " ".join(str(value) for name, value in given if name == "keywords")
    step = {"name": call["name"], "given": given, "fault": "", "note": "", "hits": None, "mail": None}
    if result is None:
        return step
    hits = [_hit(line, marker) for line in result.split("\n")] if call["name"] == SEARCH and result != NOTHING else []
    if call["name"] == SEARCH and all(hits):
        return step | {"hits": hits}
    if call["name"] == READ and result.partition("\n")[2].startswith("from: "):
        return step | {"mail": _mail(result, marker)}
    fault = next((kind for start, kind in REFUSALS.items() if result.startswith(start)), "")
    return step | {"fault": fault, "note": result}


def _arguments(text: str | dict) -> list[list]:
    """Return the arguments as [name, value], each value a string or a list of strings; if not a JSON object, one string."""
    try:
        given = (json.loads(text) if isinstance(text, str) else text).items()
        return [[name, list(map(_as_text, value)) if isinstance(value, list) else _as_text(value)] for name, value in given]
    except (AttributeError, ValueError, RecursionError):
        return [["arguments", _as_text(text)]]


def _as_text(value) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _hit(line: str, marker: _Marker) -> dict | None:
    """Parse a search result, `ID DAY SENDER: SUBJECT | SNIPPET`; None for other text."""
    message_id, date, rest = (*line.split(" ", 2), "", "")[:3]
    head, bar, snippet = rest.rpartition(" | ")
    sender, colon, subject = head.partition(": ")
    if not (bar and colon and re.fullmatch(r"(\d{4}-\d\d-\d\d)?", date)):
        return None
    found = {"id": message_id, "date": date, "sender": sender}
    return found | {"subject": marker.pieces(subject), "snippet": marker.pieces(snippet)}


def _mail(page: str, marker: _Marker) -> dict:
    head, _, body = page.partition("\n\n")
    message_id, *lines = head.split("\n")
    headers = [line.partition(": ")[::2] for line in lines]
    marked = [[name, marker.pieces(value) if name == "subject" else [value]] for name, value in headers]
    return {"id": message_id, "headers": marked, "body": marker.pieces(body)}


class _Marker:
    """Find words of the question and of the last query in a text, with the tokenizer of the mailbox's index.

    query: the keywords of the last search.
    """

    def __init__(self, question: str):
        self.query = ""
        self._question = " ".join(word for word in re.findall(r"\w+", question) if word.lower() not in STOP_WORDS)
        self._index = sqlite3.connect(":memory:")
        self._index.execute("CREATE VIRTUAL TABLE text USING fts5(body, tokenize='porter unicode61')")

    def pieces(self, text: str) -> list:
        """Split the text into pieces (see `mail_view`); their concatenation is the cleaned text."""
        text = clean(text).translate({1: "\ufffd", 2: "\ufffd"})  # the markers of `highlight`
        self._index.execute("DELETE FROM text")
        self._index.execute("INSERT INTO text VALUES (?)", (text,))
        spans = [(*span, "query") for span in self._spans(self.query)]
        taken = {i for start, end, _ in spans for i in range(start, end)}
        spans += [(*span, "question") for span in self._spans(self._question) if not taken & set(range(*span))]
        pieces, at = [], 0
        for start, end, kind in sorted(spans):
            pieces += [text[at:start], [text[start:end], kind]]
            at = end
        return [piece for piece in (*pieces, text[at:]) if piece]

    def _spans(self, words: str) -> list[tuple[int, int]]:
        """Return the (start, end) of each match of any of the words, in characters."""
        match = " OR ".join(filter(None, map(fts_query, dict.fromkeys(words.split()))))
        query = "SELECT highlight(text, 0, char(1), char(2)) FROM text WHERE text MATCH ?"
        found = self._index.execute(query, (match,)).fetchone() if match else None
        marks = [mark.start() - i for i, mark in enumerate(re.finditer("[\1\2]", found[0]))] if found else []
        return list(zip(marks[::2], marks[1::2], strict=True))
