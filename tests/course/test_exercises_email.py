"""The exercises of notebook 04: right answers are accepted in any form, and a mistake gets its hint.

The answers here are written as a learner would write them, not taken from the exercises.
"""

import re

import pytest

from course.exercises.email_search import EXERCISES, check
from email_search import TOOLS

ENDING = r"(?<=\d)(st|nd|rd|th)\b"
SMALL = {"it", "is", "on", "the", "of", "at", "room", "dollars"}


def matches(given, truth):
    def words(text):
        text = re.sub(r"(\d),(\d)", r"\1\2", text.lower())
        text = re.sub(r"(\d)(st|nd|rd|th)\b", r"\1", text)
        return sorted(word for word in re.findall(r"\d\d?:\d\d|\w+", text) if word not in SMALL)

    return words(given) == words(truth)


def words(text):
    return re.findall(r"\d+:\d+|\w+", text.lower())


def large(text):
    return sorted(word for word in words(text) if word not in SMALL)


def th_replaced(text):
    return sorted(word.replace("th", "") for word in words(text.replace(",", "")) if word not in SMALL)


def search(about, which):
    return {"sort": {"first": "oldest", "final": "newest"}[which], "keywords": ", ".join(about), "max_results": 3}


def reward(s, partial=0.1, wrong=-1.0, malformed=-2.0, none=0.0):
    m = s.metrics()
    if m["correct"]:
        return 1 + 0.3 * m["sources_right"] - 0.01 * m["turns"]
    start = malformed if m["malformed"] else wrong if m["wrong"] else none
    return start + partial * (m["found_right"] + m["read_right"])


def credit(roles, reward, discount):
    credits = []
    for role in reversed(roles):
        if role == "assistant":
            credits.insert(0, reward)
            reward *= discount
    return credits


RIGHT = {"matches": matches, "search": search, "reward": reward, "credit": credit}

