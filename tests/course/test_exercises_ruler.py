"""The exercises of notebook 05: right answers are accepted in any form, and a mistake gets its hint."""

import json

import pytest

from course.exercises import ruler
from course.exercises.ruler import EXERCISES, check
from game_2048 import legal_moves
from game_2048.players import corner_player


def pairs(truth, scores):
    """(true difference, difference of scores) of each pair with different truths."""
    n = range(len(truth))
    return [(truth[i] - truth[j], scores[i] - scores[j]) for i in n for j in n if i < j and truth[i] != truth[j]]


def entries(text):
    return [(entry["trajectory_id"], entry["score"]) for entry in json.loads(text)["scores"]]


def strict(text, ids):
    """Compare sorted ids: each requested id must be answered exactly once."""
    found = entries(text)
    sound = sorted(i for i, _ in found) == sorted(ids) and all(0 <= score <= 1 for _, score in found)
    return [dict(found)[i] for i in ids] if sound else None


def pushes_against_the_wall(board):
    """Return the first direction in which nothing moves, found by comparing each line before and after the move."""
    lines = {"left": board, "right": [row[::-1] for row in board], "up": list(zip(*board, strict=True))}
    lines["down"] = [column[::-1] for column in lines["up"]]
    for word, rows in lines.items():
        packed = [[tile for tile in row if tile] for row in rows]
        stuck = all(list(row[: len(p)]) == p for row, p in zip(rows, packed, strict=True))
        if stuck and not any(a == b for p in packed for a, b in zip(p, p[1:], strict=False)):
            return word
    return "up"


RIGHT = {
    "agreement": lambda t, s: sum((a * b > 0) + (b == 0) / 2 for a, b in pairs(t, s)) / len(pairs(t, s)),
    "read_scores": strict,
    "exploit": pushes_against_the_wall,
}

# exercise: [(a wrong answer, words of the hint for it)]
WRONG = {
    "agreement": [
        (lambda t, s: sum(a * b > 0 for a, b in pairs(t, s)) / len(pairs(t, s)), "half right, not as wrong"),
        (lambda t, s: sum(a * b >= 0 for a, b in pairs(t, s)) / len(pairs(t, s)), "half right, not as right"),
        (lambda t, s: sum((a * b > 0) + (b == 0) / 2 for a, b in pairs(t, s)) / (len(t) * (len(t) - 1) / 2), "out of the number of pairs"),
        (lambda t, s: sum((a * b > 0) - (a * b < 0) for a, b in pairs(t, s)) / len(pairs(t, s)), "Return the share of right"),
        (lambda t, s: 1.0, "For the input"),
    ],
    "read_scores": [
        (lambda text, ids: [score for _, score in entries(text)] if strict(text, ids) else None, "in the order of `ids`"),
        (lambda text, ids: (lambda d: [d.get(i, 0.0) for i in ids] if {*d} <= {*ids} and len(d) == len(entries(text)) and 0 <= min(d.values()) and max(d.values()) <= 1 else None)(dict(entries(text))), "An invented score of zero"),
        (lambda text, ids: (lambda f: [min(1, max(0, dict(f)[i])) for i in ids] if sorted(i for i, _ in f) == sorted(ids) else None)(entries(text)), "7 may be out of 10"),
        (lambda text, ids: (lambda d: [d[i] for i in ids] if {*d} == {*ids} and 0 <= min(d.values()) and max(d.values()) <= 1 else None)(dict(entries(text))), "two scores"),
        (lambda text, ids: (lambda f: [dict(f)[i] for i in ids] if {*ids} <= {*dict(f)} and len(dict(f)) == len(f) and 0 <= min(dict(f).values()) and max(dict(f).values()) <= 1 else None)(entries(text)), "the judge has confused something"),
        (lambda text, ids: [dict(entries(text))[i] for i in ids], "KeyError"),
        (lambda text, ids: (lambda f: [dict(f)[i] for i in ids] if sorted(i for i, _ in f) == sorted(ids) and max(s for _, s in f) <= 1 else None)(entries(text)), "For the input"),
        (lambda text, ids: (lambda f: [dict(f)[i] for i in ids] if sorted(i for i, _ in f) == sorted(ids) and all(0 < s < 1 for _, s in f) else None)(entries(text)), "For the input"),
    ],
    "exploit": [
        (lambda board: "stay", "An answer that is not"),
        (lambda board: 3, "An answer that is not"),
        (corner_player, "still wins"),
        (lambda board: legal_moves(board)[0] if sum(map(sum, board)) < 60 else pushes_against_the_wall(board), "prefers short ones: at most 10 turns"),
        (lambda board: 1 / 0, "ZeroDivisionError"),
    ],
    "criterion": [
        (lambda boards, answers: len(answers), "Expected a number from 0 to 1, got 2"),
        (lambda boards, answers: "long", "Expected a number from 0 to 1, got 'long'"),
        (lambda boards, answers: -1.0, "Expected a number from 0 to 1, got -1.0"),
        (lambda boards: 0.5, "raised TypeError"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("exercise", EXERCISES)
def test_right_answers_are_right(exercise):
    assert list(WRONG) == list(EXERCISES)
    if exercise in RIGHT:
        assert check(exercise, RIGHT[exercise]).status == check(exercise, EXERCISES[exercise].right).status == "right"
    assert check(exercise, lambda *inputs: None).status == "not attempted"


@pytest.mark.parametrize("exercise", EXERCISES)
def test_a_wrong_answer_gets_the_hint_that_names_its_mistake(exercise):
    for wrong, words in WRONG[exercise]:
        verdict = check(exercise, wrong)
        assert verdict.status == "wrong" and words in verdict.text, verdict


def test_a_criterion_may_change_its_lists(monkeypatch):
    monkeypatch.setattr(ruler, "won_with", lambda criterion: [0.5, 0.5, 0.5])
    assert [check("criterion", lambda boards, answers: 0.5 * bool(boards.pop())).status for _ in range(4)] == ["right"] * 4
