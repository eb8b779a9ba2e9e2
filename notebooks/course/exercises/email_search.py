"""The exercises of notebook 04, Email search."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from course.exercises import Exercise, checker, collected, is_number
from email_search.environment import (
    I_DONT_KNOW,
    MAX_TURNS,
    EmailSearch,
    Scenario,
    course_mailbox,
    same_answer,
    scenarios,
)

# 1. When two answers are equal

PAIRS = [
    ("14 May", "14 May"), ("15 May", "14 May"), ("14 MAY.", "14 May"), ("It is on the 14 May", "14 May"),
    ("May 14", "14 May"), ("14th May", "14 May"), ("14 or 15 May", "14 May"), ("May", "14 May"), ("14 May", "4 May"),
    ("2,400 dollars", "2400 dollars"), ("2400", "2400 dollars"), ("24 dollars", "2400 dollars"),
    ("OMAR REED", "Omar Reed"), ("Omar", "Omar Reed"), ("", "14 May"),
    ("1st June", "1 June"), ("22nd June", "22 June"), ("3rd June", "3 June"), ("Keith Ash", "Kei Ash"),
    ("15:10", "10:15"), ("At 13:30.", "13:30"), ("14 14 May", "14 May"),
    ("'Omar Reed'!", "Omar Reed"), ("Tony Ash", "Ty Ash"),
]  # fmt: skip
SMALL_WORDS = frozenset("it is on the of at room dollars".split())
ORDINAL = r"(?<=\d)(st|nd|rd|th)\b"
WORD = r"\d+:\d+|\w+"


def _match(given: str, truth: str, case=True, commas=True, ordinal=ORDINAL, small=True, order=True, word=WORD) -> bool:
    """Short form of `same_answer`; an option switched off is a step that a learner may omit. ordinal: endings to drop."""

    def normalised(text: str) -> list[str]:
        text = text.lower() if case else text
        text = re.sub(r"(?<=\d),(?=\d)", "", text) if commas else text
        text = re.sub(ordinal, "", text) if ordinal else text
        found = [each for each in re.findall(word, text) if not (small and each.lower() in SMALL_WORDS)]
        return sorted(found) if order else found

    return normalised(given) == normalised(truth)


def _words(text: str) -> list[str]:
    return re.findall(WORD, text.lower())


MATCHES = Exercise(
    right=same_answer,
    cases=lambda: list(PAIRS),
    mistakes={
        "This compares letter by letter. People write `14 MAY.` and mean `14 May`: compare words, in lower case.":
            lambda given, truth: given == truth,
        "An answer that contains the right one can be wrong: `14 or 15 May` contains `14 May`, `14 May` contains `4 May`.":
            lambda given, truth: truth.lower() in given.lower(),
        "One word in common is not enough: `15 May` is not the same day as `14 May`.":
            lambda given, truth: bool(set(_words(given)) & set(_words(truth))),
        "`May 14` is `14 May`: the order of the words doesn't matter. Compare them sorted.":
            lambda given, truth: _match(given, truth, order=False),
        "Ignore the small words: `It is on the 14 May` equals `14 May`.":
            lambda given, truth: _match(given, truth, small=False),
        "`14th` is `14`: drop the ending of an ordinal number.":
            lambda given, truth: _match(given, truth, ordinal=""),
        "`1st`, `22nd` and `3rd` are ordinal numbers, too: drop their endings.":
            lambda given, truth: _match(given, truth, ordinal=r"(?<=\d)th\b"),
        "Drop the ending only after a digit: `Keith` is not the same name as `Kei`.":
            lambda given, truth: _match(given, truth, ordinal=r"(st|nd|rd|th)\b"),
        "`2,400` is `2400`: drop the comma between digits before you split into words.":
            lambda given, truth: _match(given, truth, commas=False),
        "`15:10` is not the time `10:15`: a time is one word.": lambda given, truth: _match(given, truth, word=r"\w+"),
        "An additional word makes an answer wrong, even a repeated one: compare lists, not sets.":
            lambda given, truth: _match(" ".join(dict.fromkeys(given.split())), truth),
        "`14 MAY` is `14 May`: convert to lower case first.": lambda given, truth: _match(given, truth, case=False),
        "Remove whole words: `Tony` contains `on`, and is not the name `Ty`.":
            lambda given, truth: _match(*(re.sub("|".join(SMALL_WORDS), "", text.lower()) for text in (given, truth))),
        "An incomplete answer is wrong: `Omar` is not `Omar Reed`.":
            lambda given, truth: bool(given) and set(_words(given)) <= set(_words(truth)),
    },
)  # fmt: skip

# 2. The arguments of a search

ENOUGH = {"first": 0.9, "final": 0.75}  # some questions have a near-duplicate that is newer than the email they are about


def _search_scenarios() -> list[Scenario]:
    """Return the validation questions about a project and a topic in which sender and month don't matter."""
    return [scenario for scenario in scenarios("val") if not scenario.sender and not scenario.after]


