"""pass^k: the probability that k attempts at the same task all succeed."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art_nb.rewards.agreement import Estimate


def pass_hat_k(solved: Sequence[Sequence[float]], k: int) -> Estimate:
    """Return an unbiased estimate of pass^k with a 95% interval (bootstrap over tasks).

    solved: the attempts of each task, 1 for a solved attempt and 0 otherwise. Tasks may have different numbers of attempts.

    pass^1 is the mean success rate. pass^k falls with k if the agent solves each task only sometimes; it stays constant if
    the agent always solves some tasks and never the others.

    Raises: ValueError without tasks, for a task with fewer than k attempts, and for a value other than 0 and 1.
    Source: Yao et al., tau-bench, 2024, section 4: the mean over tasks of C(c, k) / C(n, k) for c solved of n attempts.
    """
    from art_nb.rewards.agreement import mean

    if k < 1 or not solved or min(map(len, solved)) < k:
        raise ValueError(f"pass^{k} needs k of at least 1, at least one task, and k or more attempts per task")
    if unexpected := [value for attempts in solved for value in attempts if value not in (0, 1)]:
        raise ValueError(f"an attempt is {unexpected[0]!r}: expected 1 for a solved attempt and 0 otherwise")
    estimate = mean([comb(round(sum(attempts)), k) / comb(len(attempts), k) for attempts in solved])
    assert estimate is not None  # None only without tasks
    return estimate
