"""The planner compared with arithmetic by hand and published runs, and the simulated scheduler with closed forms."""

import math
import statistics

import pytest

from course.planner import GPUS, PUBLISHED, Run, calibrated, held_out, memory, plan
from course.simulation import Times, by_samplers, measured_turn, simulate


def test_tokens_and_operations_by_hand():
    run = Run(1e9, steps=2, groups=3, group_size=4, prompt=100, turns=5, answer=10, observation=30)
    assert run.trajectories == 24 and run.context() == (300, 300) and run.sampled() == (1200, 1200)
    assert run.processed() == (24 * (25 + 200),) * 2
    apart = Run(1e9, steps=2, groups=3, group_size=4, prompt=100, turns=5, answer=10, observation=30, share_prompts=False)
    assert apart.processed() == (24 * 300,) * 2
    assert run.operations()[0] == 24 * 225 * 1e9 * (2 + 6 + 2)
    full = Run(1e9, 2, 3, 4, 100, 5, 10, 30, trains="full", reference=True)
    assert full.operations()[0] == 24 * 225 * 1e9 * (2 + 8 + 4)


@pytest.mark.parametrize("change", [{"turns": 9}, {"answer": 11}, {"group_size": 5}, {"steps": 3}, {"parameters": 2e9}, {"prompt": 101}])
def test_more_of_anything_costs_more(change):
    given = {"parameters": 1e9, "steps": 2, "groups": 3, "group_size": 4, "prompt": 100, "turns": 5, "answer": 10}
    assert plan(Run(**given | change), "H100", 2).middle > plan(Run(**given), "H100", 2).middle


def test_the_published_runs_have_the_counts_that_their_sources_name():
    arte, deepscaler, open_rs = PUBLISHED
    assert [(run.steps, run.groups, run.group_size) for run in arte.runs] == [(594, 12, 4)] and "12 groups of 4" in arte.source and "step 594" in arte.source
    assert sum(run.steps for run in deepscaler.runs) == 1750 and "1,750 steps, 1,040 of them" in deepscaler.source
    (run,) = open_rs.runs
    assert run.trajectories == pytest.approx(42_000, rel=1e-3) and "7,000 samples, 42,000 outputs, 4 A40 in 24 hours" in open_rs.source
    assert run.steps * run.groups == pytest.approx(7000, rel=1e-3) and open_rs.gpu_hours == (4 * 24, 4 * 24)


def test_an_interval_of_answers_gives_an_interval_of_tokens():
    run = Run(7e9, steps=9000, groups=16, group_size=64, prompt=(50, 200), turns=1, answer=(200, 1024), trains="full", reference=True)
    assert run.sampled() == (144_000 * 64 * 200, 144_000 * 64 * 1024)


def test_a_published_run_does_not_influence_its_own_prediction():
    """An interval from two runs is wide; the interval of a plan, from all three, contains each of them."""
    rows = held_out()
    assert len(rows) == len(PUBLISHED) == 3
    for row, each in zip(rows, PUBLISHED, strict=True):
        one, other = (run.utilisation() for run in PUBLISHED if run is not each)
        assert row["predicted"] == pytest.approx(row["published"] * each.utilisation() / (one * other) ** 0.5)
        factor = math.exp(6.31 * abs(math.log(one / other)) / math.sqrt(2) * math.sqrt(1.5))
        assert row["high"] / row["predicted"] == pytest.approx(factor) and row["width"] == pytest.approx(factor**2)
    share, spread = calibrated(PUBLISHED)
    assert all(share / spread < each.utilisation() < share * spread for each in PUBLISHED)
    assert 0.02 < share < 0.2 and 2 < spread < 5, "the interval is too narrow for three runs, or too wide"


def test_the_plan_of_arte_contains_its_published_cost():
    (arte,) = PUBLISHED[0].runs
    costs = plan(arte, "H100", (2.0, 4.0))
    assert costs.price[0] < 80 < costs.price[1] and costs.gpu_hours[0] < 24 < costs.gpu_hours[1]
    assert costs.fits and "too wide to plan with" in str(costs) and len(costs.assumptions) == 3


def test_more_gpus_take_less_time_at_the_same_price():
    run = Run(7.6e9, 100, 8, 8, 1000, 8, 100, 400)
    one, four = plan(run, "H100", 3), plan(run, "H100", 3, gpus=4)
    assert four.gpu_hours == one.gpu_hours and four.price == one.price and four.hours[1] == one.hours[1] / 4
    assert four.memory < one.memory


def test_memory_of_full_training_is_sixteen_bytes_a_parameter_and_does_not_fit():
    run = Run(14.8e9, 100, 8, 8, 1000, 8, 100, 400, trains="full")
    assert memory(run) > 16 * run.parameters > GPUS["H100"][1]
    estimate = str(plan(run, "H100", 3))
    assert "does not fit" in estimate and "hours" not in estimate and plan(run, "H200", 3, gpus=4).fits


@pytest.mark.parametrize(("trains", "copies"), [("full", 1), ("lora", 0)])
def test_full_training_with_a_reference_keeps_its_weights_too(trains, copies):
    plain, with_reference = (Run(1e9, 100, 8, 8, 1000, 8, 100, trains=trains, reference=each) for each in (False, True))
    for gpus in (1, 4):
        assert memory(with_reference, gpus) - memory(plain, gpus) == pytest.approx(copies * 2e9 / gpus)


