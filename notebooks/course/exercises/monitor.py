"""The exercises of notebook 10, Monitor."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean

from course.exercises import Exercise, checker, is_number
from course.exercises.training import draw, percents

RUNS: list[tuple[list[float], list[float], int]] = [
    ([1.0, 1.2, 2.0, 2.2, 2.4, 2.6], [0.6, 0.6, 0.7, 0.5, 0.3, 0.1], 2),
    ([1.0, 3.0, 2.5, 1.0, 4.0, 4.0], [0.5, 0.7, 0.7, 0.3, 0.6, 0.3], 2),
    ([1.0, 1.0, 2.0, 2.0], [0.5, 0.5, 0.6, 0.6], 2),
    ([2.0, 2.0, 1.0, 1.0], [0.5, 0.5, 0.2, 0.2], 2),
    ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.9, 0.8, 0.8, 0.8, 0.8, 0.7, 0.1], 3),
    ([0.0, 1.0, 2.0], [0.9, 0.5, 0.1], 1),
    ([1.0, 1.0, 2.0, 2.0, 2.0, 0.2], [0.6, 0.6, 0.6, 0.5, 0.8, 0.3], 2),
    ([1.0, 1.0, 1.0, 1.0], [0.5, 0.5, 0.2, 0.2], 2),
]


def _first_hacked(rewards: list[float], measure: list[float], window: int, start: int | None = None) -> int | None:
    for i in range(2 * window - 1 if start is None else start, len(rewards)):
        last = slice(max(0, i - window + 1), i + 1)
        if fmean(rewards[last]) > fmean(rewards[:window]) and fmean(measure[last]) < fmean(measure[:window]):
            return i
    return None


def _first(condition: Callable[[int], bool], window: int, count: int) -> int | None:
    return next((i for i in range(2 * window - 1, count) if condition(i)), None)


def _mean_at(values: list[float], i: int, window: int) -> float:
    return fmean(values[i - window + 1 : i + 1])


HACKED = Exercise(
    right=_first_hacked,
    cases=lambda: RUNS,
    mistakes={
        "You look at the measure alone: where the reward falls as well, it is a different failure.":
            lambda rewards, measure, window: _first(
                lambda i: _mean_at(measure, i, window) < fmean(measure[:window]), window, len(rewards)
            ),
        "You look at the reward alone: a rising reward is what you want.":
            lambda rewards, measure, window: _first(
                lambda i: _mean_at(rewards, i, window) > fmean(rewards[:window]), window, len(rewards)
            ),
        "You compare single steps, which are noisy. Compare the means of windows.":
            lambda rewards, measure, window: _first(
                lambda i: rewards[i] > rewards[0] and measure[i] < measure[0], window, len(rewards)
            ),
        "Compare the last window with the first one, not with the window before it.":
            lambda rewards, measure, window: _first(
                lambda i: _mean_at(rewards, i, window) > _mean_at(rewards, i - window, window)
                and _mean_at(measure, i, window) < _mean_at(measure, i - window, window), window, len(rewards)
            ),
        "At the step that you return, the two windows still overlap, or it is one step too early.":
            lambda rewards, measure, window: _first_hacked(rewards, measure, window, window - 1),
    },
)  # fmt: skip

NAN = math.nan
CURVES = [
    ([0.0, 0.2, 5.9, 9.0], 1.0),
    ([0.0, 0.3, NAN, NAN], 1.0),
    ([0.1, 0.2, 0.3, 2.0, 0.4], 1.0),
    ([NAN, 0.1], 0.5),
    ([0.0, 1.0, 1.5], 1.0),
    ([0.0, 0.1], 1.0),
]


def _first_alarm(values: list[float], limit: float) -> int | None:
    return next((i for i, value in enumerate(values) if not value <= limit), None)


FIRST_ALARM = Exercise(
    right=_first_alarm,
    cases=lambda: CURVES,
    mistakes={
        "NaN is neither greater nor smaller than any number: `value > limit` is False for it, so its alarm is missed.":
            lambda values, limit: next((i for i, value in enumerate(values) if value > limit), None),
        "Return the first step above the limit, not the worst one.":
            lambda values, limit: max(range(len(values)), key=lambda i: values[i]),
        "A value that equals the limit is not an alarm.":
            lambda values, limit: next((i for i, value in enumerate(values) if not value < limit), None),
        "Count steps from 0.":
            lambda values, limit: next((i for i, value in enumerate(values, 1) if not value <= limit), None),
    },
)  # fmt: skip

MOST_MOVES, GROUPS, GROUP_SIZE, STEPS = 10, 6, 8, 8  # of the notebook's runs
EARLIEST_WIN = 2  # moves: a late game has one 16, and no move merges two 8s and then two 16s
SMALLEST_BONUS = MOST_MOVES - EARLIEST_WIN  # 2 + bonus = 10


def train_with_bonus(bonus: float) -> dict[str, list[float]]:
    """Train as in the run *reward hacking*, with a bonus for a win. Returns the reward and the games' metrics by step."""
    import art_nb as art
    from course.exercises.training import gather, with_new_model
    from course.short_2048 import late_game, play
    from game_2048 import scenarios

    async def use(model: art.TrainableModel) -> dict[str, list[float]]:
        async def rollout(seed: int) -> art.Trajectory:
            game = await play(model, late_game(seed), limit=MOST_MOVES)
            end = -1.0 if game.metrics["illegal"] or game.metrics["malformed"] else 1.0 + bonus * game.metrics["won"]
            game.turn_rewards = [1.0] * (len(game.choices()) - 1) + [end]
            game.reward = sum(game.turn_rewards)
            return game

        seeds = scenarios("train", STEPS * GROUPS)
        for step in range(STEPS):
            chosen = seeds[step * GROUPS : (step + 1) * GROUPS]
            groups = await gather([rollout(seed) for _ in range(GROUP_SIZE)] for seed in chosen)
            await model.train(groups, art.TrainConfig(learning_rate=2e-3, turn_discount=1.0))
        history = model.history().query("split == 'train'")
        return {name: history[name].tolist() for name in ("reward", "won", "moves")}

    return with_new_model("nano", use)


def _why_not_smallest(answer: Callable[[], float]) -> str | None:
    bonus = answer()
    if not is_number(bonus):
        return f"Expected a number, got {bonus!r}."
    if not 0 <= (bonus := float(bonus)) <= 100:
        return f"Expected a bonus from 0 to 100, got {bonus:g}."
    curves = train_with_bonus(bonus)
    role = "trained" if bonus >= SMALLEST_BONUS else "failed"
    label = f"bonus {bonus:g}"
    draw({name: {label: [curve]} for name, curve in curves.items()}, {label: role})
    won = f"In your run {percents(curves['won'])} of the training games were won, step by step."
    if bonus < SMALLEST_BONUS:
        earned = f"a win at the second move earns {EARLIEST_WIN + bonus:g}, and ten moves without a win earn {MOST_MOVES}"
        return f"{won} With {bonus:g}, {earned}."
    if bonus > SMALLEST_BONUS:
        return f"{won} With {bonus:g} every win earns at least {MOST_MOVES}, but a smaller bonus is enough for that."
    return None


BONUS = Exercise(right=lambda: SMALLEST_BONUS, mistakes={}, accept=_why_not_smallest)

EXERCISES = {"hacked": HACKED, "first_alarm": FIRST_ALARM, "bonus": BONUS}

check = checker(EXERCISES)