def _wrong_search(arguments_of: Callable[[tuple[str, ...], str], dict]) -> str | None:
    """Return a hint for a function (about, which) -> search, or None, judged by the positions of the right emails."""
    places: dict[str, list[int | None]] = {"first": [], "final": []}  # 0 is the top; None: not listed
    for scenario in _search_scenarios():
        arguments = arguments_of(scenario.about, scenario.which)
        result = EmailSearch(course_mailbox(), scenario).call("search_emails", arguments)
        if result.startswith(("Malformed", "Refused")):
            return f"For {arguments} the tool returns: {result}"
        ids = [line.split()[0] for line in result.splitlines()]
        places[scenario.which].append(next((i for i, each in enumerate(ids) if each in scenario.sources), None))
    every = places["first"] + places["final"]
    on_top, missing = every.count(0), every.count(None)
    found = f"The right email is listed first for {on_top} of {len(every)} questions, and is not listed for {missing}. "
    if missing > len(every) / 4:
        return found + "An email must contain all keywords. Which words does it certainly contain, and are they enough?"
    if places["first"].count(0) < ENOUGH["first"] * len(places["first"]):
        return found + "A question about the first of several values needs the oldest email first: use `sort`."
    if places["final"].count(0) < ENOUGH["final"] * len(places["final"]):
        return found + "A question about the final value needs the newest email first; bm25 (`relevance`) ignores dates."
    return None


SEARCH = Exercise(
    right=lambda about, which: {"keywords": " ".join(about), "sort": "oldest" if which == "first" else "newest"},
    cases=lambda: [(scenario.about, scenario.which) for scenario in _search_scenarios()],
    accept=_wrong_search,
)

# 3. A reward that ranks

RANKS = ("a malformed call", "a wrong answer", "no answer", "a right answer")
WHY = (
    "without the format nothing else can be learned",
    "otherwise guessing pays",
    "otherwise collecting partial credit without answering pays",
)


def _searches() -> list[list[tuple[str, EmailSearch]]]:
    """Return, for each rank from the lowest, searches for one question as (description, search).

    Except in the lowest rank, searches are in pairs, of which the second must earn more. A search without a partner tests
    only that the ranks do not overlap.
    """
    scenario = scenarios("train", 1)[0]
    source = scenario.sources[0]
    read, useless = ("read_email", {"message_id": source}), ("search_emails", {"keywords": "no such words"})
    listed = ("search_emails", {"keywords": " ".join(scenario.about), "max_results": 10})  # contains the right email
    nearly_all = MAX_TURNS - 1  # turns, before the last one

    def answered(text: str, *sources: str) -> tuple[str, dict]:
        return "return_final_answer", {"answer": text, "sources": list(sources)}

    made: list[list[tuple[str, list[Any]]]] = [
        [
            ("at once", [(None, None)]),
            ("after reading the right email", [read, (None, None)]),
            (f"after reading the right email {nearly_all} times", [read] * nearly_all + [(None, None)]),
        ],
        [
            ("at once", [answered("nobody")]),
            ("after reading and naming the right email", [read, answered("nobody", source)]),
            (f"after {nearly_all} useless searches", [useless] * nearly_all + [answered("nobody")]),
            (f"after reading the right email {nearly_all} times", [read] * nearly_all + [answered("nobody", source)]),
        ],
        [
            ("at once", [answered(I_DONT_KNOW)]),
            ("after reading and naming the right email", [read, answered(I_DONT_KNOW, source)]),
            ("after useless searches until the turns ran out", [useless] * MAX_TURNS),
            ("after reading the right email until the turns ran out", [read] * MAX_TURNS),
            ("after listing the right email without reading it", [listed, answered(I_DONT_KNOW)]),
            ("after reading the right email", [read, answered(I_DONT_KNOW)]),
        ],
        [
            ("without a source", [answered(scenario.answer)]),
            ("with its source", [answered(scenario.answer, source)]),
            (f"after {nearly_all} useless searches", [useless] * nearly_all + [answered(scenario.answer)]),
        ],
    ]
    found: list[list[tuple[str, EmailSearch]]] = []
    for rank, histories in zip(RANKS, made, strict=True):
        found.append([])
        for how, calls in histories:
            search = EmailSearch(course_mailbox(), scenario)
            for call in calls:
                search.call(*call)
            found[-1].append((f"{rank} {how}", search))
    return found


