"""The exercises of notebook 13: right answers are accepted in any form, and a mistake gets its hint."""

import random
from statistics import fmean

import numpy as np
import pytest
from exercise_answers import hold

from course.exercises import other_environments
from course.exercises.other_environments import EXERCISES, Safe, SafeEnvironment, check, code_of
from course.frozen_lake import MAX_TURNS, STEPS, board, careful_chance, distinct_lakes, lake
from course.generated_tasks import distinct_rows, most_frequent_answer, played_by_rule


class WithAFactory:
    """A right answer of another form: the state is made in `__init__`, `over` is an attribute, the tool answers in a sentence."""

    def __init__(self):
        self.safe, self.over = None, False

    def reset(self, index: int, **row):
        self.safe, self.over = Safe(code_of(index)), False
        return "Find the number."

    def turn(self, number: int) -> str:
        """
        Turn.

        Args:
            number: 1 to 50.
        """
        said = self.safe.turn(number)
        self.over = self.safe.open or self.safe.turned == 8
        return f"It says: {said}."

    def get_reward(self) -> int:
        return int(self.safe.open)


class Wordy(SafeEnvironment):
    def turn(self, number: int) -> str:
        """
        Turn.

        Args:
            number: 1 to 50.
        """
        words = {"higher": "Higher. It does not open.", "lower": "Not higher, but lower.", "open": "You are in."}
        return words[super().turn(number)]


class Mute(SafeEnvironment):
    def turn(self, number: int) -> None:
        """
        Turn.

        Args:
            number: 1 to 50.
        """
        super().turn(number)


class Uninformative(SafeEnvironment):
    def turn(self, number: int) -> str:
        """
        Turn.

        Args:
            number: 1 to 50.
        """
        super().turn(number)
        return f"You turned the dial to {number}."


class Silent(SafeEnvironment):
    def reset(self, index: int = 0, **row):
        super().reset(index)


class TwoTools(SafeEnvironment):
    def hint(self) -> str:
        """Return the number."""
        return str(self.safe.code)


class NeverOver(SafeEnvironment):
    over = False


class Shared(SafeEnvironment):
    safes: dict = {}

    @property
    def safe(self):
        return self.safes[0]

    @safe.setter
    def safe(self, new):
        self.safes.setdefault(0, new)


class OneSafe(SafeEnvironment):
    def reset(self, index: int = 0, **row):
        return super().reset(7)


class Shifted(SafeEnvironment):
    def reset(self, index: int = 0, **row):
        return super().reset(index + 5)


class PaidForTurns(SafeEnvironment):
    def get_reward(self) -> float:
        return self.safe.turned / 8


def free(row):
    return max(value for name, value in row.items() if name != "pass@8")


