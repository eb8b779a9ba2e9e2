"""The mail store compared with brute force, and the generated mailbox: valid scenarios, by a checker that can fail."""

import gzip
import json
import math
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import mailbox as benchmark
from email_search import mailbox as store
from email_search.mailbox import DATA, Address, Mail, Mailbox
from email_search.scenarios import load_scenarios, scenarios
from environments.email_search.maker import build as mailbox_build
from environments.email_search.maker import check as mailbox_check
from environments.email_search.maker import maker as mailbox_maker
from environments.email_search.maker import words as mailbox_words

PEOPLE = [Address("Ann Lee", "ann@a.example"), Address("Bob Ray", "bob@b.example"), Address("Zoë Ann", "zoe@a.example")]
WORDS = ["gas", "lamp", "12", "fern", "oslo"]  # each word is its own stem

people = st.sampled_from(PEOPLE)
texts = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
dates = st.dates(date(2024, 1, 1), date(2024, 1, 9)).map(lambda day: f"{day} 09:30")


@st.composite
def letters(draw):
    mails = []
    for number in range(draw(st.integers(1, 12))):
        sender, to, cc = draw(people), draw(st.lists(people, min_size=1, max_size=2)), draw(st.lists(people, max_size=1))
        inboxes = tuple(dict.fromkeys(person.address for person in (sender, *to, *cc)))
        mail = Mail(f"m{number}", draw(dates), sender, tuple(dict.fromkeys(to)), draw(texts), draw(texts), tuple(cc))
        mails.append(replace(mail, inboxes=inboxes, attachments=tuple(draw(st.lists(texts, max_size=2)))))
    return mails


def test_an_inbox_is_found_in_any_spelling_of_its_address(tmp_path):
    mail = Mail("m1", "2024-01-01 09:00", PEOPLE[0], (PEOPLE[1],), "gas", "lamp", inboxes=("Ann@A.example", "jo@straße.example"))
    store.write_mailbox(tmp_path / "box", [mail])
    mailbox = Mailbox(tmp_path / "box")
    for inbox in ("Ann@A.example", "ann@a.EXAMPLE", "jo@straße.example", *mailbox.inboxes()):
        assert [hit.message_id for hit in mailbox.search(inbox, "gas")] == ["m1"] and mailbox.read(inbox, "m1") and [*mailbox.mails(inbox)]


def fits(mail: Mail, inbox, keywords, sender, recipient, after, before) -> bool:
    def named(part, who):
        return any(part.lower() in f"{person.name} {person.address}".lower() for person in who)

    found = set(f"{mail.subject} {mail.body}".split())
    return (
        inbox in mail.inboxes and set(keywords.split()) <= found and (not sender or named(sender, [mail.sender]))
        and (not recipient or named(recipient, [*mail.to, *mail.cc]))
        and (not after or date.fromisoformat(mail.date[:10]) >= date.fromisoformat(after))
        and (not before or date.fromisoformat(mail.date[:10]) < date.fromisoformat(before))
    )  # fmt: skip


days = st.one_of(st.just(""), st.dates(date(2024, 1, 1), date(2024, 1, 9)).map(str))
parts = st.sampled_from(["", "", "ann", "A.example", "BOB", "zoë", "nobody"])


@settings(max_examples=25, deadline=None)
@given(letters(), st.lists(st.tuples(people, texts, parts, parts, days, days), min_size=10, max_size=30))
def test_search_and_read_equal_the_brute_force(tmp_path_factory, mails, questions):
    folder = tmp_path_factory.mktemp("box")
    store.write_mailbox(folder / "box", mails)
    box = Mailbox(folder / "box")
    for person, keywords, sender, recipient, after, before in questions:
        where = {"sender": sender, "recipient": recipient, "after": after, "before": before}
        expected = [mail for mail in mails if fits(mail, person.address, keywords, *where.values())]
        for sort in store.SORTS:
            hits = box.search(person.address, keywords, **where, sort=sort, limit=100)
            assert sorted(hit.message_id for hit in hits) == sorted(mail.message_id for mail in expected)
            if sort != "relevance":
                order = [hit.date for hit in hits]
                assert order == sorted(order, reverse=sort == "newest")
            assert hits[:2] == box.search(person.address, keywords, **where, sort=sort, limit=2)
    for person in PEOPLE:
        own = [mail for mail in mails if person.address in mail.inboxes]
        read = [box.read(person.address, mail.message_id) for mail in mails]
        assert [mail for mail in read if mail] == [replace(mail, inboxes=()) for mail in own]
        assert sorted(mail.message_id for mail in box.mails(person.address)) == sorted(mail.message_id for mail in own)


