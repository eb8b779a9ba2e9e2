"""Parsing a judge's answer returns exactly its scores, or raises with a reason."""

import json
import random
import re

import pytest

from art_nb.rewards.judge_answers import UnusableAnswer, parse, response_format

IDS = ["1", "2", "3"]


def entry(name="1", score=0.5, explanation="fine"):
    return {"trajectory_id": name, "explanation": explanation, "score": score}


def answer(*scores):
    return json.dumps({"scores": [entry(i, score) for i, score in zip(IDS, scores, strict=True)]})


GOOD = answer(0.1, 1, 0.25)


def scores(text, ids=IDS):
    return [score.score for score in parse(text, ids)]


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"\n\n {GOOD}\n",
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}```",
        f"<think>The first has a ```fence``` and {answer(1, 1, 1)}.</think>\n{GOOD}",
        f"It thinks without saying so.</think>```json\n{GOOD}\n```",
        f"<think>one</think> two </think>{GOOD}",
        GOOD.replace("0.1", '"0.1"'),
        GOOD.replace("0.1", '".1"'),
        GOOD.replace("0.1", '" 0.10 "'),
        GOOD.replace("0.1", "1e-1"),
        GOOD.replace('"1"', "1"),
        GOOD.replace('"scores"', '"thoughts": "the second", "scores"'),
        json.dumps({"scores": [entry("3", 0.25), entry("1", 0.1), entry("2", 1.0)]}),
    ],
)
def test_accepted_answers(text):
    assert scores(text) == [0.1, 1.0, 0.25]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("```json\n\n```", "empty"),
        ("I'd say 0.9, 0.1, 0.5.", "not one JSON object"),
        (GOOD[:-5], "not one JSON object"),
        (GOOD + GOOD, "not one JSON object"),
        (f"Here you are:\n{GOOD}", "not one JSON object"),
        (f"One of them says\n```json\n{GOOD}\n```", "not one JSON object"),
        (f"```json\n{GOOD}\n```\n```json\n{GOOD}\n```", "not one JSON object"),
        (f"```json\n{GOOD}", "not one JSON object"),
        (f"<think>{GOOD}", "not one JSON object"),
        ("[" * 100_000, "not one JSON object"),
        ("9" * 5_000, "not one JSON object"),
        ("null", "expected"),
        ("[0.1, 1, 0.25]", "expected"),
        ('{"scores": {"1": 0.1, "2": 1, "3": 0.25}}', "expected"),
        ('{"scores": [0.1, 1, 0.25]}', "expected an object"),
        (GOOD.replace('"score": 1,', '"score": 1, "score": 0,').replace('"score": 1}', '"score": 1, "score": 0}'), "twice"),
        ('{"scores": [], ' + GOOD[1:], "twice"),
        (GOOD.replace("0.25", "NaN"), "NaN"),
        (GOOD.replace("0.25", "-Infinity"), "Infinity"),
        (GOOD.replace("0.25", "1e999"), "id '3' is inf"),
        (GOOD.replace('"2"', '"1"'), "id 1 is scored twice"),
        (GOOD.replace('"2"', '"4"'), "no score for id 2 and a score for id '4'"),
        (GOOD.replace('"2"', "2.0"), "trajectory_id"),
        (GOOD.replace('"1"', "true"), "trajectory_id"),
        (GOOD.replace('"fine"', "null", 1), "explanation"),
        (GOOD.replace('"fine"', r'"\ud83d"', 1), "explanation of id '1' must be a string without unpaired surrogates"),
        (json.dumps({"scores": [entry("1"), entry("2")]}), "no score for id 3"),
        (json.dumps({"scores": [entry("1", None), entry("2"), entry("3")]}), "id '1' is None"),
    ],
)
def test_rejected_answers_and_their_reasons(text, reason):
    with pytest.raises(UnusableAnswer, match=re.escape(reason)):
        parse(text, IDS)


@pytest.mark.parametrize(
    "score", ["7", "10", "-0.1", "1.0001", "true", '"10"', '"0.8x"', '"80%"', '"8/10"', '"NaN"', '"1e-1"', '"٠.٥"', '"0,8"', "[0.1]", '""']
)
def test_a_score_is_a_number_from_0_to_1(score):
    with pytest.raises(UnusableAnswer, match="id '1' is"):
        parse(GOOD.replace("0.1", score), IDS)


def test_the_reason_is_short_ascii_for_any_answer():
    with pytest.raises(UnusableAnswer) as error:
        parse("\ud83d\x1b[31m" + "é" * 100_000, IDS)
    assert len(str(error.value)) < 500 and str(error.value).isascii() and "\x1b" not in str(error.value)


