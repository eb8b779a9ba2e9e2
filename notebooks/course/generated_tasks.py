"""Questions of a generated dataset that no other split has, and the rule that always gives the most frequent answer."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art_nb.environments.adapters.reasoning_gym import ReasoningGymEnvironment

Row = dict[str, int | str]  # what `reset` takes: split and index


def distinct_rows(environment: ReasoningGymEnvironment, **counts: int) -> dict[str, list[Row]]:
    """Return `counts[split]` rows of each split, such as `test=200, val=40, train=192`.

    No question is in two splits, also not with its words in another order ("2 + 3", "3 + 2"). In the last split a question
    may occur twice. Generators repeat themselves when a configuration allows few questions.

    Raises: ValueError when a split has too few.
    """
    taken: set[tuple[str, ...]] = set()
    found: dict[str, list[Row]] = {}
    for split, count in counts.items():
        last, found[split] = split == list(counts)[-1], []
        for index in range(environment.size):
            if len(found[split]) == count:
                break
            words = tuple(sorted(environment.reset(index, split).split()))
            if words not in taken:
                found[split].append({"split": split, "index": index})
                if not last:
                    taken.add(words)
        if len(found[split]) < count:
            raise ValueError(f"{split} has {len(found[split])} questions that no other split has; expected {count}")
    return found


def most_frequent_answer(environment: ReasoningGymEnvironment, rows: list[Row], held_out: list[Row]) -> list[bool]:
    """Return whether the answer that is most frequent in `rows` is right for each of `held_out`."""

    def answer(row: Row) -> str:
        environment.reset(**row)  # type: ignore[arg-type]
        return str(environment.item["answer"])

    (constant, _), *_ = Counter(map(answer, rows)).most_common(1)
    right = []
    for row in held_out:
        environment.reset(**row)  # type: ignore[arg-type]
        environment.answer(constant)
        right.append(environment.get_reward() == 1)
    return right
