"""Mean differences of paired measurements."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev


def paired(before: Sequence[float], after: Sequence[float], unit: float = 100) -> dict[str, float]:
    """Return the means before and after, and the mean rise with a 95% interval over the pairs.

    unit: a factor for all numbers; 100 gives percent.
    """
    differences = [unit * (a - b) for b, a in zip(before, after, strict=True)]
    rise, half = fmean(differences), NormalDist().inv_cdf(0.975) * stdev(differences) / len(differences) ** 0.5
    means = {"before": unit * fmean(before), "after": unit * fmean(after)}
    return {**means, "rise": rise, "low": rise - half, "high": rise + half}