def _wrong_reward(reward: Callable[[EmailSearch], float]) -> str | None:
    """Return a hint, or None. The outcome must decide; partial credit may decide only between equal outcomes."""
    earned = [[(what, reward(search)) for what, search in rank] for rank in _searches()]
    flat = [pair for rank in earned for pair in rank]
    if bad := [what for what, value in flat if not is_number(value)]:
        return f"A reward is a finite number. For {bad[0]} it is not."
    if len({value for _, value in flat}) == 1:
        return "Every search has the same reward, so there is no signal."
    for (lower, higher), why in zip(pairwise(earned), WHY, strict=True):
        (below, most), (above, least) = max(lower, key=lambda pair: pair[1]), min(higher, key=lambda pair: pair[1])
        if most >= least:
            return f"{below.capitalize()} earns {most:.4g}, {above} earns {least:.4g}. The second must earn more: {why}."
    for (less, low), (more, high) in (pair for rank in earned[1:] for pair in zip(rank[::2], rank[1::2], strict=False)):
        if low >= high:
            return (
                f"{less.capitalize()} earns {low:.4g}, {more} earns {high:.4g}. The second must earn a little more: "
                "in a group with equal outcomes only such differences carry a signal."
            )
    return None


REWARD = Exercise(
    right=lambda search: search.reward(),
    cases=lambda: [(search,) for rank in _searches() for _, search in rank],
    accept=_wrong_reward,
)

# 4. The credit of each call


def _credited(roles: list[str], reward: float, discount: float, count: tuple[str, ...] = ("assistant",)) -> list[float]:
    """Return the turns' credits. A turn is discounted once for every later message whose role is in `count`."""
    return [
        reward * discount ** sum(later in count for later in roles[i + 1 :])
        for i, role in enumerate(roles)
        if role == "assistant"
    ]


def _conversations() -> list[tuple[list[str], float, float]]:
    turn = ["assistant", "tool"]
    return [
        (["system", "user", *turn, *turn, "assistant", "tool", "tool", "assistant"], 1.4, 0.9),
        (["user", *turn], -2.0, 0.5),
        (["user", *turn, *turn, *turn], 0.3, 1.0),
    ]


CREDIT = Exercise(
    right=_credited,
    cases=_conversations,
    observe=collected(),
    mistakes={
        "A tool's result is not a turn of the model: count only the later messages whose role is assistant.":
            lambda roles, reward, discount: _credited(roles, reward, discount, ("assistant", "tool")),
        "Return one number per turn of the model, not per message: tool results and user messages get no credit.":
            lambda roles, reward, discount: [reward * discount ** (len(roles) - 1 - i) for i in range(len(roles))],
        "They are in reverse order: the last turn precedes the reward and is credited with all of it.":
            lambda *given: _credited(*given)[::-1],
        "The discount is missing.": lambda roles, reward, discount: _credited(roles, reward, 1.0),
        "The last turn is not discounted: no turn follows it.":
            lambda roles, reward, discount: _credited(roles, reward * discount, discount),
        "You credit only the last turn. It could not have answered without the searches before it.":
            lambda roles, reward, discount: [0.0] * (roles.count("assistant") - 1) + [reward],
    },
)  # fmt: skip

EXERCISES = {"matches": MATCHES, "search": SEARCH, "reward": REWARD, "credit": CREDIT}

check = checker(EXERCISES)
