"""How much better the same questions or games went afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev


def paired(before: Sequence[float], after: Sequence[float], unit: float = 100) -> dict[str, float]:
    """The means, in units, before and after, and the mean rise with its 95% interval, pair by pair.

    unit: 100 gives shares in percent.
    """
    differences = [unit * (a - b) for b, a in zip(before, after, strict=True)]
    rise, half = fmean(differences), NormalDist().inv_cdf(0.975) * stdev(differences) / len(differences) ** 0.5
    means = {"before": unit * fmean(before), "after": unit * fmean(after)}
    return {**means, "rise": rise, "low": rise - half, "high": rise + half}
