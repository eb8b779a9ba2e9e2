"""Mean differences of paired measurements."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from course.comparison import paired_difference


def paired(before: Sequence[float], after: Sequence[float], unit: float = 100) -> dict[str, float]:
    """Return the means before and after, and the mean rise with a 95% interval over the pairs.

    unit: a factor for all numbers; 100 gives percent.
    """
    rise, low, high = (unit * bound for bound in paired_difference(before, after))
    return {"before": unit * fmean(before), "after": unit * fmean(after), "rise": rise, "low": low, "high": high}
