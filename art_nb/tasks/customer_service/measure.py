"""How reliably tasks are solved: pass^k, the chance that k tries of one task all succeed."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art_nb.rewards.agreement import Estimate


def pass_hat_k(solved: Sequence[Sequence[float]], k: int) -> Estimate:
    """pass^k, and its 95% interval for other tasks of the same kind (bootstrap over tasks).

    solved: for each task its tries, 1 for a solved one and 0 for another; tasks may differ in how often they were tried.
    pass^1 is the share of tries that succeed. An agent that solves each try by luck falls with k; one that can do some
    tasks and not others does not.

    Raises: ValueError without tasks, or for a task tried less than k times.
    Source: Yao et al., tau-bench, 2024, section 4: the mean over tasks of C(c, k) / C(n, k), c of n tries solved.
    """
    from art_nb.rewards.agreement import mean

    if k < 1 or not solved or min(map(len, solved)) < k:
        raise ValueError(f"pass^{k} needs tasks with at least {max(k, 1)} tries each")
    estimate = mean([comb(round(sum(tries)), k) / comb(len(tries), k) for tries in solved])
    assert estimate is not None  # there are tasks
    return estimate