def test_the_schema_agrees_with_parse():
    schema = response_format(IDS)["json_schema"]["schema"]
    item = schema["properties"]["scores"]["items"]
    assert item["required"] == list(item["properties"]) == list(entry())
    assert item["properties"]["trajectory_id"]["enum"] == IDS


# (value given as a score, the score that it is parsed to or None)
SCORES = [
    ("0", 0.0), ("1", 1.0), ("0.37", 0.37), ("1e-3", 0.001), ('"0.8"', 0.8), ('"1"', 1.0), ("0.0", 0.0), ("-0.0", 0.0),
    ("7", None), ('"10"', None), ('"0.8x"', None), ("-1", None), ("null", None), ("NaN", None), ("1.5", None), ("[]", None),
    ("Infinity", None), ("{}", None), ('""', None), ("false", None), ("0.5.1", None), ("", None), ('"high"', None), (".5", None),
]  # fmt: skip
# (what is put around the answer, whether it may stand there)
WRAPPINGS = [
    ("{}", True), ("```json\n{}\n```", True), ("<think>hm</think>{}", True), (" \n{}\n\t", True),
    ("Sure! {}", False), ("{}\nHope this helps.", False), ("```json\n{}", False), ("[{}]", False), ("{}{}", False), ("'{}'", False),
]  # fmt: skip


def test_fuzzed_answers_of_known_meaning():
    """6,000 generated answers, valid or invalid by construction of parts, ids and wrapping."""
    rng, accepted = random.Random(0), 0
    for _ in range(6_000):
        ids = [str(i) for i in range(1, rng.randint(1, 8) + 1)]
        odd = rng.random()
        drawn = [rng.choice(SCORES[:8] if rng.random() < 0.93 else SCORES) for _ in ids]
        named = list(zip(ids, drawn, strict=True))
        fits = True
        if odd < 0.1:
            named, fits = named[:-1], False
        elif odd < 0.2:
            named, fits = [*named, rng.choice(named)], False
        elif odd < 0.3:
            named, fits = [*named, (rng.choice(["0", "99", "", "1 "]), ("0.5", 0.5))], False
        rng.shuffle(named)
        parts = ", ".join(f'{{"trajectory_id": "{i}", "explanation": "because", "score": {s}}}' for i, (s, _) in named)
        wrapping, allowed = rng.choice(WRAPPINGS if rng.random() < 0.3 else WRAPPINGS[:4])
        text = wrapping.replace("{}", f'{{"scores": [{parts}]}}')
        if fits and allowed and all(worth is not None for _, worth in drawn):
            assert scores(text, ids) == [worth for _, worth in drawn]
            accepted += 1
        else:
            with pytest.raises(UnusableAnswer):
                parse(text, ids)
    assert 1_000 < accepted < 5_000


def test_fuzzed_answers_damaged_at_random():
    """4,000 randomly corrupted answers: UnusableAnswer, or numbers that are in the text."""
    rng, accepted = random.Random(1), 0
    strange = ["\x00", "\ud800", "\N{ZERO WIDTH SPACE}", "NaN", '"', "{", "}", "]", "\\", "\\u0000", "1e5", "-", ",", "\u2028", "9"]
    for _ in range(4_000):
        text = answer(*(round(rng.random(), 3) for _ in IDS))
        for _ in range(rng.randint(1, 3)):
            i, j = sorted(rng.randrange(len(text) + 1) for _ in range(2))
            damaged = [
                text[:i],
                text[:i] + text[i + 1 :],
                text[:i] + rng.choice(strange) + text[i:],
                text[:i] + text[j:],
                text[:j] + text[i:],
                text[:i] + text[i:j][::-1] + text[j:],
            ]
            text = rng.choice(damaged[1:3] if rng.random() < 0.6 else damaged)
        try:
            found = parse(text, IDS)
        except UnusableAnswer:
            continue
        accepted += 1
        assert [score.trajectory_id for score in found] == IDS
        written = {float(number) for number in re.findall(r'"score": ?"?([0-9.]+(?:e-?[0-9]+)?)', text)}
        assert all(0 <= score.score <= 1 and score.score in written for score in found)
    assert 100 < accepted < 2_500


@pytest.mark.parametrize("sequence", ["\x1b[2J", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x9b31m", "\x1b", "\x00", "\x08", "\x7f"])
def test_a_judge_cannot_control_the_terminal(sequence):
    text = json.dumps({"scores": [{"trajectory_id": "1", "explanation": f"wr{sequence}ong\nline\té", "score": 0.5}]})
    assert parse(text, ["1"])[0].explanation == "wrong\nline\té"
