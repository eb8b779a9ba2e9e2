"""Make the course's mailbox from a seed: two years of mail of thirty people, and questions with known answers.

Emails are collected as `Draft`s, then sorted by date and numbered. Each fact (of a project and a topic, sometimes also of a
month or a sender) is stated in one thread only, so no other email answers its question; check.py verifies this from the
finished emails.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from itertools import product

from email_search.mailbox import Address, Mail
from email_search.scenarios import Scenario
from environments.email_search.maker import words

FIRST_DAY, LAST_DAY = datetime(2023, 1, 2), datetime(2024, 12, 30)
QUESTIONS = {"train": 1200, "val": 120, "test": 240}
SHARES = {"train": 0.7, "val": 0.1, "test": 0.2}  # of all pairs of project and topic
CHATTER = 2000  # emails without facts

PEOPLE = {split: people.split(",") for split, (_, people) in words.OFFICES.items()}
EVERYONE = [name for people in PEOPLE.values() for name in people]
LISTS = {f"{office} office": PEOPLE[split] for split, (office, _) in words.OFFICES.items()} | {"All staff": EVERYONE}


@dataclass(eq=False)
class Draft:
    """An email before it has an id. states: the facts in its own text, not those quoted from `parent`."""

    date: datetime
    sender: str
    to: list[str]
    subject: str
    text: str
    cc: list[str] = field(default_factory=list)
    quote: str = ""
    attachments: tuple[str, ...] = ()
    parent: Draft | None = None
    states: set[str] = field(default_factory=set)

    def shows(self) -> set[str]:
        """Return the facts in its text, with those it quotes."""
        return self.states | (self.parent.states if self.parent else set())

    def inboxes(self) -> list[str]:
        """Return the names of the sender and all recipients that have an inbox, each once."""
        recipients = [member for name in (*self.to, *self.cc) for member in LISTS.get(name, [name])]
        return [name for name in dict.fromkeys([self.sender, *recipients]) if name in EVERYONE]


def make(seed: int = 0) -> tuple[list[Mail], list[Scenario]]:
    """Return all emails, oldest first, and all scenarios. Equal seeds give equal results on every machine."""
    rng = random.Random(seed)
    drafts, questions = [], []
    for split, dealt in _deal(rng).items():
        office = Office(rng, split)
        for topic, name in dealt:
            office.write_series(name, topic) if topic in words.SERIES else office.write_thread(name, topic)
        for owner in office.people:
            for topic in rng.sample(words.TRIPS, 2):
                office.write_suggestions(owner, topic)
        drafts += office.drafts
        asked = rng.sample(office.questions, min(QUESTIONS[split], len(office.questions)))
        questions += [(f"{split}-{number}", split, question) for number, question in enumerate(asked)]
    drafts += [_chatter(rng) for _ in range(CHATTER)]
    drafts.sort(key=lambda draft: draft.date)
    ids = {draft: f"m{number}" for number, draft in enumerate(drafts, start=1000)}
    scenarios = [
        Scenario(name, split, sources=tuple(ids[draft] for draft in sources), **rest)
        for name, split, (sources, rest) in questions
    ]
    return [_mail(draft, ids) for draft in drafts], scenarios


def _deal(rng: random.Random) -> dict[str, list[tuple[str, str]]]:
    """Assign every (topic, name) to one split, sorted by topic."""
    pairs = [*product([*words.EVENTS, *words.PAPERS, *words.PASSES], words.NAMES)]
    pairs += [(topic, name) for name in rng.sample(words.NAMES, 15) for topic in words.SERIES]
    rng.shuffle(pairs)
    dealt, start = {}, 0
    for split, share in SHARES.items():
        stop = start + round(share * len(pairs))
        dealt[split] = sorted(pairs[start:stop], key=lambda pair: pair[0])
        start = stop
    return dealt


class Office:
    """Writes the work mail of one split, that is of one office, which sends no mail with facts to outsiders."""

    def __init__(self, rng: random.Random, split: str):
        self.rng, self.split = rng, split
        self.name, self.people = words.OFFICES[split][0], PEOPLE[split]
        self.drafts: list[Draft] = []
        self.questions: list[tuple[list[Draft], dict]] = []  # sources as drafts, and the other fields of a scenario
        self.last: tuple = ()

    def write_thread(self, name: str, topic: str) -> None:
        """Write an email with one to three facts, corrections of one of them, replies, forwards, and the questions."""
        rng = self.rng
        first, values = self._first_mail(name, topic, _kinds(rng, topic))
        thread, versions = [first], {kind: [value] for kind, value in values.items()}
        changing = [kind for kind in values if words.KINDS[kind].corrects]
        if changing and rng.random() < 0.45:
            kind = rng.choice(changing)
            for _ in range(rng.choice((1, 2, 2))):
                thread.append(self._correction(thread[-1], kind, versions[kind], topic))
        elif rng.random() < 0.1:  # the same email once more
            thread.append(replace(first, date=first.date + timedelta(days=1), subject=f"Again: {first.subject}"))
        forwarded = [rng.choice(thread)] if rng.random() < 0.15 else []
        thread += [self._reply(rng.choice(thread)) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
        thread += map(self._forward, forwarded)
        self.drafts += thread
        if rng.random() < 0.35:
            self._note(first, f"{name} {topic}")
        changed = [kind for kind in values if len(versions[kind]) > 1]
        kept = [kind for kind in values if kind not in changed]
        for kind in changed + rng.sample(kept, min(1, len(kept))):
            self._ask(kind, versions[kind], thread, [name, topic])

    def _first_mail(self, name: str, topic: str, kinds: list[str]) -> tuple[Draft, dict[str, str]]:
        """Return the first email of a thread, and its facts by kind."""
        rng = self.rng
        if self.last and self.last[0] == kinds and rng.random() < 0.15:
            _, group, day, wording = self.last  # nearly the same email as the previous one, about another project
        else:
            group, day, wording = self._group(), _moment(rng), rng.random()
        self.last = (kinds, group, day + timedelta(minutes=3), wording)
        sender, to, cc = group
        values = {kind: _value(rng, kind, day, [sender, *to, *cc]) for kind in kinds}
        subject = rng.choice((f"{name} {topic}", f"{name}: {topic}", f"{topic.capitalize()} for {name}"))
        sentences = [random.Random(wording).choice(words.KINDS[kind].states) for kind in kinds]
        attached = (f"{name}-{topic}.pdf".lower(),) if rng.random() < 0.3 else ()
        mail = Draft(day, sender, to, subject, "", cc, attachments=attached, states=set(values.values()))
        mail.text = self._text(wording, mail, sentences, values, topic)
        return mail, values

    def write_series(self, name: str, topic: str) -> None:
        """Write the same email every month with a different count; a question names the month."""
        rng = self.rng
        sender, to, cc = self._group()
        start, wording = rng.randrange(16), rng.random()
        counts = [f"{count} units" for count in rng.sample(range(120, 980, 5), 8)]
        series = []
        for month, count in enumerate(counts, start=start):
            day = datetime(2023 + month // 12, month % 12 + 1, rng.randint(3, 26), rng.randint(8, 17), rng.randrange(60))
            mail = Draft(day, sender, to, f"{name} {topic}", "", cc, states={count})
            sentences = [random.Random(wording).choice(words.KINDS["count"].states)]
            mail.text = self._text(wording, mail, sentences, {"count": count}, topic)
            series.append((mail, count))
        self.drafts += [mail for mail, _ in series]
        for mail, count in rng.sample(series, 2):
            after = mail.date.date().replace(day=1)
            before = (after + timedelta(days=31)).replace(day=1)
            month = f"{words.MONTHS[after.month - 1]} {after.year}"
            question = rng.choice(words.KINDS["count"].asks).format(e=f"{name} {topic}", m=month)
            window = {"after": after.isoformat(), "before": before.isoformat()}
            self._add(question, count, [mail], "count", [name, topic], rng.choice(mail.inboxes()), **window)

    def write_suggestions(self, owner: str, topic: str) -> None:
        """Write emails in which several people suggest a place to one person; a question names one of them."""
        rng = self.rng
        senders = rng.sample([name for name in self.people if name != owner], min(4, len(self.people) - 1))
        day = _moment(rng)
        places = rng.sample(words.PLACES, len(senders))
        mails = []
        for sender, place in zip(senders, places, strict=True):
            mail = Draft(_later(rng, day, 3), sender, [owner], f"Our {topic}", "", states={place})
            sentences = [rng.choice(words.KINDS["place"].states)]
            mail.text = self._text(rng.random(), mail, sentences, {"place": place}, topic)
            mails.append((mail, place))
        self.drafts += [mail for mail, _ in mails]
        for mail, place in rng.sample(mails, 2):
            question = rng.choice(words.KINDS["place"].asks).format(p=mail.sender, t=topic)
            self._add(question, place, [mail], "place", [topic], owner, sender=address_of(mail.sender).address)

    def _group(self) -> tuple[str, list[str], list[str]]:
        """Return (sender, to, cc): a few colleagues, or the office's list."""
        rng = self.rng
        sender, *others = rng.sample(self.people, rng.randint(3, min(5, len(self.people))))
        if rng.random() < 0.08:
            return sender, [f"{self.name} office"], []
        split = rng.randint(1, len(others))
        return sender, others[:split], others[split:]

    def _text(self, wording: float, mail: Draft, sentences: list[str], values: dict[str, str], topic: str) -> str:
        """Return a greeting, an opener longer than a snippet, sentences and fillers in random order, and a signature.

        Equal wordings give equal texts except for values and topic.
        """
        rng = random.Random(wording)
        hello = f"Hi {mail.to[0].split()[0]}," if len(mail.to) == 1 and mail.to[0] not in LISTS else "Hi all,"
        facts = [s.format(v=value, t=topic) for s, value in zip(sentences, values.values(), strict=True)]
        body = facts + rng.sample(words.FILLERS, rng.randint(1, 2))
        rng.shuffle(body)
        body += ["The file is attached."] if mail.attachments else []
        first_name = mail.sender.split()[0]
        return f"{hello}\n{rng.choice(words.OPENERS)} {' '.join(body)}\n{rng.choice(words.CLOSINGS)}, {first_name}"

    def _correction(self, parent: Draft, kind: str, versions: list[str], topic: str) -> Draft:
        """Return an email by the same sender that quotes the parent and states a new value; append it to `versions`."""
        group = [parent.sender, *parent.to, *parent.cc]
        versions.append(_value(self.rng, kind, parent.date, group, versions))
        mail = _answer_to(self.rng, parent, parent.sender, parent.to, parent.cc)
        sentences = [self.rng.choice(words.KINDS[kind].corrects)]
        mail.text = self._text(self.rng.random(), mail, sentences, {kind: versions[-1]}, topic)
        mail.states.add(versions[-1])
        return mail

    def _reply(self, parent: Draft) -> Draft:
        sender = self.rng.choice([name for name in parent.inboxes() if name != parent.sender])
        rest = [name for name in (*parent.to, *parent.cc) if name != sender]
        mail = _answer_to(self.rng, parent, sender, [parent.sender], [name for name in rest if name != parent.sender])
        mail.text = f"{self.rng.choice(words.REPLIES)}\n{sender.split()[0]}"
        return mail

    def _forward(self, parent: Draft) -> Draft:
        sender = self.rng.choice(parent.inboxes())
        to = [self.rng.choice([name for name in self.people if name != sender])]
        mail = _answer_to(self.rng, parent, sender, to, [])
        mail.subject = f"Fwd: {_bare(parent.subject)}"
        mail.attachments = parent.attachments
        mail.text = f"{self.rng.choice(words.FORWARDS)}\n{sender.split()[0]}"
        mail.quote = f"---------- Forwarded message ----------\nFrom: {parent.sender}\n\n{parent.text}"
        return mail

    def _note(self, about: Draft, topic: str) -> None:
        """Write an email about the same thing without its facts."""
        sender, *to = self.rng.sample(about.inboxes(), 2)
        text = f"Hi {to[0].split()[0]},\n{self.rng.choice(words.NOTES).format(e=topic)}\n{sender.split()[0]}"
        self.drafts.append(Draft(_later(self.rng, about.date, 9), sender, to, f"About the {topic}", text))

    def _ask(self, kind: str, versions: list[str], thread: list[Draft], about: list[str]) -> None:
        """Add a question for one fact of a thread: for the first of several versions or, more often, the final one."""
        rng = self.rng
        templates, which, value = words.KINDS[kind].asks, "final", versions[-1]
        if len(versions) > 1:
            which = rng.choice(("first", "final", "final"))
            value = versions[0] if which == "first" else value
            templates = words.KINDS[kind].first if which == "first" else words.KINDS[kind].final
        name, topic = about
        about_it = rng.choice((f"the {name} {topic}", f"the {name} {topic}", f"the {topic} for {name}"))
        asker = rng.choice(thread[0].inboxes())
        sources = [mail for mail in thread if value in mail.shows() and asker in mail.inboxes()]
        self._add(rng.choice(templates).format(e=about_it), value, sources, kind, about, asker, which=which)

    def _add(self, question, answer, sources, kind, about, asker, **where) -> None:
        asked = date(2025, 1, self.rng.randint(6, 31)).isoformat()
        about = tuple(word.lower() for word in about)
        inbox = address_of(asker).address
        rest = dict(question=question, answer=answer, inbox=inbox, asked=asked, kind=kind, about=about, **where)
        self.questions.append((sources, rest))


