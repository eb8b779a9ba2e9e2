"""The exercises of notebook 11: right answers are accepted in any form, and a mistake gets its hint."""

from zlib import crc32

import numpy as np
import pytest
from exercise_answers import hold

from course.exercises import serve
from course.exercises.serve import EXERCISES, LossyServer, check


def train_once(send, batch, new_key):
    key, result = new_key(), None
    while result is None:
        try:
            result = send(key, batch)
        except OSError:
            continue
    return result


def retrying(attempt, most=100):
    """Return a function that calls `attempt(send, batch, new_key)` until it does not fail, at most `most` times."""

    def answer(send, batch, new_key):
        for _ in range(most):
            try:
                return attempt(send, batch, new_key)
            except ConnectionError:
                pass

    return answer


def never_returns(send, batch, new_key):
    key = new_key()
    while True:
        retrying(lambda send, batch, _: send(key, batch))(send, batch, new_key)


def swallows_everything(send, batch, new_key):
    key = new_key()
    while True:
        try:
            send(key, batch)
        except Exception:
            pass


RIGHT = {
    "train_once": train_once,
    "free": lambda episodes, now: [
        i for i in range(len(episodes)) if episodes[i][0] in {"open"} or episodes[i][0] == "leased" and now > episodes[i][1]
    ],
    "seed": lambda step, group, member, turn: int(f"1{step:03}{group:03}{member:03}{turn:03}"),
}
WRONG = {
    "train_once": [
        (lambda send, batch, new_key: send(new_key(), batch), "A failed attempt ended"),
        (retrying(lambda send, batch, new_key: send(new_key(), batch)), "a new key is a new request"),
        (retrying(lambda send, batch, new_key: send("mine", batch)), "it knew the key"),
        (retrying(lambda send, batch, new_key: send(batch, batch), most=2), "gave up"),
        (lambda send, batch, new_key: bool(train_once(send, batch, new_key)), "you returned True"),
        (never_returns, "return after the first success"),
        (swallows_everything, "return after the first success"),
        (retrying(lambda send, batch, new_key: send(batch, batch), most=200), "did not train in step 2"),
        (retrying(lambda send, batch, new_key: send(batch, batch), most=10), "gave up"),
        (lambda send, batch, new_key: f"result of {batch}", "it got nothing"),
    ],
    "free": [
        (lambda episodes, now: [i for i, (state, _) in enumerate(episodes) if state == "open"], "never leased"),
        (lambda episodes, now: [i for i, (state, _) in enumerate(episodes) if state != "done"], "An unexpired lease"),
        (lambda episodes, now: [i for i, (_, until) in enumerate(episodes) if until is None or until < now], "stays finished"),
        (lambda episodes, now: [], "For the input"),
        (lambda episodes, now: [i for i, (s, until) in enumerate(episodes) if s == "open" or s == "leased" and until and until < now], "For the input"),
    ],
    "seed": [
        (lambda step, group, member, turn: step + group + member + turn, "get the same seed"),
        (lambda step, group, member, turn: ((step * 100 + group) * 100 + member) * 100 + turn, "get the same seed"),
        (lambda *place: crc32(repr(place).encode()), "so few seeds"),
        (lambda step, group, member, turn: 7919 * step + 104729 * group + 1299709 * member + 15485863 * turn, "so few seeds"),
        (lambda step, group, member, turn: -1, "at least 0"),
        (lambda step, group, member, turn: id(object()) + turn, "get the same seed"),
        (lambda step, group, member, turn: float(step), "at least 0"),
    ],
}


def test_every_exercise_is_checked():
    assert [*RIGHT, "silent"] == list(EXERCISES)  # that one trains: test_exercises_training.py


@pytest.mark.parametrize("exercise", RIGHT)
def test_right_answers_and_mistakes(exercise):
    hold(check, exercise, (RIGHT[exercise], EXERCISES[exercise].right), WRONG[exercise])


def test_a_seed_that_differs_between_calls_gets_its_hint():
    from itertools import count

    numbers = count()
    assert "the same seed each time" in check("seed", lambda step, group, member, turn: next(numbers)).text


def test_a_seed_may_be_an_integer_of_numpy(monkeypatch):
    monkeypatch.setattr(serve, "trained_with", lambda seed_of: ([0.5], [type(seed_of(0, 0, 0, 0)) is int]))
    assert check("silent", lambda step, group, member, turn: np.int64(turn)).status == "right"


def test_the_server_trains_once_per_key():
    server = LossyServer()
    for _ in range(2):
        with pytest.raises(ConnectionError, match="lost"):
            server.send("a", "batch")
    assert server.trained == ["batch"]
