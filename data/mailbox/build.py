"""Writes data/mailbox, the made-up mails and the questions about them: `python -m data mailbox` (seconds)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from art_nb.tasks.email_search.mailbox import DATA, Mail, save_mails
from art_nb.tasks.email_search.scenarios import Scenario, save_scenarios
from data.item import write_item, write_text
from data.mailbox.check import problems
from data.mailbox.maker import make


def build(folder: Path = DATA, seed: int = 0) -> dict:
    """Make mails and scenarios, check them, and write them to `folder`, whole or not at all. Returns the card's facts.

    Raises: ValueError when a scenario is not sound.
    """
    mails, scenarios = make(seed)
    if found := problems(mails, scenarios):
        raise ValueError(f"{len(found)} faults in the scenarios; the first: {found[0]}")
    facts = describe(mails, scenarios) | {"seed": seed}

    def fill(new: Path) -> None:
        save_mails(new / "mails.jsonl.gz", mails)
        save_scenarios(new / "scenarios.jsonl", scenarios)
        write_text(new / "README.md", CARD.format(**facts))

    write_item(folder, fill)
    return facts


def describe(mails: Sequence[Mail], scenarios: Sequence[Scenario]) -> dict:
    """The numbers of the card."""
    inboxes = Counter(inbox for mail in mails for inbox in mail.inboxes)
    asked = Counter(scenario.split for scenario in scenarios)
    askers = {split: len({s.inbox for s in scenarios if s.split == split}) for split in asked}
    return {
        "mails": len(mails), "first": mails[0].date[:10], "last": mails[-1].date[:10], "people": len(inboxes),
        "smallest": min(inboxes.values()), "largest": max(inboxes.values()),
        "replies": sum(mail.subject.startswith("Re: ") for mail in mails),
        "forwards": sum(mail.subject.startswith("Fwd: ") for mail in mails),
        "questions": ", ".join(f"{split} {count} (from {askers[split]} people)" for split, count in asked.items()),
        "kinds": ", ".join(f"{kind} {count}" for kind, count in sorted(Counter(s.kind for s in scenarios).items())),
        "changed": sum(len(s.about) > 1 and s.which == "first" for s in scenarios),
    }  # fmt: skip


CARD = """\
---
license: apache-2.0
---
# The made-up mailbox

{mails:,} mails of a company that does not exist, from {first} to {last}, and questions about them. Everything is
invented: no name, address or text is from a real mailbox.

Made by `python -m data mailbox` (data/mailbox/maker.py; its words are in words.py) from seed {seed}.

| | |
| --- | --- |
| people with an inbox | {people}; {smallest} to {largest} mails in each |
| replies / forwards | {replies:,} / {forwards:,}, each quoting the mail before |
| questions | {questions} |
| what they ask for | {kinds} |
| of these, for the first value of something that changed later | {changed} |

- `mails.jsonl.gz`: one mail a line, by date; `art_nb.tasks.email_search.course_mailbox()` makes an SQLite database with a
  full-text index of it, in the user's cache folder, on first use.
- `scenarios.jsonl`: one question a line, with its answer and the ids of all mails in the asker's inbox that show it.

The people of train, val and test are three offices that write each other no mail about facts; nor is a fact (a project
and topic, for some also a month or a sender) asked for twice. Each answer stands in the body of its sources beyond what a
search shows of them. No other mail of the inbox that is about the same thing shows it. Where something has moved, the
question asks for its final value, or says that it wants the first. data/mailbox/check.py finds all this from the
finished mails, without knowing how they were made.

SHA256SUMS lists the files' hashes. Licence: Apache-2.0, as all of the project.
"""