def _kinds(rng: random.Random, topic: str) -> list[str]:
    """Return the kinds of fact in a first email about this topic."""
    if topic in words.PAPERS:
        return ["amount"]
    if topic in words.PASSES:
        return ["code"]
    return rng.sample(["date", "time", "room", "person"], rng.randint(1, 3))


def _value(rng: random.Random, kind: str, day: datetime, group: list[str] = (), taken: list[str] = ()) -> str:
    """Draw a value of this kind: none of those taken, no person of the group, no date before `day`."""
    draw = {
        "date": lambda: _day_and_month(day + timedelta(days=rng.randint(9, 80))),
        "time": lambda: f"{rng.randint(8, 19)}:{rng.choice(('00', '15', '30', '45'))}",
        "room": lambda: f"room {rng.randint(1, 4)}{rng.randint(1, 30):02d}",
        "person": lambda: rng.choice(EVERYONE),
        "amount": lambda: f"{rng.randint(4, 99) * 50} dollars",
        "code": lambda: f"{rng.choice('ABCDEFGHJKLMNPRSTUVWXYZ')}{rng.randint(100, 999)}",
    }[kind]
    members = {member for name in group for member in LISTS.get(name, [name])}
    while (value := draw()) in taken or value in members:
        pass
    return value


def _day_and_month(day: datetime) -> str:
    return f"{day.day} {words.MONTHS[day.month - 1]}"