WRONG = {
    "matches": [
        (lambda g, t: g == t, "letter by letter"),
        (lambda g, t: t.lower() in g.lower(), "An answer that contains the"),
        (lambda g, t: len(set(words(g)) & set(words(t))) > 0, "One word in common"),
        (lambda g, t: large(re.sub(r"(\d),(\d)", r"\1\2", g)) == large(t), "14th"),
        (lambda g, t: large(re.sub(ENDING, "", g)) == large(t), "2,400"),
        (lambda g, t: matches(re.sub(r"(\d)(st|nd|rd)", r"\1-\2", g), t), "`1st`, `22nd` and `3rd`"),
        (lambda g, t: matches(re.sub(r"(st|nd|rd|th)\b", "", g), t), "`Keith` is not the same name"),
        (lambda g, t: matches(*(" ".join(word.replace("th", "") for word in words(each) if word != "the") for each in (g.replace(",", ""), t))), "`Keith` is not the same name"),
        (lambda g, t: th_replaced(g) == th_replaced(t), "'1st June'"),
        (lambda g, t: matches(g, t) and words(re.sub(f"{ENDING}|,", "", g))[-1] == words(t)[-1], "May 14"),
        (lambda g, t: matches(g.replace(":", " "), t.replace(":", " ")), "a time is one word"),
        (lambda g, t: matches(" ".join(dict.fromkeys(g.split())), t), "compare lists, not sets"),
        (lambda g, t: True, "expected False, got True."),
        (lambda g, t: g.lower().split()[0] == t.lower().split()[0], "raised IndexError"),
    ],
    "search": [
        (lambda about, which: {"keywords": " ".join(about)}, "A question about the first"),
        (lambda about, which: {"keywords": " ".join(about), "sort": "newest"}, "A question about the first"),
        (lambda about, which: {"keywords": " ".join(about), "sort": "oldest"}, "A question about the final"),
        (lambda about, which: {"keywords": " ".join(about), "sort": "oldest" if which == "first" else "relevance"}, "A question about the final"),
        (lambda about, which: {"keywords": f"what is the {which} value of {' '.join(about)}"}, "Which words does it certainly"),
        (lambda about, which: {"keywords": about[0], "sort": "newest"}, "are they enough"),
        (lambda about, which: {}, "Which words does it certainly"),
        (lambda about, which: {"keywords": about}, "keywords must be a string"),
        (lambda about, which: {"keywords": " ".join(about), "sort": which}, "sort must be relevance, newest, oldest"),
        (lambda about, which: {"query": " ".join(about)}, "no argument"),
    ],
    "reward": [
        (lambda s: 1.0, "Every search has the same"),
        (lambda s: s.metrics()["correct"], "A malformed call at once earns 0, a wrong answer at once earns 0"),
        (lambda s: reward(s, malformed=-1.0), "without the format nothing else"),
        (lambda s: reward(s, wrong=0.0), "otherwise guessing pays"),
        (lambda s: reward(s, partial=0.6), "earns -0.8"),
        (lambda s: reward(s, none=1.0), "otherwise collecting partial credit without"),
        (lambda s: reward(s, partial=0.0), "in a group with equal"),
        (lambda s: min(reward(s), 0.9), "right answer without a source earns 0.9"),
        (lambda s: reward(s) + 0.12 * s.turns * s.metrics()["wrong"], "A wrong answer after reading the right email 9 times earns 0.4"),
        (lambda s: reward(s) + 2.5 * s.metrics()["gave_up"] * s.metrics()["sources_right"], "No answer after reading and naming"),
        (lambda s: reward(s) + 0.12 * s.turns, "A malformed call after reading the right email 9 times"),
        (lambda s: reward(s) - 0.12 * s.turns, "a wrong answer after 9 useless searches earns"),
        (lambda s: reward(s) - 0.2 * s.turns * s.metrics()["correct"], "a right answer after 9 useless searches earns"),
        (lambda s: (lambda m: 2 * m["correct"] - m["wrong"] - 2 * m["malformed"] + 0.02 * s.turns + 0.3 * m["correct"] * m["sources_right"])(s.metrics()), "A wrong answer after 9 useless searches earns"),
        (lambda s: float("-inf") if s.ended_by == "malformed" else reward(s), "finite number"),
        (lambda s: str(reward(s)), "finite number"),
    ],
    "credit": [
        (lambda roles, r, g: [r * g ** (sum(x in ("assistant", "tool") for x in roles[i:]) - 1) for i, x in enumerate(roles) if x == "assistant"], "count only the later messages"),
        (lambda roles, r, g: [r * g**i for i in reversed(range(len(roles)))], "Return one number per turn"),
        (lambda roles, r, g: [r * g**i for i in range(roles.count("assistant"))], "reverse order"),
        (lambda roles, r, g: [r for x in roles if x == "assistant"], "discount is missing"),
        (lambda roles, r, g: [r * g ** (i + 1) for i in reversed(range(roles.count("assistant")))], "The last turn is not"),
        (lambda roles, r, g: [r if i == roles.count("assistant") - 1 else 0 for i in range(roles.count("assistant"))], "It could not have answered"),
    ],
}  # fmt: skip


def stub(*_):
    """Docstring of the stub."""
    ...


def test_there_are_at_least_three():
    assert list(RIGHT) == list(WRONG) == list(EXERCISES) and len(EXERCISES) >= 3


@pytest.mark.parametrize("exercise", RIGHT)
def test_a_right_answer_written_another_way_is_right(exercise):
    assert check(exercise, stub).status == "not attempted"
    assert check(exercise, RIGHT[exercise]).status == "right", check(exercise, RIGHT[exercise])
    assert check(exercise, EXERCISES[exercise].right).status == "right"


@pytest.mark.parametrize("exercise", WRONG)
def test_a_wrong_answer_gets_the_hint_that_names_its_mistake(exercise):
    assert len(WRONG[exercise]) >= 4
    for number, (answer, words_of_hint) in enumerate(WRONG[exercise]):
        verdict = check(exercise, answer)
        assert verdict.status == "wrong" and words_of_hint in verdict.text, f"{number}: {verdict}"


def test_no_mistake_is_right_and_no_two_are_the_same():
    for name, exercise in EXERCISES.items():
        seen = [exercise.seen(mistake) for mistake in (exercise.mistakes or {}).values()]
        assert exercise.seen(exercise.right) not in seen, name
        assert all(a != b for i, a in enumerate(seen) for b in seen[:i]), name


def test_the_search_uses_the_tools_arguments():
    properties = next(t["function"]["parameters"]["properties"] for t in TOOLS if t["function"]["name"] == "search_emails")
    assert EXERCISES["search"].right(("falcon", "budget"), "final").keys() <= properties.keys()