def bm25(mails, words, k1=1.2, b=0.75, weights=(2.0, 1.0)):
    """Okapi BM25 as SQLite's manual states it: a word in the subject counts double."""
    texts = [(mail.subject.split(), mail.body.split()) for mail in mails]
    mean = sum(len(subject) + len(body) for subject, body in texts) / len(texts)
    scores = []
    for subject, body in texts:
        score = 0.0
        for word in words:
            holding = sum(word in s + t for s, t in texts)
            idf = max(1e-6, math.log((len(texts) - holding + 0.5) / (holding + 0.5)))
            often = weights[0] * subject.count(word) + weights[1] * body.count(word)
            score += idf * often * (k1 + 1) / (often + k1 * (1 - b + b * (len(subject) + len(body)) / mean))
        scores.append(score)
    return scores


def test_relevance_is_bm25(tmp_path):
    rng = random.Random(0)
    draw = lambda n: " ".join(rng.choice([*WORDS, *map(str, range(100, 130))]) for _ in range(n))  # noqa: E731
    mails = [
        Mail(f"m{i}", f"2024-01-01 {i // 60:02d}:{i % 60:02d}", PEOPLE[0], (PEOPLE[1],), draw(3), draw(rng.randint(3, 40)),
             inboxes=("ann@a.example",)) for i in range(300)
    ]  # fmt: skip
    store.write_mailbox(tmp_path / "box", mails)
    for words in (["gas"], ["gas", "lamp"], ["gas", "lamp", "fern"]):
        scores = dict(zip((mail.message_id for mail in mails), bm25(mails, words), strict=True))
        hits = Mailbox(tmp_path / "box").search("ann@a.example", " ".join(words), limit=300)
        expected = sorted((scores[hit.message_id] for hit in hits), reverse=True)
        assert len(hits) > 2 and [scores[hit.message_id] for hit in hits] == pytest.approx(expected)


def test_words_match_other_forms_and_nothing_is_an_operator(tmp_path):
    bodies = ["the reviews were moved", "a café in Zürich", "back-up AND restore", "he said \"go\" to them"]
    mails = [Mail(f"m{i}", "2024-01-01 09:00", PEOPLE[0], (), "", body, inboxes=("a@b",)) for i, body in enumerate(bodies)]
    store.write_mailbox(tmp_path / "box", mails)
    box = Mailbox(tmp_path / "box")
    expected = {"Review": [0], "CAFE zurich": [1], "back-up": [2], "and": [2], "back NOT restore": [], "subject:café": [],
                'said "go"': [3], 'said "go': [3], "go*": [3], "-": [], "café OR back": [], "back NEAR(restore)": []}  # fmt: skip
    assert {query: [int(h.message_id[1:]) for h in box.search("a@b", query)] for query in expected} == expected


@settings(deadline=None)
@given(st.text(max_size=120))
def test_a_snippet_is_a_short_beginning(text):
    snippet = store.snippet(text)
    assert len(snippet) <= store.SNIPPET_LENGTH
    assert " ".join(text.split()).startswith(snippet)
    assert bool(snippet) == bool(text.split())


def test_a_mailbox_is_replaced_atomically(tmp_path):
    mail = Mail("m1", "2024-01-01 09:00", PEOPLE[0], (), "old", "", inboxes=("a@b",))
    store.write_mailbox(tmp_path / "box", [mail])

    def broken():
        yield replace(mail, subject="new")
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="gone"):
        store.write_mailbox(tmp_path / "box", broken())
    assert Mailbox(tmp_path / "box").read("a@b", "m1").subject == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["box"]
    with pytest.raises(FileNotFoundError, match="no mailbox"):
        Mailbox(tmp_path / "nothing")


