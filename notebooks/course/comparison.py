"""Compare a trained policy with the untrained one, each at its best temperature, with pass@k and with a rule.

A policy sampled at a lower temperature usually succeeds more often. Training that only lowers the entropy has the same
effect, so a fair comparison chooses the best temperature of each side, on validation scenarios, and measures on others.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from math import comb
from statistics import NormalDist, fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from art_nb.rollouts.gathering import in_order

if TYPE_CHECKING:
    import pandas as pd

S = TypeVar("S")
Play = Callable[[S, float], Coroutine[Any, Any, Any]]  # (scenario, temperature) -> true for a success

TEMPERATURES = (1.0, 0.5, 0.3, 0.0)  # 0 is greedy
Z = NormalDist().inv_cdf(0.975)
COLOURS = {"untrained": "#c9a227", "trained": "#3b6fb6", "rule": "#7a8ca3", "failed": "#c4553b"}


class Interval(NamedTuple):
    """A value and its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f}% ({100 * self.low:.1f} to {100 * self.high:.1f})"


def share(successes: Sequence[float]) -> Interval:
    """Return the share of successes with Wilson's 95% interval (Wilson 1927).

    successes: True or False, or the mean of several tries; the interval is then as wide as that of one try each.
    Raises: ValueError when there is none, or one is not from 0 to 1.
    """
    if len(successes) == 0:
        raise ValueError("share needs at least one result; the list is empty")
    if outside := [each for each in successes if not 0 <= each <= 1]:
        raise ValueError(f"expected True, False or a mean from 0 to 1; got {outside[0]!r}")
    n, p = len(successes), fmean(map(float, successes))
    middle = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * (p * (1 - p) / n + Z**2 / (4 * n**2)) ** 0.5
    return Interval(p, max(0.0, min(p, middle - half)), min(1.0, max(p, middle + half)))  # rounding could exclude 0 or 1


def paired_difference(before: Sequence[float], after: Sequence[float]) -> Interval:
    """Return the mean of `after - before` over pairs, with a 95% interval (normal approximation).

    It is too narrow for few pairs, and for differences that are nearly all equal: if all are, its width is 0.

    Raises: ValueError when the lengths differ or there are fewer than two pairs.
    """
    if len(before) != len(after) or len(before) < 2:
        raise ValueError(f"expected two lists of equal length, at least 2; got {len(before)} and {len(after)} values")
    differences = [float(a) - float(b) for b, a in zip(before, after, strict=True)]
    mean, half = fmean(differences), Z * stdev(differences) / len(differences) ** 0.5
    return Interval(mean, mean - half, mean + half)


def pass_at_k(tries: Sequence[Sequence[bool]], k: int) -> float:
    """Return the probability that at least one of k tries at a scenario succeeds, averaged over the scenarios.

    tries: per scenario at least k results. Source: Chen et al. 2021 (arXiv 2107.03374), equation 1, the unbiased estimator.
    """
    if not tries or any(len(each) < k for each in tries):
        raise ValueError(f"pass@{k} needs at least {k} tries at every scenario")
    return fmean(1 - comb(sum(not hit for hit in each), k) / comb(len(each), k) for each in tries)


