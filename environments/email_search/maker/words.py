"""The words of the made-up mailbox: people, projects, topics, and the sentences that state and ask for facts.

The vocabulary is closed and ordinary, so that a language model of a million parameters can learn all of it. In the
sentences {v} is the value, {e} the thing it is about ("Falcon review"), {t} its topic ("review"), {n} its name ("Falcon").
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from email_search.questions import MONTHS

DOMAIN = "ridge.example"

OFFICES = {
    "train": ("North", "Adam Reed,Ivy Stone,Omar Fox,Lena Hill,Paul Gray,Nina Wood,Carl Moss,Ruth Lake,Hugo Marsh,"
              "Dora Field,Sam Brook,Tess Rowe,Ivan Cole,Mary Dale,Finn Ash,Olga Park,Luke Frost,Jane West"),
    "val": ("East", "Eric Snow,Gina Bell,Rosa Finch,Tom Heath,Vera Pond"),
    "test": ("South", "Alan Birch,Cora Lane,Dean Swift,Edna Rose,Greg Thorn,Kate Winter,Neil Sands"),
}  # fmt: skip
"""Split -> (the office's name, its people). Work mail stays within an office; only news and lists reach all offices."""

OUTSIDERS = ("Zoe Carter", "Max Porter", "Bea Mason", "Ron Baker", "Liz Cooper", "Ted Miller")

NAMES = (
    "Falcon Heron Raven Otter Badger Beaver Lynx Bison Maple Cedar Aspen Willow Laurel Clover Thistle Fern Amber Cobalt "
    "Copper Silver Garnet Onyx Pearl Topaz Comet Meteor Saturn Jupiter Orion Nova Luna Delta Harbor Island Canyon Glacier "
    "Meadow Prairie Summit Valley Anchor Arrow Beacon Bridge Compass Lantern Mosaic Velvet"
).split()

EVENTS = "kickoff review workshop demo training dinner visit audit launch rehearsal briefing handover".split()
PAPERS = "budget invoice quote order contract refund deposit estimate".split()
PASSES = "booking parcel locker ticket permit voucher".split()
SERIES = "sales visitors returns traffic".split()
TRIPS = "retreat outing holiday".split()

PLACES = (
    "Lisbon Oslo Vienna Prague Dublin Madrid Athens Zurich Geneva Berlin Milan Porto Krakow Riga Turin Lyon Bergen Ghent "
    "Malmo Tartu Bilbao Cork Basel Graz"
).split()


@dataclass(frozen=True)
class Kind:
    """One kind of fact.

    pattern: matches every value of this kind, and nothing else in the mailbox. states, corrects: sentences that give the
    value the first time, and after a change. asks: questions for it; final, first: questions for a value that has changed.
    """

    pattern: re.Pattern
    states: tuple[str, ...]
    asks: tuple[str, ...]
    corrects: tuple[str, ...] = ()
    final: tuple[str, ...] = ()
    first: tuple[str, ...] = ()


KINDS = {
    "date": Kind(
        re.compile(rf"\b\d{{1,2}} (?:{'|'.join(MONTHS)})\b"),
        ("It is on {v}.", "The {t} takes place on {v}.", "Please keep {v} free.", "We settled on {v} for it."),
        ("When is {e}?", "On which day is {e}?", "What is the date of {e}?", "Which day did we settle on for {e}?"),
        ("It has to move, the new day is {v}.", "We can not keep the old day, it is now on {v}.", "The {t} moves to {v}."),
        ("When is {e} now?", "What is the final date of {e}?", "On which day is {e} after the last change?"),
        ("What was the first date of {e}?", "On which day was {e} before it moved?"),
    ),
    "time": Kind(
        re.compile(r"\b\d{1,2}:\d{2}\b"),
        ("We start at {v}.", "The {t} begins at {v}.", "Please be there at {v}."),
        ("At what time does {e} start?", "What time is {e}?", "At what time do we begin {e}?"),
        ("We start at {v} instead.", "The new time is {v}.", "Now the {t} begins at {v}."),
        ("At what time does {e} start now?", "What is the final time of {e}?"),
        ("What was the first time of {e}?", "At what time was {e} before it moved?"),
    ),
    "room": Kind(
        re.compile(r"\broom \d{3}\b"),
        ("We meet in {v}.", "The {t} is in {v}.", "I found {v} for us."),
        ("In which room is {e}?", "Which room do we have for {e}?", "Where do we meet for {e}?"),
        ("We have to take {v} instead.", "From now on it is {v}.", "Now the {t} is in {v}."),
        ("In which room is {e} now?", "What is the final room of {e}?"),
        ("What was the first room of {e}?", "In which room was {e} before it moved?"),
    ),
    "person": Kind(
        re.compile(r"\b(?:{})\b".format("|".join(name for _, people in OFFICES.values() for name in people.split(",")))),
        ("{v} will lead it.", "This time {v} runs the {t}.", "Ask {v} if something is missing."),
        ("Who leads {e}?", "Who runs {e}?", "Who can I ask about {e}?"),
    ),
    "amount": Kind(
        re.compile(r"\b\d+ dollars\b"),
        ("The total is {v}.", "It comes to {v}.", "The {t} is {v}, all included."),
        ("How much is {e}?", "What is the total of {e}?", "What does {e} come to?"),
        ("There was a mistake, the total is {v}.", "The correct total is {v}.", "After the change the {t} is {v}."),
        ("How much is {e} now?", "What is the final total of {e}?", "What is the correct total of {e}?"),
        ("What was the first total of {e}?", "How much was {e} before the change?"),
    ),
    "code": Kind(
        re.compile(r"\b[A-Z]\d{3}\b"),
        ("The code is {v}.", "Please show {v} at the desk.", "For the {t} you need {v}."),
        ("What is the code for {e}?", "Which code do I need for {e}?", "What do I show at the desk for {e}?"),
        ("The old code is dead, please use {v}.", "The new code is {v}.", "From today the {t} needs {v}."),
        ("What is the code for {e} now?", "What is the last code for {e}?"),
        ("What was the first code for {e}?", "Which code did {e} need before the change?"),
    ),
    "count": Kind(
        re.compile(r"\b\d+ units\b"),
        ("We are at {v}.", "This makes {v}.", "The count stands at {v}."),
        ("What was the count of {e} in {m}?", "Which count did we see for {e} in {m}?"),
    ),
    "place": Kind(
        re.compile(rf"\b(?:{'|'.join(PLACES)})\b"),
        ("I would go to {v}.", "My vote is for {v}.", "Why not {v} this time?"),
        ("Which place did {p} suggest for the {t}?", "Where does {p} want to go for the {t}?"),
    ),
}  # fmt: skip

OPENERS = (
    "thank you for all the good work in the past weeks.", "I hope that you had a quiet start into this week.",
    "some of you asked me about this, so here it is.", "after the long talk today I can give you the news.",
    "sorry that it took me so long to come back to you.", "as you know we have been waiting for an answer here.",
    "this is what we agreed on when we met this morning.", "before I forget it, a few words about the next steps.",
)  # fmt: skip
FILLERS = (
    "Tell me if this does not work for you.", "The plan is in our shared folder.", "Bring your questions.",
    "Our guests are glad to come.", "Please send it on to your team.", "I will write again if there is news.",
    "It should not take long.", "The last one went well.", "There will be coffee and cake.", "Nothing else has changed.",
)  # fmt: skip
CLOSINGS = ("Best", "Thanks", "Regards", "See you")
REPLIES = (
    "Thanks, I have noted it.", "Great, that works for me.", "Good to know, thank you.", "Fine with me, I will be there.",
    "I told my team.", "Can we talk about the rest tomorrow?",
)  # fmt: skip
FORWARDS = ("For your information, see below.", "You should know about this too.", "I think this one is for you.")
NOTES = (
    "I liked how the {e} is coming along.", "Who will write the notes of the {e}?", "My slides for the {e} are done.",
    "Let us talk about the {e} soon.", "The guests asked about the {e} again.",
)  # fmt: skip
CHATTER = (
    ("{n} team", "The {n} team is doing well. It was good to see so many faces."),
    ("{n} folder", "I tidied the {n} folder. The old files are in the archive."),
    ("Question about {n}", "Who knows how {n} began? I need a few words for our page."),
    ("Coffee machine", "The coffee machine is broken again. Somebody will look at it on {d}."),
    ("Lunch", "Does somebody come to lunch today? I will be down at {h}."),
    ("Lost keys", "I found keys next to the printer in {r}. Please ask me for them."),
    ("Running club", "The running club meets at {h} next week. New faces are welcome."),
    ("A {t} well done", "That was a fine {t}. Thanks to all who helped."),
    ("How to write a {t}", "Somebody asked how to write a {t}. There is a page about it in our shared folder."),
)  # fmt: skip
NEWS = (
    ("Ridge news", "The {n} and {o} teams have moved. The next open day is on {d}."),
    ("Ridge news", "Our office in {c} has new people. The talk begins at {h}."),
    ("Offer of the week", "Two nights in {c} for {a}. The offer ends on {d}."),
    ("Your newsletter", "Ten ways to run a better {t}. Only {a} for members."),
)  # fmt: skip
