"""Agreement between two scorings of the same trajectories, and means over groups with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 2_000
Scores = Sequence[float]


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` groups with its 95% interval."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:6.3f}  [{self.low:.3f}, {self.high:.3f}]  n = {self.n}"


def mean(values: Scores, weights: Scores | None = None, seed: int = 0) -> Estimate | None:
    """Return the (weighted) mean of one value per group; None without values.

    The interval is the percentile bootstrap over groups, with DRAWS resamples. Source: Efron 1979. It is too narrow for
    few groups, and for shares near 0 or 1, because it resamples only the observed values: equal ones give a width of 0.
    """
    if not len(values):
        return None
    value, weight = np.asarray(values, float), np.ones(len(values)) if weights is None else np.asarray(weights, float)
    drawn = np.random.default_rng(seed).integers(len(value), size=(DRAWS, len(value)))
    means = (value * weight)[drawn].sum(1) / weight[drawn].sum(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Estimate(float((value * weight).sum() / weight.sum()), float(low), float(high), len(value))


def pairs_right(truth: Scores, scores: Scores) -> tuple[float, int]:
    """Return (pairwise accuracy of `scores`, number of pairs) over pairs untied in `truth`, or (0.0, 0). Ties count half."""
    by_truth, by_score = signs(truth), signs(scores)
    differ = by_truth != 0
    number = int(differ.sum()) // 2
    return (float((1 + by_truth * by_score)[differ].mean() / 2) if number else 0.0), number


def signs(values: Scores) -> np.ndarray:
    """Return the signs of value i minus value j, (n, n) int."""
    column = np.asarray(values, float)
    return np.sign(column[:, None] - column[None, :]).astype(int)