def test_one_run_gives_no_interval():
    with pytest.raises(ValueError, match="at least two"):
        calibrated(PUBLISHED[:1])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Run(0, 1, 1, 1, 1, 1, 1), "parameters is 0"),
        (lambda: Run(1e9, 1, 1, 1, (5, 2), 1, 1), r"prompt is \(5, 2\)"),
        (lambda: plan(Run(1e9, 1, 1, 1, 1, 1, 1), "B9000", 1), "expected one of T4"),
        (lambda: plan(Run(1e9, 1, 1, 1, 1, 1, 1), "H100", -1), "expected a price of at"),
        (lambda: plan(Run(1e9, 1, 1, 1, 1, 1, 1), "H100", (4, 2)), "lowest, highest"),
    ],
)
def test_impossible_settings_raise(make, words):
    with pytest.raises(ValueError, match=words):
        make()


STEADY = Times(turn=lambda n: 0.1 + 0.01 * n, turns=[10], train=lambda n: 0.05 * n)


def test_one_sampler_by_hand():
    """8 episodes of 10 turns: 10 rounds of 0.18 s; 0.4 s of training; nothing overlaps."""
    played = simulate(STEADY, samplers=1, groups=2, group_size=4, steps=5)
    assert played.seconds == pytest.approx(5 * (1.8 + 0.4)) and played.ages == (0,) * 5
    assert played.training == pytest.approx(0.4 / 2.2) and played.sampling == pytest.approx(1.8 / 2.2)


def test_slots_make_episodes_wait():
    played = simulate(STEADY, samplers=1, groups=2, group_size=4, steps=1, slots=4)
    assert played.seconds == pytest.approx(2 * 10 * 0.14 + 0.4)


def test_overlap_takes_the_longer_of_the_two():
    times = Times(turn=lambda n: 0.1, turns=[10], train=lambda n: 1.0)
    alone, overlapped = (simulate(times, samplers=1, groups=1, group_size=4, steps=50, max_staleness=s) for s in (0, 1))
    assert alone.seconds == pytest.approx(100) and overlapped.seconds == pytest.approx(51)
    assert overlapped.ages == (0, *[1] * 49)


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
def test_no_batch_is_older_than_allowed(staleness):
    for slower, oldest in ((3.0, min(staleness, 1)), (30.0, staleness)):  # with a learner as fast as the sampler, batches are hardly stale
        times = Times(turn=lambda n: 0.1, turns=[1, 2, 5, 40], train=lambda n, slower=slower: slower, adapter_transfer=0.5)
        played = simulate(times, samplers=3, groups=3, group_size=5, steps=30, max_staleness=staleness)
        assert max(played.ages) == oldest


def test_more_samplers_help_until_the_learner_is_the_bottleneck():
    times = Times(turn=lambda n: 0.02 + 0.004 * n, turns=[5, 20, 40, 60], train=lambda n: 0.01 * n)
    rows = by_samplers(times, [1, 2, 4, 10, 100, 1000], groups=64, group_size=16, steps=5, max_staleness=1, slots=64)
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds, reverse=True)
    assert all(row["speed_up"] <= row["samplers"] * 1.1 for row in rows)
    assert rows[-1]["training"] > 0.95 and rows[-1]["sampling"] < 0.1, "the remaining time is the learner's"
    hours = [row["sampler_hours"] for row in rows]
    assert hours[-1] > 50 * hours[0]


def test_the_same_seed_gives_the_same_run():
    times = Times(turn=lambda n: 0.1, turns=range(1, 41), train=lambda n: 1.0)
    runs = [simulate(times, samplers=2, groups=4, group_size=4, seed=seed) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


def test_a_batch_takes_as_long_as_its_longest_episode():
    """With one sampler per episode a batch takes as long as its longest episode: the mean maximum, by simulation."""
    times = Times(turn=lambda n: 1.0, turns=[1, 2, 5, 40], train=lambda n: 0.0)
    played = simulate(times, samplers=16, groups=4, group_size=4, steps=200)
    longest = statistics.fmean([40] * 99 + [5])  # one of a hundred batches of 16 has no episode of 40 turns: 0.75**16 = 1%
    assert played.seconds / 200 == pytest.approx(longest, rel=0.02)


@pytest.mark.parametrize(("wrong", "words"), [({"trains": "LoRA"}, "expected 'lora' or 'full'"), ({"prompt": 0, "turns": (0, 5)}, "has no tokens")])
def test_runs_that_cannot_be_planned(wrong, words):
    with pytest.raises(ValueError, match=words):
        Run(**{"parameters": 7e9, "steps": 10, "groups": 8, "group_size": 8, "prompt": 100, "turns": 5, "answer": 10} | wrong)


def test_a_price_from_nothing_is_as_wide_as_the_hours():
    run = Run(1e9, 10, 8, 8, prompt=[50, 200], turns=5, answer=10)
    free, paid = (plan(run, next(iter(GPUS)), price) for price in ((0, 2.0), 2.0))
    assert free.width == paid.width and math.isfinite(free.width) and "inf" not in str(free) and paid.width == pytest.approx(paid.gpu_hours[1] / paid.gpu_hours[0])


def test_measured_turns():
    turn = measured_turn([(64, 0.4), (1, 0.05), (16, 0.1)])
    assert [turn(n) for n in (1, 16, 40, 64, 88)] == pytest.approx([0.05, 0.1, 0.25, 0.4, 0.55])
    with pytest.raises(ValueError, match="expected at least two different"):
        measured_turn([(4, 0.1), (4, 0.2)])
    repeated = measured_turn([(4, 0.1), (8, 0.2), (8, 0.4)])
    assert repeated(8) == pytest.approx(0.3) and repeated(12) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="turns is 0"):
        simulate(Times(turn=turn, turns=[], train=lambda n: 1.0), samplers=1, groups=1, group_size=1)
