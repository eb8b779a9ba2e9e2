"""Questions of a generated dataset that no other split has, and the rule that always gives the most frequent answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from course.splits import distinct

if TYPE_CHECKING:
    from art_nb.environments.adapters.reasoning_gym import ReasoningGymEnvironment

Row = dict[str, Any]  # arguments of `reset`: split and index


def distinct_rows(environment: ReasoningGymEnvironment, **counts: int) -> dict[str, list[Row]]:
    """Return `counts[split]` rows of each split, such as `test=200, val=40, train=192`; see `distinct`.

    No question is in two splits, not even with its blank-separated words in another order ("2 + 3", "3 + 2").
    """
    return distinct(
        lambda split: ({"split": split, "index": index} for index in range(environment.size)),
        lambda row: tuple(sorted(environment.reset(**row).split())),
        **counts,
    )


def most_frequent_answer(environment: ReasoningGymEnvironment, rows: list[Row]) -> str:
    """Return the right answer that is most frequent in `rows`."""

    def answer(row: Row) -> str:
        environment.reset(**row)
        return str(environment.item["answer"])

    return Counter(map(answer, rows)).most_common(1)[0][0]


def played_by_rule(environment: ReasoningGymEnvironment, rows: list[Row], rule: Callable[[dict], str]) -> list[bool]:
    """Return whether the rule, a function of reasoning-gym's item, answers each of `rows` correctly."""
    right = []
    for row in rows:
        environment.reset(**row)
        environment.answer(rule(environment.item))
        right.append(environment.get_reward() == 1)
    return right
