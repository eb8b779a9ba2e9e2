"""The exercises of notebook 12, Scale out."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from numbers import Integral
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from course.exercises import Exercise, checker, is_number
from course.exercises.training import draw, gather, percents, with_new_model
from course.simulation import Times, simulate

if TYPE_CHECKING:
    from art_nb import TrainableModel

MAX_SAMPLERS = 64  # samplers in exercise 3

LOADS = [
    (1, [0, 3, 2]),
    (None, [4, 2, 3]),
    (0, [5, 1]),
    (2, [1, 4, None]),
    (None, [None, 6, 7]),
    (1, [None, 2]),
    (0, [None, 9, 8]),
    (1, [0, 0]),
]


def _choose(last: int | None, open_requests: list[int | None]) -> int:
    if last is not None and open_requests[last] is not None:
        return last
    return _least(open_requests)


def _least(open_requests: list[int | None]) -> int:
    return min((i for i, n in enumerate(open_requests) if n is not None), key=lambda i: open_requests[i])  # type: ignore[arg-type,return-value]


CHOOSE = Exercise(
    right=_choose,
    cases=lambda: LOADS,
    mistakes={
        "A conversation stays where its KV cache is: another sampler would have to process all of it again.":
            lambda last, loads: _least(loads),
        "The sampler that had the conversation is dead (None): it would never answer.":
            lambda last, loads: _least(loads) if last is None else last,
        "Sampler 0 is a sampler, too: `if last` is False for it. Test `last is not None`.":
            lambda last, loads: last if last and loads[last] is not None else _least(loads),
        "A dead sampler (None) has no open requests, but must not be chosen.":
            lambda last, loads: last if last is not None and loads[last] is not None else
            min(range(len(loads)), key=lambda i: loads[i] or 0),
        "Choose the sampler with the fewest open requests; this is the busiest.":
            lambda last, loads: last if last is not None and loads[last] is not None else
            max(range(len(loads)), key=lambda i: -1 if loads[i] is None else loads[i]),
    },
)  # fmt: skip

RUNS = [(10, 4.0, 4.0), (5, 3.0, 1.0), (7, 1.0, 6.0), (1, 2.0, 5.0), (100, 0.5, 0.25)]


def _seconds(steps: int, sample: float, train: float) -> float:
    return sample + (steps - 1) * max(sample, train) + train


SECONDS = Exercise(
    right=_seconds,
    cases=lambda: RUNS,
    mistakes={
        "This is the time without any overlap.": lambda steps, sample, train: steps * (sample + train),
        "Nothing trains while the first batch is sampled, and nothing is sampled during the last training step.":
            lambda steps, sample, train: steps * max(sample, train),
        "Each step takes as long as the slower of the two, not the faster.":
            lambda steps, sample, train: sample + (steps - 1) * min(sample, train) + train,
        "Between the first batch and the last step there are steps - 1 intervals, not steps.":
            lambda steps, sample, train: sample + steps * max(sample, train) + train,
    },
)  # fmt: skip

# kind of run -> (durations, shape of the run)
SIZES: dict[str, tuple[Times, dict[str, int]]] = {
    "limited by the learner": (
        Times(turn=lambda n: 0.01 + 0.001 * n, turns=[10, 20], train=lambda n: 1.0 * n),
        {"groups": 4, "group_size": 8, "steps": 5, "max_staleness": 1},
    ),
    "limited by its longest game": (
        Times(turn=lambda n: 0.1 + 0.01 * n, turns=[5] * 9 + [100], train=lambda n: 0.01 * n),
        {"groups": 8, "group_size": 8, "steps": 5, "max_staleness": 1},
    ),
    "limited by the samplers": (
        Times(turn=lambda n: 0.02 + 0.05 * n, turns=[20], train=lambda n: 0.001 * n),
        {"groups": 16, "group_size": 16, "steps": 5, "max_staleness": 1},
    ),
}


def _seconds_by_samplers(kind: str) -> Callable[[int], float]:
    times, run = SIZES[kind]
    return lambda samplers: simulate(times, samplers=samplers, **run).seconds


def _enough(seconds: Callable[[int], float]) -> int:
    return next(n for n in range(1, MAX_SAMPLERS + 1) if seconds(n) <= 1.1 * seconds(MAX_SAMPLERS))


def _why_not_enough(answer: Callable[[Callable[[int], float]], int]) -> str | None:
    for kind in SIZES:
        seconds = _seconds_by_samplers(kind)
        number, right = answer(seconds), _enough(seconds)
        if not is_number(number, Integral) or not 1 <= number <= MAX_SAMPLERS:
            return f"Expected a number of samplers from 1 to {MAX_SAMPLERS}, a whole number, got {number!r}."
        if number == right:
            continue
        slower = seconds(number) / seconds(MAX_SAMPLERS)
        found = f"The run {kind} takes {slower:.2f} times as long with your {number} samplers as with {MAX_SAMPLERS}"
        return f"{found}: too few." if slower > 1.1 else f"{found}, but fewer samplers are within 10%, too."
    return None


ENOUGH = Exercise(
    right=_enough, cases=lambda: [(_seconds_by_samplers(kind),) for kind in SIZES], mistakes={}, accept=_why_not_enough
)

EPISODES = [(8, 1000, 8, 100, 400), (1, 10, 1, 5, 0), (16, 25, 12, 2, 25), (4, 2000, 3, 50, 10)]


def _tokens(group_size: int, prompt: int, turns: int, answer: int, observation: int) -> int:
    return prompt + group_size * turns * (answer + observation)


TOKENS = Exercise(
    right=_tokens,
    cases=lambda: EPISODES,
    mistakes={
        "The prompt is the same for the whole group, and is computed once.":
            lambda size, prompt, turns, answer, seen: size * (prompt + turns * (answer + seen)),
        "This is one episode; a group has several.":
            lambda size, prompt, turns, answer, seen: prompt + turns * (answer + seen),
        "These are the sampled tokens. The environment's observations are processed as well.":
            lambda size, prompt, turns, answer, seen: size * turns * answer,
        "Processed tokens stay in the cache: a turn processes only the new ones, not the whole conversation again.":
            lambda size, prompt, turns, answer, seen: sum(
                prompt + size * (turn + 1) * (answer + seen) for turn in range(turns)
            ),
        "The prompt is processed, too.": lambda size, prompt, turns, answer, seen: size * turns * (answer + seen),
    },
)  # fmt: skip

STEPS, GROUPS, SIZE, RATE = 8, 2, 12, 8e-3  # the learning rate is four times that of the notebook
LAST_STEPS, MIN_TRAINING_WINS = 3, 0.65  # mean share of the training games won in the last steps
TEST_GAMES, MAX_FINAL_WINS = 40, 0.4  # of the final policy


class StaleRun(NamedTuple):
    """A training run whose batches all have the same age.

    won, entropy: by step, of the training games. after: share of the test games that the final policy wins.
    """

    won: list[float]
    entropy: list[float]
    after: float


def policy_of(step: int, age: int) -> int:
    """Return the step of the policy that plays the batch of `step` (from 0): `age` steps earlier, at least 0 (untrained)."""
    return max(0, step - age)


@cache
def trained_on(age: int, steps: int) -> StaleRun:
    """Train a new model on 2048 up to the 32 tile. The policy from `age` steps ago plays each batch."""
    import art_nb as art
    from course.short_2048 import rollout
    from game_2048 import scenarios

    async def use(model: TrainableModel) -> StaleRun:
        seeds = scenarios("train", steps * GROUPS)
        for step in range(steps):
            played = await gather(
                [rollout(model, seed, policy_of(step, age)) for _ in range(SIZE)]
                for seed in seeds[step * GROUPS : (step + 1) * GROUPS]
            )
            await model.train(played, art.TrainConfig(learning_rate=RATE, turn_discount=0.5))
        rows = model.history().query("split == 'train'")
        (games,) = await gather([[rollout(model, seed) for seed in scenarios("test", TEST_GAMES)]])
        return StaleRun(rows.won.tolist(), rows.entropy.tolist(), fmean(game.metrics["won"] for game in games))

    return with_new_model("nano", use)


def _why_not_hidden(hiding_age: Callable[[], int]) -> str | None:
    age = hiding_age()
    if not is_number(age, Integral) or not 0 <= age < STEPS:
        return f"Expected an age, a whole number from 0 to {STEPS - 1} steps, got {age!r}."
    yours, fresh = trained_on(age, STEPS), trained_on(0, STEPS)
    runs = {
        f"age {age}: the final policy wins {yours.after:.0%}": yours,
        f"age 0, for comparison: {fresh.after:.0%}": fresh,
    }
    panels = {
        "share of training games won": {name: [run.won] for name, run in runs.items()},
        "entropy, nats": {name: [run.entropy] for name, run in runs.items()},
    }
    draw(panels, dict(zip(runs, ("failed", "trained"), strict=True)))
    mean = fmean(yours.won[-LAST_STEPS:])
    shown = (
        f"By step, with batches of age {age}, {percents(yours.won)} of the training games were won (the last {LAST_STEPS}: "
        f"{mean:.0%}); the final policy wins {yours.after:.0%} of new games."
    )
    if yours.after >= MAX_FINAL_WINS:
        return f"{shown} The final policy must win fewer than {MAX_FINAL_WINS:.0%}."
    if mean < MIN_TRAINING_WINS:
        return f"{shown} The curve shows the damage. After how many steps does a damaged policy play the training games?"
    return None


HIDDEN = Exercise(right=lambda: 5, cases=lambda: [()], mistakes={}, accept=_why_not_hidden)

EXERCISES = {"choose": CHOOSE, "seconds": SECONDS, "enough": ENOUGH, "tokens": TOKENS, "hidden": HIDDEN}

check = checker(EXERCISES)
