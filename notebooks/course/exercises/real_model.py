"""The exercises of notebook 06, A real model."""

from __future__ import annotations

import re
from itertools import pairwise
from os.path import commonprefix

from course.exercises import Exercise, checker


def _paid(answer: str, truth: int) -> float:
    return float(answer.strip().removesuffix(".") == str(truth))


PAID = [
    ("42", 42), ("The price is 43.", 43), ("42.", 42), (" 42\n", 42), ("43", 42), ("142", 42), ("", 42), ("42 or 43", 42),
    ("23 + 19 = 42", 42), ("042", 42), ("4", 42), (" 42.\n", 42), ("42..", 42), (".42", 42), ("4.2", 42),
    ("42 .", 42),
]  # fmt: skip


def _distinct(sequences: list[list[int]]) -> int:
    return len({tuple(ids[: n + 1]) for ids in sequences for n in range(len(ids))})


SEQUENCES = [
    [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6]], [[1, 2, 3], [1, 2, 3]], [[1, 2, 3], [4, 2, 3]], [[1, 1, 1], [1, 1, 1, 1]],
    [[1, 2, 3, 4], [1, 2, 3, 5], [7, 8, 9], [7, 8, 6], [7]],
    [[1, 2], [3], [1, 2, 4]], [[1, 12], [11, 2], [112]],
]  # fmt: skip


def _shared_by_all(sequences: list[list[int]]) -> int:
    shared = len(commonprefix(sequences))
    return shared + sum(len(ids) - shared for ids in sequences)


def _beyond_the_one_before(sequences: list[list[int]]) -> int:
    return sum(len(ids) - len(commonprefix([before, ids])) for before, ids in pairwise([[], *sequences]))


def _signal(p: float, size: int) -> float:
    return 1 - p**size - (1 - p) ** size


EXACT = Exercise(
    right=_paid,
    cases=lambda: PAID,
    mistakes={
        "'142' contains '42', and so does 'It is 42 or 43': a list of many numbers would be rewarded.":
            lambda answer, truth: float(str(truth) in answer),
        "You also reward a sentence that ends with the number. Reward the number alone.":
            lambda answer, truth: float(re.findall(r"\d+", answer)[-1:] == [str(truth)]),
        "Ignore whitespace around the number and a full stop after it.":
            lambda answer, truth: float(answer == str(truth)),
        "Remove the whitespace first: a newline may follow the full stop.":
            lambda answer, truth: float(answer.removesuffix(".").strip() == str(truth)),
        "Ignore one full stop after the number, not several and not one elsewhere.":
            lambda answer, truth: float(answer.strip().rstrip(".") == str(truth)),
        "Ignore a full stop after the number.": lambda answer, truth: float(answer.strip() == str(truth)),
        "Ignore whitespace around the number.":
            lambda answer, truth: float(answer.removesuffix(".") == str(truth)),
    },
)  # fmt: skip
DISTINCT = Exercise(
    right=_distinct,
    cases=lambda: [(sequences,) for sequences in SEQUENCES],
    mistakes={
        "This is the number of all tokens: nothing is shared yet.": lambda sequences: sum(map(len, sequences)),
        "These are the distinct ids. A node is a token with all tokens before it: the same id after other tokens is "
        "another node.": lambda sequences: len({token for ids in sequences for token in ids}),
        "The same id at the same position is the same node only if all tokens before it are equal, too.":
            lambda sequences: len({(n, token) for ids in sequences for n, token in enumerate(ids)}),
        "You share the prefix that all sequences have in common. Some of them share a longer prefix.": _shared_by_all,
        "You compare each sequence with the one before it only. They need not be sorted: compare with all.":
            _beyond_the_one_before,
        "Equal sequences are one path; but two that differ only at the end share their beginning as well.":
            lambda sequences: sum(map(len, {tuple(ids) for ids in sequences})),
    },
)  # fmt: skip
SIGNAL = Exercise(
    right=_signal,
    cases=lambda: [(0.01, 8), (0.5, 8), (0.95, 8), (0.1, 16), (0.3, 2)],
    mistakes={
        "A group in which all answers are right carries no signal either.": lambda p, size: 1 - (1 - p) ** size,
        "This is the probability of no signal.": lambda p, size: p**size + (1 - p) ** size,
        "Probabilities of different tries do not add up: a group with two right answers would count twice.":
            lambda p, size: p * size,
        "This is the probability of exactly one right answer.": lambda p, size: size * p * (1 - p) ** (size - 1),
        "A group in which all answers are wrong carries no signal either.": lambda p, size: 1 - p**size,
    },
)  # fmt: skip
COST = Exercise(
    right=lambda parameters, tokens: 4 * parameters * tokens,
    cases=lambda: [(134_515_008, 1), (1_000_000, 3000), (600_000_000, 20_000)],
    mistakes={
        "This is the forward pass alone.": lambda parameters, tokens: 2 * parameters * tokens,
        "This is the cost of training all weights. Those of the base model are frozen: no gradient with respect to them is "
        "computed.": lambda parameters, tokens: 6 * parameters * tokens,
        "Count the additions as well: each weight needs a multiplication and an addition per token.":
            lambda parameters, tokens: parameters * tokens,
    },
)  # fmt: skip

EXERCISES = {"exact": EXACT, "distinct": DISTINCT, "signal": SIGNAL, "cost": COST}

check = checker(EXERCISES)
