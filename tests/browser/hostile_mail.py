"""A small mailbox full of hostile text, and trajectories of real searches in it with every kind of ending."""

from __future__ import annotations

import json
from pathlib import Path

import synthetic

import art_nb as art
from email_search import I_DONT_KNOW, EmailSearch, first_message
from email_search.mailbox import Address, Mail, Mailbox, write_mailbox
from email_search.scenarios import Scenario

HOSTILE = synthetic.HOSTILE
LINK = '<a href="javascript:window.hacked=1">here</a> <iframe src="javascript:top.hacked=1"></iframe> javascript:window.hacked=1'
LONG = "x" * 10_000  # without a space, so it can't be wrapped at one
TURNED = "\u202eTURNED"  # the preceding mark makes the rest of the paragraph run from right to left
OUTCOMES = ("correct", "wrong", "gave_up", "out_of_turns", "malformed")
SEARCH, READ, ANSWER = "search_emails", "read_email", "return_final_answer"

ANN, BOB, EVE = Address("Ann Lee", "ann@x.example"), Address("Bob Ray", "bob@x.example"), Address(f"{TURNED} <b>Eve</b>", "eve@x.example")
MAILS = [
    ("m1", BOB, "Falcon review " + HOSTILE, f"Hi Ann,\nthe Falcon reviews: 14 May.\n{HOSTILE}\n{LINK}\nBob", ()),
    ("m2", EVE, f"Falcon {TURNED}", f"{TURNED} review\n" + "A line of the mail.\n" * 60, (TURNED, "a.pdf")),
    ("m3", BOB, f"Falcon review {LONG}", f"{LONG} falcon {LONG}", (LONG,)),
    ("m4", EVE, LINK, f"Falcon review \x01\x02\x0b {HOSTILE}", ()),
]  # fmt: skip
QUESTION = f"When is the Falcon review? {HOSTILE} {TURNED}"
SCENARIO = Scenario("t-0", "test", QUESTION, "14 May", ("m1",), ANN.address, "2024-04-01")


def mailbox(folder: Path) -> Mailbox:
    """Return the mailbox, written to `folder` if it does not exist."""
    if not Path(folder).exists():
        write_mailbox(folder, [Mail(key, f"2024-03-0{i} 10:00", sender, (ANN,), subject, body, attachments=names, inboxes=(ANN.address,))
                               for i, (key, sender, subject, body, names) in enumerate(MAILS, start=1)])  # fmt: skip
    return Mailbox(folder)


def recorded(box: Mailbox, scenario: Scenario, *calls, index: int = 0, **metadata) -> dict:
    """Return the record of these calls: (tool, arguments as JSON or as an object), or (None, an answer without a call)."""
    search, turns = EmailSearch(box, scenario), [{"role": "user", "content": first_message(scenario)}]
    for i, (name, given) in enumerate(calls):
        written = given if isinstance(given, str) else json.dumps(given)
        result = search.call(name, written)
        if name is None:
            turns.append({"role": "assistant", "content": written})
            continue
        call = {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": written}}
        turns += [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": call["id"], "content": result}]
    metadata |= {"truth": scenario.answer, "truth_sources": " ".join(scenario.sources)}
    metrics = search.metrics() if calls else {}
    played = art.Trajectory(messages_and_choices=turns, reward=search.reward(), metrics=metrics, metadata=metadata)
    return played.record(step=1, index=index)


FALCON, READ_1, END = (SEARCH, {"keywords": "falcon review"}), (READ, {"message_id": "m1"}), (ANSWER, {"answer": "14 May", "sources": ["m1"]})
SCRIPTS = [
    (FALCON, READ_1, (READ, {"message_id": "m2"}), END),
    (FALCON, (READ, {"message_id": "m2"}), (READ, {"message_id": "m3"}),
     (ANSWER, {"answer": f"{TURNED} {HOSTILE}", "sources": ["m3", "m1", TURNED, HOSTILE, LONG]})),
    ((SEARCH, {"keywords": "zeppelin"}), (READ, {"message_id": f"m9{HOSTILE}"}), (SEARCH, {"sort": HOSTILE, "keywords": LONG[:300]}),
     (ANSWER, {"answer": "", "sources": []}), (ANSWER, {"answer": I_DONT_KNOW, "sources": []})),
    (FALCON, ("toString", {TURNED: "value", LONG: HOSTILE}), FALCON),
    (FALCON, (None, f"{HOSTILE} {TURNED}\n{LONG}")),
    ((SEARCH, {"keywords": "bob"}),) * 9 + ((READ, {"message_id": "m4"}),),
    (),
]  # fmt: skip


def records(folder: Path) -> list[dict]:
    """Return one trajectory for each of SCRIPTS, and one of another task."""
    box = mailbox(folder)
    played = [recorded(box, SCENARIO, *calls, index=i, seen=TURNED, noted=HOSTILE) for i, calls in enumerate(SCRIPTS)]
    return [*played, synthetic.talk_record(len(played))]


def kind(record: dict) -> str:
    """Return how the search ended; a long hostile name if the record does not contain it."""
    return next((name for name in OUTCOMES if record["metrics"].get(name)), f"{HOSTILE} {LONG}")