def test_an_open_mailbox_is_read_only(tmp_path):
    store.write_mailbox(tmp_path / "box", [])
    with pytest.raises(Exception, match="readonly"):
        Mailbox(tmp_path / "box")._database.execute("DELETE FROM emails")


@settings(max_examples=8, deadline=None)
@given(letters())
def test_saved_mails_load_again(tmp_path_factory, mails):
    path = tmp_path_factory.mktemp("mails") / "mails.jsonl.gz"
    store.save_mails(path, mails)
    assert list(store.load_mails(path)) == mails


def test_the_course_mailbox_is_built_once_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built = []
    monkeypatch.setattr(store, "write_mailbox", lambda *a, write=store.write_mailbox: built.append(a) or write(*a))
    first = store.course_mailbox.__wrapped__()
    again = store.course_mailbox.__wrapped__()
    assert len(built) == 1 and first.inboxes() == again.inboxes()
    monkeypatch.setattr(store, "SCHEMA", store.SCHEMA + "\n")
    store.course_mailbox.__wrapped__()
    assert len(built) == 2  # a database with another schema is rebuilt
    folder = built[-1][0]
    (folder / "mail.sqlite").unlink()  # as a cleaner of caches does, which leaves the folder
    assert store.course_mailbox.__wrapped__().inboxes() == first.inboxes() and len(built) == 3


@pytest.fixture(scope="module")
def made():
    return mailbox_maker.make(0)


def test_the_committed_files_are_reproduced(tmp_path):
    """test_data.py compares their hashes."""
    mailbox_build.build(tmp_path / "made")
    made = {path.name for path in (tmp_path / "made").iterdir()}
    assert made == {"README.md", "mails.jsonl.gz", "scenarios.jsonl", "SHA256SUMS"}
    for name in ("README.md", "scenarios.jsonl"):
        assert (tmp_path / "made" / name).read_bytes() == (DATA / name).read_bytes()
    # the compressed bytes depend on zlib's version
    mails, committed = (gzip.decompress((folder / "mails.jsonl.gz").read_bytes()) for folder in (tmp_path / "made", DATA))
    assert mails == committed
    assert sum((DATA / name).stat().st_size for name in made) < 10_000_000


def test_a_mailbox_depends_on_its_seed_and_not_on_the_hash_seed():
    code = (
        "import hashlib; from environments.email_search.maker.maker import make; print(hashlib.sha256(repr(make(3)).encode()).hexdigest())"
    )
    found = {
        subprocess.check_output([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}) for seed in ("1", "2")
    }
    assert len(found) == 1
    assert mailbox_maker.make(3) != mailbox_maker.make(4)


def test_the_mailbox_is_as_large_and_as_varied_as_a_real_one(made):
    mails, found = made
    by_id = {mail.message_id: mail for mail in mails}
    assert len(by_id) == len(mails) >= 5000
    assert len({inbox for mail in mails for inbox in mail.inboxes}) >= 20
    assert [mail.date for mail in mails] == sorted(mail.date for mail in mails)
    assert mails[0].date < "2023-01-15" and mails[-1].date > "2024-12-01"
    replies = [mail for mail in mails if mail.subject.startswith("Re: ")]
    for mail in replies:
        parent = by_id[mail.in_reply_to]
        assert parent.date <= mail.date and mailbox_check.own_text(parent.body).split()[-1] in mail.body
        assert mail.sender.address in parent.inboxes
    assert sum(by_id[mail.in_reply_to].in_reply_to != "" for mail in replies) > 100  # threads of three or more mails
    counts = {
        "replies": len(replies), "quotes": sum("\n> " in mail.body for mail in mails), "cc": sum(bool(mail.cc) for mail in mails),
        "forwards": sum(mail.subject.startswith("Fwd: ") and "Forwarded message" in mail.body for mail in mails),
        "attachments": sum(bool(mail.attachments) for mail in mails),
        "lists": sum(len(mail.inboxes) > len(mail.to) + len(mail.cc) + 1 for mail in mails),
        "again": sum(n - 1 for n in Counter(mail.body for mail in mails).values()),
    }  # fmt: skip
    assert all(count >= 50 for count in counts.values()), counts
    masked = Counter(re.sub(r"\d+|[A-Z]\w+", "_", mail.body) for mail in mails if "\n>" not in mail.body and len(mail.body) > 100)
    assert sum(count - 1 for count in masked.values()) > 100  # near-duplicates: the same words with other names and numbers
    assert {split: sum(s.split == split for s in found) for split in ("train", "val", "test")} == {
        "train": len(scenarios("train")), "val": 120, "test": 240,
    }  # fmt: skip
    assert len(scenarios("train")) >= 1000
    assert sum(s.which == "first" for s in found) > 100


