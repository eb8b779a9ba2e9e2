"""Latency of searches in one inbox with 500,000 emails.

`python -m benchmarks.mailbox [--mails 500000]` prints one JSON line: `median_ms` and `p95_ms` over searches of eight
kinds, each kind's median in `shapes_ms`, the slowest possible searches in `worst_ms` (not included in the median), the
same for emails spread over thirty inboxes (`shared_`), and the latency of reading one email. The emails are from the
course's generator, with as many seeds as needed.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from statistics import median, quantiles

from benchmarks.result import print_result, say
from email_search.mailbox import Mail, Mailbox, write_mailbox
from environments.email_search.maker import words
from environments.email_search.maker.maker import EVERYONE, address_of, make

ME = "me@ridge.example"
LOST = "no such words anywhere here"
WORST = {"word_of_every_mail": {"keywords": "hi"}, "from_nobody": {"sender": "nobody at all"}}


def many_mails(number: int, one_inbox: bool) -> Iterator[Mail]:
    """Yield `number` generated emails, renumbered; all in the inbox ME, or in their own inboxes."""
    mails = (mail for seed in count() for mail in make(seed)[0])
    for key, mail in enumerate(islice(mails, number)):
        yield replace(mail, message_id=f"m{key}", inboxes=(ME,) if one_inbox else mail.inboxes)


def shapes(rng: random.Random) -> dict[str, Callable[[], dict]]:
    """Return for each kind of search a function that returns random arguments of `Mailbox.search`."""
    name, topic = lambda: rng.choice(words.NAMES), lambda: rng.choice([*words.EVENTS, *words.PAPERS])  # noqa: E731
    person = lambda: rng.choice(EVERYONE)  # noqa: E731
    return {
        "two_words": lambda: {"keywords": f"{name()} {topic()}"},
        "two_words_newest": lambda: {"keywords": f"{name()} {topic()}", "sort": "newest"},
        "two_words_in_a_month": lambda: {
            "keywords": f"{name()} {topic()}", "after": "2024-03-01", "before": "2024-04-01",
        },
        "two_words_from": lambda: {"keywords": f"{name()} {topic()}", "sender": person()},
        "one_word": lambda: {"keywords": name()},
        "from": lambda: {"sender": person()},
        "to_in_a_month": lambda: {"recipient": person(), "after": "2023-05-01", "before": "2023-06-01"},
        "no_hit": lambda: {"keywords": f"{name()} {LOST}"},
    }  # fmt: skip


def search_times(box: Mailbox, inboxes: list[str], repeats: int) -> dict:
    """Return milliseconds of `repeats` searches of each kind, after a few that warm up the disk cache."""
    rng = random.Random(0)
    times: dict[str, list[float]] = {}
    for name, draw in shapes(rng).items():
        for arguments in [draw() for _ in range(repeats + 3)]:
            inbox = rng.choice(inboxes)
            started = time.perf_counter()
            box.search(inbox, **arguments, limit=4)
            times.setdefault(name, []).append(1000 * (time.perf_counter() - started))
        times[name] = times[name][3:]
    everything = [ms for found in times.values() for ms in found]
    worst = {}
    for name, arguments in WORST.items():
        started = time.perf_counter()
        box.search(inboxes[0], **arguments, limit=4)
        worst[name] = 1000 * (time.perf_counter() - started)
    return {
        "median_ms": median(everything), "p95_ms": quantiles(everything, n=20)[-1],
        "shapes_ms": {name: median(found) for name, found in times.items()}, "worst_ms": worst,
    }  # fmt: skip


def measure(mails: int, repeats: int) -> dict:
    """Measure one inbox, then thirty."""
    result: dict = {"mails": mails, "searches": repeats * len(shapes(random.Random()))}
    for prefix, one_inbox in (("", True), ("shared_", False)):
        with tempfile.TemporaryDirectory() as folder:
            say(f"writing {mails:,} emails")
            started = time.perf_counter()
            write_mailbox(Path(folder) / "box", many_mails(mails, one_inbox))
            result[f"{prefix}write_s"] = time.perf_counter() - started
            box = Mailbox(Path(folder) / "box")
            say("searching")
            inboxes = [ME] if one_inbox else [address_of(name).address for name in EVERYONE]
            result |= {prefix + key: value for key, value in search_times(box, inboxes, repeats).items()}
            if one_inbox:
                result["read_ms"] = read_time(box, mails, repeats)
    return result


def read_time(box: Mailbox, mails: int, repeats: int) -> float:
    rng, times = random.Random(0), []
    for _ in range(repeats):
        started = time.perf_counter()
        box.read(ME, f"m{rng.randrange(mails)}")
        times.append(1000 * (time.perf_counter() - started))
    return median(times)


def main() -> None:
    """Run the command line above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mails", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=50, help="searches of each kind")
    a = parser.parse_args()
    print_result("mailbox", lambda: measure(a.mails, a.repeats))


if __name__ == "__main__":
    main()
