"""Write email_search's data, the made-up emails and the questions about them: `python -m data mailbox` (takes seconds)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from data.item import write_item, write_text
from email_search.mailbox import DATA, Mail, save_mails
from email_search.scenarios import Scenario, save_scenarios
from environments.email_search.maker.check import problems
from environments.email_search.maker.maker import make


def build(folder: Path = DATA, seed: int = 0) -> dict:
    """Make and check emails and scenarios and write them to `folder`, whole or not at all. Returns the facts of the card.

    Raises: ValueError for an unsound scenario, see check.py.
    """
    mails, scenarios = make(seed)
    if found := problems(mails, scenarios):
        raise ValueError(f"the scenarios have {len(found)} faults; the first: {found[0]}; correct maker.py or words.py")
    facts = describe(mails, scenarios) | {"seed": seed}

    def fill(new: Path) -> None:
        save_mails(new / "mails.jsonl.gz", mails)
        save_scenarios(new / "scenarios.jsonl", scenarios)
        write_text(new / "README.md", CARD.format(**facts))

    write_item(folder, fill)
    return facts


def describe(mails: Sequence[Mail], scenarios: Sequence[Scenario]) -> dict:
    """Return the numbers of the card."""
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

{mails:,} emails of a company that does not exist, from {first} to {last}, and questions about them. Everything is
invented: no name, address or text is from a real mailbox.

Made by `python -m data mailbox` (maker/build.py; maker.py makes the emails from words.py) from seed {seed}.

| | |
| --- | --- |
| people with an inbox | {people}; {smallest} to {largest} emails in each |
| replies / forwards | {replies:,} / {forwards:,}, each quoting the email that it answers or forwards |
| questions | {questions} |
| kinds of answer | {kinds} |
| questions for the first value of something that changed later | {changed} |

- `mails.jsonl.gz`: one email per line, by date. On first use `email_search.course_mailbox()` builds an SQLite database with
  a full-text index from it, in the user's cache folder.
- `scenarios.jsonl`: one question per line, with its answer and the ids of all emails in the user's inbox
  that are about the question and contain the answer.

The people of train, val and test work in three offices that send each other no mail with facts, and no two questions ask
for the same fact (a project and topic, sometimes with a month or a sender). Each answer is in the body of its sources,
after the part that a search result shows. No other email in the inbox about the same thing contains it. If a value has
changed, the question asks for the final one or explicitly for the first. maker/check.py verifies questions, answers, sources
and splits from the finished emails. It shares only the patterns of values with the maker, and does not check the mail
between offices.

SHA256SUMS lists the files' hashes. Licence: Apache-2.0.
"""
