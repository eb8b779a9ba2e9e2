"""The exercises of notebook 12: right answers are accepted in any form, and a mistake gets its hint."""

import asyncio

import pytest
from exercise_answers import hold, hold_mistakes

from art_nb.backends.ray.pool import PooledSampler, SamplerPool
from art_nb.training.names import PolicyNames
from course.exercises import scale_out
from course.exercises.scale_out import EXERCISES, StaleRun, check
from course.planner import Run
from course.simulation import Times, simulate


def choose(last, open_requests):
    living = [i for i in range(len(open_requests)) if open_requests[i] is not None]
    return last if last in living else sorted(living, key=lambda i: open_requests[i])[0]


def run_seconds(steps, sample, train):
    return sample + train + sum(train if train > sample else sample for _ in range(steps - 1))


RIGHT = {
    "choose": choose,
    "seconds": run_seconds,
    "enough": lambda seconds: min(n for n in range(1, 65) if seconds(n) <= seconds(64) * 1.1),
    "tokens": lambda group_size, prompt, turns, answer, observation: prompt + sum(
        answer + observation for _ in range(group_size) for _ in range(turns)
    ),
}  # fmt: skip
WRONG = {
    "choose": [
        (lambda last, loads: loads.index(min(n for n in loads if n is not None)), "where its KV cache is"),
        (lambda last, loads: choose(None, loads) if last is None else last, "is dead"),
        (lambda last, loads: choose(last or None, loads), "Sampler 0"),
        (lambda last, loads: 0, "For the input"),
    ],
    "seconds": [
        (lambda steps, sample, train: steps * sample + steps * train, "without any overlap"),
        (lambda steps, sample, train: max(steps * sample, steps * train), "the first batch"),
        (lambda steps, sample, train: sample + train + (steps - 1) * sorted([sample, train])[0], "Each step takes as long"),
        (lambda steps, sample, train: sample + train + steps * max(sample, train), "steps - 1"),
    ],
    "enough": [
        (lambda seconds: 1, "The run limited by its longest game takes 1.83 times"),
        (lambda seconds: 64, "limited by the learner takes 1.00 times as long with your 64 samplers as with 64, but fewer"),
        (lambda seconds: min(range(1, 65), key=seconds), "within 10%, too"),
        (lambda seconds: 1 + (seconds(1) > 1.1 * seconds(2)), "too few"),
        (lambda seconds: 0, "Expected a number of samplers from 1 to 64"),
    ],
    "tokens": [
        (lambda size, prompt, turns, answer, seen: size * prompt + size * turns * (answer + seen), "computed once"),
        (lambda size, prompt, turns, answer, seen: prompt + turns * answer + turns * seen, "one episode"),
        (lambda size, prompt, turns, answer, seen: answer * turns * size, "the sampled tokens"),
        (lambda size, prompt, turns, answer, seen: turns * size * (seen + answer), "The prompt is processed, too"),
    ],
}


def test_every_exercise_is_checked():
    assert [*RIGHT, "hidden"] == list(EXERCISES)  # "hidden" trains a model: see test_exercises_training.py


@pytest.mark.parametrize("exercise", RIGHT)
def test_right_answers_and_mistakes(exercise):
    hold(check, exercise, (RIGHT[exercise], EXERCISES[exercise].right), WRONG[exercise])


@pytest.mark.parametrize(("age", "run", "status", "words"), [
    (5, StaleRun([0.8, 0.2, 0.7, 0.8, 0.7], [0.6] * 5, 0.1), "right", ""),
    (2, StaleRun([0.8, 0.8, 0.8, 0.6, 0.1], [0.6] * 5, 0.0), "wrong", "80%, 80%, 80%, 60%, 10% of the training games were won (the last 3: 50%)"),
    (7, StaleRun([0.8] * 5, [0.6] * 5, 0.55), "wrong", "wins 55% of new games. The final policy must win fewer than 40%"),
    (8, None, "wrong", "from 0 to 7 steps, got 8"),
    (True, None, "wrong", "got True"),
])  # fmt: skip
def test_an_age_hides_the_damage_if_the_curve_stays_high_and_the_final_policy_loses(age, run, status, words, monkeypatch):
    monkeypatch.setattr(scale_out, "trained_on", lambda age, steps: run)
    verdict = check("hidden", lambda: age)
    assert verdict.status == status and words in verdict.text, verdict


def test_the_untrained_policy_plays_until_there_is_one_of_that_age():
    assert [scale_out.policy_of(step, 5) for step in range(8)] == [0, 0, 0, 0, 0, 0, 1, 2]
    assert [scale_out.policy_of(step, 0) for step in range(8)] == [*range(8)]


def test_every_known_mistake_gets_its_hint():
    hold_mistakes(EXERCISES)


def test_the_solutions_agree_with_the_library(tmp_path):
    for steps, sample, train in ((10, 4.0, 4.0), (5, 3.0, 1.0), (7, 1.0, 6.0)):
        times = Times(turn=lambda n, sample=sample: sample, turns=[1], train=lambda n, train=train: train)
        played = simulate(times, samplers=1, groups=1, group_size=2, steps=steps, max_staleness=1)
        assert EXERCISES["seconds"].right(steps, sample, train) == pytest.approx(played.seconds)
    run = Run(1e9, steps=1, groups=1, group_size=8, prompt=1000, turns=8, answer=100, observation=400)
    assert EXERCISES["tokens"].right(8, 1000, 8, 100, 400) == run.processed()[0]
    pool = SamplerPool([PooledSampler(None, lambda names: {}) for _ in range(3)], PolicyNames("m", "base", tmp_path))
    for sampler, load in zip(pool.samplers, loads := [4, 2, 3], strict=True):
        sampler.open_requests = load
    chosen = asyncio.run(pool.choose([{"role": "user", "content": "new"}]))
    assert pool.samplers.index(chosen) == EXERCISES["choose"].right(None, loads)