def _moment(rng: random.Random) -> datetime:
    """Draw a minute of a working day, early enough for the rest of the thread to fit into the two years."""
    while (day := FIRST_DAY + timedelta(days=rng.randrange((LAST_DAY - FIRST_DAY).days - 25))).weekday() > 4:
        pass
    return day + timedelta(hours=rng.randint(8, 17), minutes=rng.randrange(60))


def _later(rng: random.Random, moment: datetime, days: int) -> datetime:
    """Draw a time within 90 minutes, or in working hours within `days` days."""
    wait = rng.randint(0, days)
    if wait == 0:
        return moment + timedelta(minutes=rng.randint(5, 90))
    return (moment + timedelta(days=wait)).replace(hour=rng.randint(8, 17), minute=rng.randrange(60))


def _bare(subject: str) -> str:
    return subject.removeprefix("Re: ").removeprefix("Fwd: ")


def _answer_to(rng: random.Random, parent: Draft, sender: str, to: list[str], cc: list[str]) -> Draft:
    """Return an empty email of the same thread that quotes the parent's own text."""
    quote = "".join(f"> {line}\n" for line in parent.text.split("\n"))
    return Draft(
        _later(rng, parent.date, 5), sender, to, f"Re: {_bare(parent.subject)}", "", cc,
        quote=f"On {parent.date:%Y-%m-%d} {parent.sender} wrote:\n{quote}".rstrip(), parent=parent,
    )  # fmt: skip