def test_observations_are_short_and_use_few_words(made):
    mails, found = made
    assert max(len(mail.body) for mail in mails) < 1200
    words = {word.lower() for mail in mails for word in re.findall(r"[A-Za-z]+", f"{mail.subject} {mail.body}")}
    words |= {word.lower() for s in found for word in re.findall(r"[A-Za-z]+", s.question)}
    assert len(words) < 700
    assert all(re.fullmatch(r"m\d{4}", mail.message_id) for mail in mails)


def test_splits_share_no_person_and_no_fact(made):
    mails, found = made
    askers = {split: {s.inbox for s in found if s.split == split} for split in ("train", "val", "test")}
    assert sum(map(len, askers.values())) == len(set.union(*askers.values())) == 30
    by_id = {mail.message_id: mail for mail in mails}
    everyone = {split: {i for s in found if s.split == split for m in s.sources for i in by_id[m].inboxes} for split in askers}
    assert all(not everyone[a] & everyone[b] for a, b in (("train", "val"), ("train", "test"), ("val", "test")))
    assert len({s.question for s in found if not s.sender}) > 0.99 * sum(not s.sender for s in found)


def test_the_checker_accepts_every_scenario(made):
    assert mailbox_check.problems(*made) == []


def test_every_kind_of_value_has_a_distinct_pattern(made):
    for s in made[1]:
        fitting = [kind for kind, described in mailbox_words.KINDS.items() if described.pattern.fullmatch(s.answer)]
        assert fitting == [s.kind]


def broken(made, change):
    """Return the checker's complaints about a valid scenario after `change(scenario, mails of its inbox)`."""
    mails, found = made
    s = next(s for s in found if s.kind == "amount" and s.which == "final" and len(s.sources) == 1)
    inbox = [mail for mail in mails if s.inbox in mail.inboxes]
    assert list(mailbox_check.problems_of(s, inbox)) == []
    return " ".join(mailbox_check.problems_of(*change(s, inbox)))


def edited(inbox, message_id, **changes):
    return [replace(mail, **changes) if mail.message_id == message_id else mail for mail in inbox]


def source(s, inbox):
    return next(mail for mail in inbox if mail.message_id == s.sources[0])


def copy(s, inbox, body=None, date="2024-12-31 10:00", **changes):
    """Return a copy of the source as another mail."""
    mail = source(s, inbox)
    return replace(mail, message_id="m0", date=date, body=mail.body if body is None else body, **changes)