RIGHT = {
    "adapter": WithAFactory,
    "worth": lambda tasks: sorted(tasks, key=lambda name: free(tasks[name]) - tasks[name]["pass@8"])[0],
}
WRONG = {
    "adapter": [
        (Silent, "must return the task as text"), (TwoTools, "it sees hint, turn"), (NeverOver, "`over` true"),
        (Shared, "an environment must keep its own state"), (OneSafe, "use `code_of(index)`"),
        (Shifted, "use `code_of(index)`"), (Uninformative, "must read whether the number"), (SafeEnvironment(), "Expected a class"),
        (PaidForTurns, "must be 1 and `over` true"), (Mute, "must read whether the number is higher or lower"),
    ],
    "worth": [
        (lambda tasks: max(tasks, key=lambda name: tasks[name]["pass@8"]), "the highest pass@8"),
        (lambda tasks: max(tasks, key=lambda name: tasks[name]["pass@8"] - tasks[name]["T = 1"]), "a lower one is free"),
        (lambda tasks: max(tasks, key=lambda n: tasks[n]["pass@8"] - max(tasks[n][f"T = {t}"] for t in ("1", "0.5", "0.3", "0"))), "forgets the rule"),
        (lambda tasks: next(iter(tasks)), "expected"),
    ],
    "memorised": [
        (lambda step: [0], "Expected a list of 8 seeds"), (lambda step: range(8), "Expected a list of 8 seeds"),
        (lambda step: [1_000_000] * 8, "are held out"), (lambda step: [1 // step] * 8, "raised ZeroDivisionError"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("exercise", EXERCISES)
def test_right_answers_and_mistakes(exercise):
    right = (RIGHT[exercise], EXERCISES[exercise].right) if exercise in RIGHT else ()
    right += (Wordy,) if exercise == "adapter" else ()
    hold(check, exercise, right, WRONG[exercise])


def test_the_lakes_of_training_are_chosen_once(monkeypatch):
    chosen, seeds = [], iter(range(10**9))
    monkeypatch.setattr(other_environments, "train_on", lambda maps: chosen.extend(maps(0) + maps(0)) or ([0.5], 0.9, 0.1))
    assert check("memorised", lambda step: [np.int64(next(seeds)) for _ in range(8)]).status == "right"
    assert chosen[:8] == chosen[8:] and {type(seed) for seed in chosen} == {int}


def test_no_lake_is_in_two_splits_and_the_goal_can_be_reached_on_each():
    found = distinct_lakes(test=60, val=20, train=200)
    lakes = {split: ["".join(board(seed)) for seed in seeds] for split, seeds in found.items()}
    assert [len(seeds) for seeds in found.values()] == [60, 20, 200]
    assert not set(lakes["test"]) & set(lakes["val"]) and not set(lakes["train"]) & {*lakes["test"], *lakes["val"]}
    assert len(set(lakes["test"])) == 60
    for rows in lakes["test"]:
        reached, todo = set(), [0]
        while todo:
            at = todo.pop()
            if at not in reached and rows[at] != "H":
                reached.add(at)
                todo += [at - 4] * (at > 3) + [at + 4] * (at < 12) + [at - 1] * (at % 4 > 0) + [at + 1] * (at % 4 < 3)
        assert 15 in reached


def test_the_lake_is_drawn_for_the_model():
    with lake(0) as environment:
        assert environment.reset().splitlines()[1:] == ["2 . . .", "4 4 . .", ". 4 4 .", "4 . . 8"]
        assert environment.act("right").splitlines()[0] == ". 2 . ."


def careful_walk(seed, draw):
    """Walk once over the lake of gymnasium as the careful player does. Returns the reward."""
    rows = board(seed)
    with lake(seed) as environment:
        seen = environment.reset(seed=seed).splitlines()[-4:]
        for _ in range(MAX_TURNS):
            place = divmod(" ".join(seen).split().index("2"), 4)
            near = {name: (place[0] + down, place[1] + right) for name, (down, right) in STEPS.items()}
            free = [n for n, (r, c) in near.items() if r in range(4) and c in range(4) and rows[r][c] != "H"]
            seen = environment.act(draw.choice([n for n in free if n in ("down", "right")] or free)).splitlines()
            if environment.over:
                break
        return environment.get_reward()


def test_the_careful_players_chance_is_its_share_of_walks():
    seeds, draw = distinct_lakes(test=12)["test"], random.Random(0)
    for seed in seeds:
        walks = [careful_walk(seed, draw) for _ in range(200)]
        assert fmean(walks) == pytest.approx(careful_chance(seed), abs=0.15)
    assert all(careful_chance(seed) == 1 for seed in distinct_lakes(test=200)["test"] if "H" not in "".join(board(seed)))


class Questions:
    """A data set of sums of two digits, whose splits overlap."""

    size, item = 60, {}

    def reset(self, index=0, split="train"):
        a, b = index % 6, (index // 6 + len(split)) % 6
        self.item, self.given = {"answer": str(a + b)}, None
        return f"What is {a} + {b} ?"

    def answer(self, text):
        self.given = text

    def get_reward(self):
        return float(self.given == self.item["answer"])


def test_no_question_is_in_two_splits():
    questions = Questions()
    found = distinct_rows(questions, test=6, val=5, train=12)
    asked = {split: {tuple(sorted(questions.reset(**row).split())) for row in rows} for split, rows in found.items()}
    assert len(asked["test"]) == 6 and len(asked["val"]) == 5
    assert not asked["train"] & (asked["test"] | asked["val"]) and not asked["val"] & asked["test"]
    with pytest.raises(ValueError, match="expected 40"):
        distinct_rows(questions, test=40, train=1)


def test_the_most_frequent_answer_is_that_of_training():
    questions = Questions()
    rows = [{"index": index, "split": "train"} for index in (0, 0, 1)]
    questions.reset(0)
    constant = questions.item["answer"]
    held_out = [{"index": index, "split": "val"} for index in range(12)]
    expected = [questions.reset(**row) and questions.item["answer"] == constant for row in held_out]
    assert most_frequent_answer(questions, rows) == constant and True in expected
    assert played_by_rule(questions, held_out, lambda item: constant) == expected
    assert all(played_by_rule(questions, held_out, lambda item: item["answer"]))
