"""Which numbers of a run say nothing so far, and why: TrainingView gives each of them one line in place of a chart."""

from __future__ import annotations

from collections.abc import Iterable

from .view import number

LOSS_NEAR_ZERO = 0.01
ONE_LENGTH = 0.05  # of the largest
ENOUGH = 3  # rows that must agree before a number of the task's is called constant

CLIP = "0 at every step. With one update for each batch (num_updates=1) no token can leave the clip range."
KL = "0: it is measured before the update, and the policy has not moved from the base model yet."
LOSS = "within {most} of 0, which is right: the advantages of a group add up to zero. Its gradient is not, and that learns."


def quiet_panels(rows: list[dict], keys: Iterable[str]) -> dict[str, str]:
    """{key: why it is quiet}, for those of `keys` that are."""
    columns = {key: [row[key] for row in rows if row.get(key) is not None] for key in keys}
    reasons = {key: _reason(key, values) for key, values in columns.items() if values}
    return {key: reason for key, reason in reasons.items() if reason}


def _reason(key: str, values: list[float]) -> str | None:
    low, high = min(values), max(values)
    most = max(abs(low), abs(high))
    if key == "clip_fraction":
        return CLIP if most == 0 else None
    if key == "kl":
        return KL if most == 0 else None
    if key == "loss":
        return LOSS.format(most=number(most)) if most < LOSS_NEAR_ZERO else None
    if key == "completion_tokens" and high - low <= ONE_LENGTH * most:
        return f"{_range(low, high)} at every step: all answers are about as long."
    return f"{number(low)} at every step so far." if low == high and len(values) >= ENOUGH else None


def _range(low: float, high: float) -> str:
    return number(low) if number(low) == number(high) else f"{number(low)} to {number(high)}"
