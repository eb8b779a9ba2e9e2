"""The exercises of notebook 05."""

from __future__ import annotations

import re
from os.path import commonprefix

from art_nb.course.exercises import Exercise, checker


def _paid(answer: str, truth: int) -> float:
    return float(answer.strip().removesuffix(".") == str(truth))


PAID = [
    ("42", 42), ("The sum is 43.", 43), ("42.", 42), (" 42\n", 42), ("43", 42), ("142", 42), ("", 42), ("42 or 43", 42),
    ("23 + 19 = 42", 42), ("042", 42), ("4", 42),
]  # fmt: skip


def _distinct(sequences: list[list[int]]) -> int:
    return len({tuple(ids[: n + 1]) for ids in sequences for n in range(len(ids))})


SEQUENCES = [
    [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6]], [[1, 2, 3], [1, 2, 3]], [[1, 2, 3], [4, 2, 3]], [[1, 1, 1], [1, 1, 1, 1]],
    [[1, 2, 3, 4], [1, 2, 3, 5], [7, 8, 9], [7, 8, 6], [7]],
]  # fmt: skip


def _shared_by_all(sequences: list[list[int]]) -> int:
    shared = len(commonprefix(sequences))
    return shared + sum(len(ids) - shared for ids in sequences)


def _signal(p: float, size: int) -> float:
    return 1 - p**size - (1 - p) ** size


EXACT = Exercise(
    right=_paid,
    cases=lambda: PAID,
    mistakes={
        "'142' holds '42', and so does 'It is 42 or 43': whoever lists many numbers would be paid.":
            lambda answer, truth: float(str(truth) in answer),
        "A sentence that ends with the number is paid as well; here the number alone is asked for.":
            lambda answer, truth: float(re.findall(r"\d+", answer)[-1:] == [str(truth)]),
        "Blanks and line ends around the number, and a full stop behind it, do not matter.":
            lambda answer, truth: float(answer == str(truth)),
        "A full stop behind the number does not matter.": lambda answer, truth: float(answer.strip() == str(truth)),
        "Blanks and line ends around the number do not matter.":
            lambda answer, truth: float(answer.removesuffix(".") == str(truth)),
    },
)  # fmt: skip
DISTINCT = Exercise(
    right=_distinct,
    cases=lambda: [(sequences,) for sequences in SEQUENCES],
    mistakes={
        "These are all tokens: nothing is shared yet.": lambda sequences: sum(map(len, sequences)),
        "These are different ids. A token counts together with all that stands before it: the same id behind other "
        "tokens is another node.": lambda sequences: len({token for ids in sequences for token in ids}),
        "The same id at the same place is the same node only if all before it is the same, too.":
            lambda sequences: len({(n, token) for ids in sequences for n, token in enumerate(ids)}),
        "You share what all sequences begin with. Some of them share more among themselves.": _shared_by_all,
        "The same sequence twice is one path; but two that differ at the end share their beginning as well.":
            lambda sequences: sum(map(len, {tuple(ids) for ids in sequences})),
    },
)  # fmt: skip
SIGNAL = Exercise(
    right=_signal,
    cases=lambda: [(0.01, 8), (0.5, 8), (0.95, 8), (0.1, 16), (0.3, 2)],
    mistakes={
        "A group in which all answers are right carries no signal either.": lambda p, size: 1 - (1 - p) ** size,
        "This is the chance of no signal.": lambda p, size: p**size + (1 - p) ** size,
        "Chances of different tries do not add up: two right ones in a group would count twice.":
            lambda p, size: p * size,
        "This is the chance of exactly one right answer.": lambda p, size: size * p * (1 - p) ** (size - 1),
        "A group in which all answers are wrong carries no signal either.": lambda p, size: 1 - p**size,
    },
)  # fmt: skip
COST = Exercise(
    right=lambda parameters, tokens: 4 * parameters * tokens,
    cases=lambda: [(134_515_008, 1), (1_000_000, 3000), (600_000_000, 20_000)],
    mistakes={
        "This is the forward pass alone.": lambda parameters, tokens: 2 * parameters * tokens,
        "This is what training all weights takes. Those of the base model are frozen: no gradient with respect to them is "
        "computed.": lambda parameters, tokens: 6 * parameters * tokens,
        "Count the additions as well: a weight takes a multiplication and an addition for each token.":
            lambda parameters, tokens: parameters * tokens,
    },
)  # fmt: skip

EXERCISES = {"exact": EXACT, "distinct": DISTINCT, "signal": SIGNAL, "cost": COST}

check = checker(EXERCISES)