@dataclass(frozen=True)
class Comparison:
    """The results on test scenarios, in the same order of scenarios for every policy.

    untrained_t1, untrained_best, trained_t1, trained_best: whether the policy succeeded at each scenario. rule: the same,
        or its mean over several tries.
    untrained_temperature, trained_temperature: the best on validation. validation: temperature -> share, for both sides.
    pass_at: (k, pass@k of the untrained policy at temperature 1, number of scenarios). rule_name: of the rule.
    """

    untrained_t1: list[bool]
    untrained_best: list[bool]
    trained_t1: list[bool]
    trained_best: list[bool]
    rule: list[float]
    untrained_temperature: float
    trained_temperature: float
    validation: dict[str, dict[float, float]]
    pass_at: tuple[int, float, int]
    rule_name: str

    def rows(self) -> list[tuple[str, str, Sequence[float]]]:
        """Return (label, role, results) of each policy. role: "untrained", "trained" or "rule"."""
        found: list[tuple[str, str, Sequence[float]]] = [("untrained, T = 1", "untrained", self.untrained_t1)]
        if self.untrained_temperature != 1:
            found.append((f"untrained, {_named(self.untrained_temperature)}", "untrained", self.untrained_best))
        found.append((self.rule_name, "rule", self.rule))
        found.append(("trained, T = 1", "trained", self.trained_t1))
        if self.trained_temperature != 1:
            found.append((f"trained, {_named(self.trained_temperature)}", "trained", self.trained_best))
        return found

    def table(self) -> pd.DataFrame:
        """Return each policy's share of successes with a 95% interval, and the lead of the trained policy at its best."""
        import pandas as pd

        lines = []
        for label, _, results in self.rows():
            gain = "" if results is self.trained_best else _points(paired_difference(results, self.trained_best))
            lines.append({"policy": label, "succeeds": str(share(results)), "trained at its best is better by": gain})
        k, value, count = self.pass_at
        label = f"untrained, one of {k} tries (pass@{k})"
        lines.append({"policy": label, "succeeds": f"{100 * value:.1f}% of {count}", "trained at its best is better by": ""})
        return pd.DataFrame(lines).set_index("policy")

    def plot(self) -> None:
        """Draw the temperature sweep on validation, and the shares on test scenarios with their intervals."""
        import matplotlib.pyplot as plt

        _, (sweep, bars) = plt.subplots(1, 2, figsize=(9, 2.8), width_ratios=[2, 3], layout="constrained")
        for role, by_temperature in self.validation.items():
            points = sorted(by_temperature.items())
            sweep.plot([t for t, _ in points], [100 * p for _, p in points], "o-", color=COLOURS[role], label=role)
        sweep.set(xlabel="temperature", ylabel="validation successes, %", ylim=(-4, 104))
        sweep.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncol=2, frameon=False)
        rows = self.rows()
        labels, roles, results = zip(*rows, strict=True)
        shares = [share(successes) for successes in results]
        bars.barh(labels, [100 * s.value for s in shares], color=[COLOURS[role] for role in roles])
        errors = [[100 * (s.value - s.low) for s in shares], [100 * (s.high - s.value) for s in shares]]
        bars.errorbar([100 * s.value for s in shares], range(len(rows)), xerr=errors, fmt="none", color="black", capsize=3)
        k, value, _ = self.pass_at
        bars.axvline(100 * value, color=COLOURS["untrained"], linestyle=":", label=f"untrained, pass@{k}")
        bars.set(xlim=(0, 100), xlabel="test successes, % (95% interval)")
        bars.invert_yaxis()
        bars.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False)  # above the axes: it covers no bar
        plt.show()

    def summary(self) -> dict[str, float]:
        """Return the benchmarks' columns: percentages, temperatures, intervals of the rise and of the lead over the rule."""
        rise = paired_difference(self.untrained_best, self.trained_best)
        over_rule = paired_difference(self.rule, self.trained_best)
        k, value, _ = self.pass_at
        shares = {
            name: 100 * fmean(getattr(self, name))
            for name in ("untrained_t1", "untrained_best", "trained_t1", "trained_best", "rule")
        }
        return {
            **shares, f"pass_at_{k}_untrained": 100 * value,
            "untrained_temperature": self.untrained_temperature, "trained_temperature": self.trained_temperature,
            **{f"rise_{name}": 100 * x for name, x in zip(rise._fields, rise, strict=True)},
            **{f"over_rule_{name}": 100 * x for name, x in zip(over_rule._fields, over_rule, strict=True)},
        }  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """A policy's results. validation: temperature -> share; t1, best: on test scenarios; temperature: the best.

    t1 is empty if `measure` got `at_one=False`.
    """

    validation: dict[float, float]
    temperature: float
    t1: list[bool]
    best: list[bool]


async def measure(
    play: Play[S], validation: Sequence[S], test: Sequence[S], temperatures: Sequence[float] = TEMPERATURES,
    at_one: bool = True,
) -> Measured:  # fmt: skip
    """Choose the best temperature on validation, then play the test scenarios at the best, and at 1 (`at_one`).

    Games that do not depend on the choice run concurrently: in large batches a scenario takes less time. If a game raises,
    the others are cancelled.
    """
    sets = [(validation, t) for t in temperatures] + [(test, 1.0)] * at_one
    found = await in_order(_successes(play, *each) for each in sets)
    shares = {t: fmean(hits) for t, hits in zip(temperatures, found, strict=False)}
    best = max(shares, key=lambda t: (shares[t], t))  # in a tie the higher temperature, which explores more
    t1 = found[-1] if at_one else []
    return Measured(shares, best, t1, t1 if t1 and best == 1 else await _successes(play, test, best))


async def tries_at(play: Play[S], scenarios: Sequence[S], k: int) -> list[list[bool]]:
    """Play each scenario k times at temperature 1."""
    results = await _successes(play, [scenario for scenario in scenarios for _ in range(k)], 1.0)
    return [results[i : i + k] for i in range(0, len(results), k)]


def compare(
    untrained: Measured, trained: Measured, rule: Sequence[float], rule_name: str, tries: Sequence[Sequence[bool]]
) -> Comparison:
    """Return the comparison. rule: see `Comparison`. tries: k per scenario of the untrained policy, see `tries_at`."""
    k = len(tries[0]) if len(tries) else 1
    pass_at = (k, pass_at_k(tries, k), len(tries))
    return Comparison(
        untrained.t1, untrained.best, trained.t1, trained.best, list(map(float, rule)),
        untrained.temperature, trained.temperature,
        {"untrained": untrained.validation, "trained": trained.validation}, pass_at, rule_name,
    )  # fmt: skip


async def _successes(play: Play[S], scenarios: Sequence[S], temperature: float) -> list[bool]:
    return [bool(result) for result in await in_order(play(scenario, temperature) for scenario in scenarios)]


def _named(temperature: float) -> str:
    return f"T = {temperature:g}" if temperature else "greedy"


def _points(difference: Interval) -> str:
    return f"{100 * difference.value:+.1f} points ({100 * difference.low:.1f} to {100 * difference.high:.1f})"