def _chatter(rng: random.Random) -> Draft:
    """Return an email without facts: between two people, to a list, or a newsletter from outside."""
    news = rng.random() < 0.3
    subject, text = rng.choice(words.NEWS if news else words.CHATTER)
    name, other = rng.sample(words.NAMES, 2)
    topic = rng.choice([*words.EVENTS, *words.PAPERS])
    moment = _moment(rng)
    day, hour, room, amount = (_value(rng, kind, moment) for kind in ("date", "time", "room", "amount"))
    text = text.format(n=name, o=other, t=topic, d=day, h=hour, r=room, a=amount, c=rng.choice(words.PLACES))
    split = rng.choice([split for split, people in PEOPLE.items() for _ in people])
    sender, to = rng.sample(PEOPLE[split], 2)
    if news:
        sender, to = rng.choice(words.OUTSIDERS), rng.choice(EVERYONE)
    elif rng.random() < 0.1:
        to = rng.choice(("All staff", f"{words.OFFICES[split][0]} office"))
    hello = "Hi all," if to in LISTS or news else f"Hi {to.split()[0]},"
    subject = subject.format(n=name, t=topic)
    return Draft(moment, sender, [to], subject, f"{hello}\n{text}\n{sender.split()[0]}")


def address_of(name: str) -> Address:
    """Return the address of a person or list."""
    domain = "news.example" if name in words.OUTSIDERS else words.DOMAIN
    return Address(name, f"{name.split()[0].lower()}@{domain}")


def _mail(draft: Draft, ids: dict[Draft, str]) -> Mail:
    people = {kind: tuple(map(address_of, getattr(draft, kind))) for kind in ("to", "cc")}
    return Mail(
        ids[draft], f"{draft.date:%Y-%m-%d %H:%M}", address_of(draft.sender), subject=draft.subject, **people,
        body=f"{draft.text}\n\n{draft.quote}" if draft.quote else draft.text, attachments=draft.attachments,
        in_reply_to=ids.get(draft.parent, ""), inboxes=tuple(address_of(name).address for name in draft.inboxes()),
    )  # fmt: skip
