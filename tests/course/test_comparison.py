"""The comparison of policies: intervals and pass@k against other computations, and a choice of temperature on validation only."""

import asyncio
import itertools
import random
from functools import partial
from statistics import NormalDist, fmean, stdev

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from course.comparison import Interval, compare, measure, paired_difference, pass_at_k, share, tries_at

matplotlib.use("Agg")


@pytest.mark.parametrize(("hits", "n"), [(0, 5), (3, 10), (200, 200), (61, 200)])
def test_wilsons_bounds_solve_the_score_equation(hits, n):
    """The bounds are the shares p from which the observed one is 1.96 standard errors of p away."""
    found = share([True] * hits + [False] * (n - hits))
    assert found.value == hits / n
    for p in (found.low, found.high):
        assert (hits / n - p) ** 2 == pytest.approx(1.959964**2 * p * (1 - p) / n, rel=1e-5, abs=1e-9)


def test_a_mean_of_several_tries_counts_as_that_share_of_a_success():
    assert share(np.array([True, False])) == share([True, False])
    assert share([0.25, 0.75, 1.0, 0.0]) == pytest.approx(share([True, False, True, False]))
    found = compare(*[asyncio.run(measure(policy({1.0: 0.5}, []), range(9), range(4), (1.0,))) for _ in range(2)], [0.2] * 4, "rule", [[True] * 8])
    assert found.summary()["rule"] == pytest.approx(20)


def test_a_paired_difference_is_the_interval_of_the_mean():
    rng = random.Random(0)
    before, after = ([rng.random() < p for _ in range(50)] for p in (0.3, 0.7))
    differences = [a - b for a, b in zip(after, before, strict=True)]
    mean_of_samples = NormalDist(fmean(differences), stdev(differences) / 50**0.5)
    low, high = mean_of_samples.inv_cdf(0.025), mean_of_samples.inv_cdf(0.975)
    assert paired_difference(before, after) == pytest.approx((fmean(differences), low, high))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_pass_at_k_is_the_mean_over_all_choices_of_k_tries(k):
    tries = [[True, False, False, True, False], [False] * 5, [True] * 5]
    brute = fmean(fmean(map(any, itertools.combinations(each, k))) for each in tries)
    assert pass_at_k(tries, k) == pytest.approx(brute)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (partial(share, []), "at least one result"),
        (partial(share, [1, 2.0]), "a mean from 0 to 1; got 2.0"),
        (partial(paired_difference, [1, 0], [1]), "got 2 and 1 values"),
        (partial(paired_difference, [1], [1]), "at least 2"),
        (partial(pass_at_k, [[True, False]], 3), "pass@3 needs at least 3 tries"),
        (partial(compare, None, None, [], "rule", []), "pass@1 needs at least 1 tries"),
    ],
)
def test_bad_input_is_an_error(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def policy(skill, seen, seed=0):
    """A policy that succeeds at temperature T with the probability skill[T], and records what it played."""
    rng = random.Random(seed)

    async def play(scenario, temperature):
        seen.append((scenario, temperature))
        return rng.random() < skill[temperature]

    return play


def compared(untrained, trained, seen):
    async def main():
        before = await measure(policy(untrained, seen), range(100), range(100, 300))
        after = await measure(policy(trained, seen, seed=2), range(100), range(100, 300))
        tries = await tries_at(policy(untrained, []), range(100, 120), 8)
        return compare(before, after, [i % 2 for i in range(200)], "coin", tries)

    return asyncio.run(main())


def test_each_side_is_tested_at_the_temperature_that_is_best_on_validation():
    seen = []
    found = compared({1.0: 0.1, 0.5: 0.3, 0.3: 0.6, 0.0: 0.2}, {1.0: 0.9, 0.5: 0.8, 0.3: 0.7, 0.0: 0.6}, seen)
    assert (found.untrained_temperature, found.trained_temperature) == (0.3, 1.0)
    assert {t for scenario, t in seen[:800] if scenario >= 100} == {1.0, 0.3}  # others are not played on the test
    assert {t for scenario, t in seen[800:] if scenario >= 100} == {1.0}
    assert found.trained_best is found.trained_t1 and len(found.rows()) == 4
    summary = found.summary()
    assert summary["rise_value"] == pytest.approx(summary["trained_best"] - summary["untrained_best"])
    assert summary["over_rule_value"] == pytest.approx(summary["trained_best"] - 50)
    assert summary["rise_low"] > 10 and 0 < summary["pass_at_8_untrained"] < 100


def test_sharpening_alone_is_no_rise_at_the_best_temperature():
    found = compared({1.0: 0.2, 0.5: 0.4, 0.3: 0.5, 0.0: 0.8}, {1.0: 0.8, 0.5: 0.8, 0.3: 0.8, 0.0: 0.8}, [])
    assert fmean(found.trained_t1) - fmean(found.untrained_t1) > 0.5
    rise = Interval(*(found.summary()[f"rise_{name}"] for name in Interval._fields))
    assert rise.low < 0 < rise.high


def test_the_table_and_the_picture_name_every_policy():
    found = compared({1.0: 0.1, 0.5: 0.3, 0.3: 0.6, 0.0: 0.2}, {1.0: 0.5, 0.5: 0.8, 0.3: 0.9, 0.0: 0.6}, [])
    table = found.table()
    assert list(table.index) == [
        "untrained, T = 1", "untrained, T = 0.3", "coin", "trained, T = 1", "trained, T = 0.3",
        "untrained, one of 8 tries (pass@8)",
    ]  # fmt: skip
    assert table["trained at its best is better by"].iloc[4] == "" and "points" in table.iloc[0, 1]
    found.plot()
    labels = [label.get_text() for label in plt.gcf().axes[1].get_yticklabels()]
    assert labels == list(table.index[:-1])


def test_without_temperature_1_only_the_best_plays_the_test():
    played = []

    async def play(scenario, temperature):
        played.append((scenario, temperature))
        return temperature == 0.3

    found = asyncio.run(measure(play, ["val"], ["test"], at_one=False))
    assert found.temperature == 0.3 and found.best == [True] and found.t1 == []
    assert [t for scenario, t in played if scenario == "test"] == [0.3]


def test_all_that_needs_no_choice_is_played_at_once():
    started, release = [], asyncio.Event()

    async def play(scenario, temperature):
        started.append((scenario, temperature))
        await release.wait()
        return temperature == 0.5

    async def main():
        task = asyncio.create_task(measure(play, ["val"], ["test"]))
        await asyncio.sleep(0.01)
        waiting = set(started)
        release.set()
        return waiting, await task

    waiting, found = asyncio.run(main())
    assert waiting == {("val", 1.0), ("val", 0.5), ("val", 0.3), ("val", 0.0), ("test", 1.0)}
    assert started[-1] == ("test", 0.5) and (found.t1, found.best) == ([False], [True])


def test_an_exception_cancels_the_other_games():
    async def play(scenario, temperature):
        await (asyncio.sleep(0.01) if scenario == 1 else asyncio.Event().wait())
        raise RuntimeError("no server")

    async def main():
        with pytest.raises(RuntimeError, match="no server"):
            await measure(play, [0, 1, 2, 3], [2, 3])
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


@pytest.mark.parametrize("n", [40, 48, 60, 300, 448, 500])
@pytest.mark.parametrize("success", [0, 1])
def test_the_interval_contains_the_share(n, success):
    """Also at 0 and 100%, where rounding put its end on the wrong side: no error bar may be negative."""
    found = share([success] * n)
    assert 0 <= found.low <= found.value <= found.high <= 1