BREAKS = {
    "a wrong answer": (lambda s, box: (replace(s, answer="7 dollars"), box), "not in its sources"),
    "a source without the answer": (lambda s, box: (replace(s, sources=(*s.sources, box[0].message_id)), box), "not in its sources"),
    "no source": (lambda s, box: (replace(s, sources=()), box), "no source"),
    "the mail is not in this inbox": (lambda s, box: (s, [m for m in box if m.message_id not in s.sources]), "not in its sources"),
    "another mail answers": (lambda s, box: (s, [*box, copy(s, box)]), "also in ['m0']"),
    "another mail quotes the answer": (
        lambda s, box: (s, [*box, copy(s, box, body="See below.\n\n> " + source(s, box).body.replace("\n", "\n> "))]),
        "also in ['m0']",
    ),
    "a later mail contradicts": (
        lambda s, box: (s, [*box, copy(s, box, source(s, box).body.replace(s.answer, "7 dollars"))]), "the final of these is not",
    ),
    "an earlier mail was asked for": (
        lambda s, box: (
            replace(s, which="first"),
            [*box, copy(s, box, source(s, box).body.replace(s.answer, "7 dollars"), date="2022-01-01 10:00")],
        ),
        "the first of these is not",
    ),
    "the source says two things": (
        lambda s, box: (s, edited(box, s.sources[0], body=source(s, box).body.replace(s.answer, f"{s.answer} or 7 dollars"))),
        "the final of these is not",
    ),
    "the answer is in the subject": (
        lambda s, box: (s, edited(box, s.sources[0], subject=f"{source(s, box).subject} {s.answer}")), "without reading",
    ),
    "the answer is in the snippet": (
        lambda s, box: (s, edited(box, s.sources[0], body=f"{s.answer}. {source(s, box).body}")), "without reading",
    ),
    "the question tells the answer": (lambda s, box: (replace(s, question=f"{s.question} {s.answer}?"), box), "its own answer"),
    "the question is about something else": (lambda s, box: (replace(s, question="How much?"), box), "does not contain"),
    "the mail was sent outside the time asked for": (
        lambda s, box: (replace(s, after="2025-01-01", before="2025-02-01"), box), "not in its sources",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_the_checker_can_fail(made, name):
    change, complaint = BREAKS[name]
    assert complaint in broken(made, change)


def test_the_checker_detects_shared_inboxes_and_facts(made):
    mails, found = made
    test, train = (next(s for s in found if s.split == split) for split in ("test", "train"))
    assert "splits ['test', 'train']" in " ".join(mailbox_check.problems(mails, [*found, replace(train, split="test", id="x", which="first", about=("q",))]))
    assert f"['{test.id}', 'x'] ask for the same fact" in " ".join(mailbox_check.problems(mails, [*found, replace(test, id="x")]))


def test_an_invalid_mailbox_is_not_written(tmp_path, monkeypatch, made):
    mails, found = made
    monkeypatch.setattr(mailbox_build, "make", lambda seed: (mails, [replace(found[0], answer="none")]))
    with pytest.raises(ValueError, match=found[0].id):
        mailbox_build.build(tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_scenarios_of_a_split():
    assert [s.id for s in scenarios("val", 2)] == ["val-0", "val-1"]
    assert len(load_scenarios()) == len((DATA / "scenarios.jsonl").read_text().splitlines())
    assert json.loads((DATA / "scenarios.jsonl").read_text().splitlines()[0])["id"] == "train-0"
    with pytest.raises(ValueError, match="train, val, test"):
        scenarios("validation")
    with pytest.raises(ValueError, match="9,999"):
        scenarios("test", 9_999)


def test_the_benchmark_measures_every_kind_of_query():
    result = benchmark.measure(mails=300, repeats=2)
    shapes = benchmark.shapes(random.Random(0)).keys()
    assert result["mails"] == 300 and result["searches"] == 2 * len(shapes)
    for prefix in ("", "shared_"):
        assert result[f"{prefix}shapes_ms"].keys() == shapes and result[f"{prefix}worst_ms"].keys() == benchmark.WORST.keys()
        assert 0 < result[f"{prefix}median_ms"] <= result[f"{prefix}p95_ms"]


def test_the_benchmark_searches_find_something():
    """Otherwise the benchmark would time searches without results."""
    mails = list(benchmark.many_mails(8000, one_inbox=True))
    assert len({mail.message_id for mail in mails}) == 8000 and {mail.inboxes for mail in mails} == {(benchmark.ME,)}
    bodies = [f"{mail.subject} {mail.body}".lower() for mail in mails]
    draw = benchmark.shapes(random.Random(0))["two_words"]
    queries = [draw()["keywords"].lower().split() for _ in range(40)]
    assert sum(any(all(word in body for word in query) for body in bodies) for query in queries) > 30
