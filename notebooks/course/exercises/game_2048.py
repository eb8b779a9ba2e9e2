"""The exercises of notebook 02, 2048."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import groupby
from math import log2
from statistics import NormalDist, fmean, pstdev, stdev
from typing import TYPE_CHECKING

from course.exercises import Exercise, checker, collected, is_number
from course.exercises.training import gather, with_new_model
from game_2048.environment import Game, outcome_reward, scenarios
from game_2048.players import play, random_player
from game_2048.rules import MOVES, slide_row

if TYPE_CHECKING:
    from art_nb import TrainableModel

ROWS = [(2, 2, 4, 0), (2, 2, 2, 2), (0, 2, 0, 2), (2, 2, 2, 0), (4, 0, 4, 8), (2, 4, 8, 16), (0, 0, 0, 0)]


def _packed(row: tuple[int, ...]) -> tuple[int, ...]:
    tiles = [tile for tile in row if tile]
    return (*tiles, *[0] * (len(row) - len(tiles)))


def _cascading(row: tuple[int, ...]) -> tuple[int, ...]:
    merged: list[int] = []
    for tile in filter(None, row):
        while merged and merged[-1] == tile:
            tile = 2 * merged.pop()
        merged.append(tile)
    return _packed((*merged, *[0] * (len(row) - len(merged))))


def _adjacent_only(row: tuple[int, ...]) -> tuple[int, ...]:
    cells = list(row)
    for i in range(len(cells) - 1):
        if cells[i] == cells[i + 1]:
            cells[i], cells[i + 1] = 2 * cells[i], 0
    return _packed(tuple(cells))


def _summed_runs(row: tuple[int, ...]) -> tuple[int, ...]:
    runs = [sum(tiles) for _, tiles in groupby(filter(None, row))]
    return (*runs, *[0] * (len(row) - len(runs)))


SLIDE = Exercise(
    right=lambda row: slide_row(row)[0],
    cases=lambda: [(row,) for row in ROWS],
    observe=collected(tuple),
    mistakes={
        "A tile made by a merge must not merge again in the same move: (2, 2, 4, 0) gives (4, 4, 0, 0).": _cascading,
        "Tiles merge across gaps too: slide first, then merge. (0, 2, 0, 2) gives (4, 0, 0, 0).": _adjacent_only,
        "Merge from the left: (2, 2, 2, 0) gives (4, 2, 0, 0).":
            lambda row: _packed(slide_row(row[::-1])[0][::-1]),
        "Two tiles merge, not a whole run of them: (2, 2, 2, 2) gives (4, 4, 0, 0).": _summed_runs,
        "Nothing merges yet.": _packed,
        "Keep the row's length: pad it with zeros.": lambda row: tuple(tile for tile in slide_row(row)[0] if tile),
        "This slides to the right.": lambda row: slide_row(row[::-1])[0][::-1],
    },
)  # fmt: skip


def _games() -> list[tuple[Game]]:
    broken = Game(seed=1, winning_tile=64)
    broken.move("sideways")
    stopped = Game(seed=2, winning_tile=64)
    while len(legal := stopped.legal_moves()) == len(MOVES):
        stopped.move(legal[0])
    stopped.move(next(move for move in MOVES if move not in legal))
    other = play(random_player(0), 3, winning_tile=128)
    played = [play(random_player(seed), seed, winning_tile=64) for seed in scenarios("val", 12)]
    return [(game,) for game in (broken, stopped, other, *played)]


def _by_board(game: Game, weight: float = 0.2) -> float:
    """Return the value of the board, however the game ended."""
    total = sum(map(sum, game.board))
    by_sum = (log2(total) - 1) / (log2(game.size**2 * game.winning_tile) - 1)
    return (log2(game.max_tile) - 1) / (log2(game.winning_tile) - 1) + weight * by_sum


def _unless_won_or_broken(game: Game, value: float) -> float:
    return 2.0 if game.won else -1.0 if game.ended_by in ("illegal", "malformed") else value


OUTCOME = Exercise(
    right=outcome_reward,
    cases=_games,
    mistakes={
        "This game ended by a wrong answer (game.ended_by): it earns -1, whatever the board.":
            lambda game: 2.0 if game.won else _by_board(game),
        "This game ended by an illegal move (game.ended_by): it earns -1, too.":
            lambda game: 2.0 if game.won else -1.0 if game.ended_by == "malformed" else _by_board(game),
        "This game ended by a malformed answer (game.ended_by): it earns -1, as after an illegal move.":
            lambda game: 2.0 if game.won else -1.0 if game.ended_by == "illegal" else _by_board(game),
        "A won game earns 2, whatever the board.":
            lambda game: -1.0 if game.ended_by in ("illegal", "malformed") else _by_board(game),
        "Weight the board's sum by 0.2; the largest tile has weight 1.":
            lambda game: _unless_won_or_broken(game, _by_board(game, weight=1.0)),
        "The board's sum is missing: add 0.2 times its term.":
            lambda game: _unless_won_or_broken(game, _by_board(game, weight=0.0)),
        "You use the tiles' values. Use their logarithms, so that every doubling counts the same.":
            lambda game: _unless_won_or_broken(
                game, game.max_tile / game.winning_tile
                + 0.2 * sum(map(sum, game.board)) / (game.size**2 * game.winning_tile)),
    },
)  # fmt: skip

Z = NormalDist().inv_cdf(0.975)


def _results() -> list[tuple[list[int], list[int]]]:
    rng = random.Random(0)
    before = [int(rng.random() < 0.3) for _ in range(60)]
    after = [int(won or rng.random() < 0.4) for won in before]
    return [(before, after), (after[:20], before[20:40])]


def _interval(values: Sequence[float], spread: float, z: float = Z) -> list[float]:
    return [fmean(values) - z * spread, fmean(values) + z * spread]


def _paired(before: list[int], after: list[int]) -> list[int]:
    return [a - b for a, b in zip(after, before, strict=True)]


def _unpaired(before: list[int], after: list[int]) -> float:
    return ((stdev(before) ** 2 + stdev(after) ** 2) / len(before)) ** 0.5


RISE = Exercise(
    right=lambda before, after: _interval(d := _paired(before, after), stdev(d) / len(d) ** 0.5),
    cases=_results,
    observe=collected(),
    mistakes={
        "These games are paired: each seed was played twice. Take the difference game by game, then its deviation.":
            lambda before, after: _interval(_paired(before, after), _unpaired(before, after)),
        "Adding p (1 - p) / n of both shares ignores the pairs. Take the difference game by game, then its deviation.":
            lambda before, after: _interval(
                _paired(before, after), ((pstdev(before) ** 2 + pstdev(after) ** 2) / len(before)) ** 0.5),
        "Divide the standard deviation by the square root of the number of games: the interval is that of the mean.":
            lambda before, after: _interval(d := _paired(before, after), stdev(d)),
        "You divide by the number of games. Divide by its square root.":
            lambda before, after: _interval(d := _paired(before, after), stdev(d) / len(d)),
        "You divide by n in the deviation. That of a sample divides by n - 1 (in numpy: ddof=1).":
            lambda before, after: _interval(d := _paired(before, after), pstdev(d) / len(d) ** 0.5),
        "One standard error on each side covers 68%. 95% needs 1.96 of them.":
            lambda before, after: _interval(d := _paired(before, after), stdev(d) / len(d) ** 0.5, 1.0),
        "The sign: after minus before.":
            lambda before, after: _interval(d := _paired(after, before), stdev(d) / len(d) ** 0.5),
    },
)  # fmt: skip


POINTS = 5  # a difference of success rates up to this counts as none


def _verdict(untrained_t1: float, untrained_best: float, trained_t1: float, trained_best: float) -> str:
    if trained_best < untrained_best - POINTS:
        return "harm"
    if trained_best > untrained_best + POINTS:
        return "new behaviour"
    return "sharpening" if trained_t1 > untrained_t1 + POINTS else "nothing"


VERDICT = Exercise(
    right=_verdict,
    cases=lambda: [
        (25, 60, 58, 62), (4, 12, 70, 84), (20, 22, 21, 23), (25, 60, 27, 60), (10, 10, 38, 40), (30, 70, 36, 40),
        (10, 40, 30, 46), (20, 24, 27, 27), (25, 60, 25, 60), (20, 30, 25, 35), (20, 30, 20, 25),
    ],
    mistakes={
        "You compare with the untrained agent at T = 1 only. (25, 60, 58, 62) is sharpening: a lower temperature gives 60.":
            lambda t1, best, trained_t1, trained: "nothing" if trained <= t1 + POINTS else "new behaviour",
        "An agent below the untrained one's best was harmed, even if it is above its T = 1: (30, 70, 36, 40) is harm.":
            lambda t1, best, trained_t1, trained:
                "new behaviour" if trained > best + POINTS else "sharpening" if trained_t1 > t1 + POINTS else "nothing",
        "Differences up to 5 points count as none: (20, 22, 21, 23) is nothing.":
            lambda t1, best, trained_t1, trained:
                "harm" if trained < best else "new behaviour" if trained > best
                else "sharpening" if trained_t1 > t1 else "nothing",
        "An agent that is no better at T = 1 than the untrained one did not sharpen: (20, 22, 21, 23) is nothing.":
            lambda t1, best, trained_t1, trained:
                "harm" if trained < best - POINTS else "sharpening" if trained <= best + POINTS else "new behaviour",
        "An agent that did not change is `nothing`, (25, 60, 25, 60): compare both agents at T = 1.":
            lambda t1, best, trained_t1, trained:
                "harm" if trained < best - POINTS else "new behaviour" if trained > best + POINTS
                else "sharpening" if trained > t1 + POINTS else "nothing",
    },
)  # fmt: skip

COLLAPSE_STEPS, COLLAPSE_GAMES = 8, 16


def won_in_training(rate: float) -> list[float]:
    """Train a new adapter on 2048 to the 32 tile at this learning rate. Returns the share of games won at each step."""
    import art_nb as art
    from course.short_2048 import rollout

    async def use(model: TrainableModel) -> list[float]:
        for seed in scenarios("train", COLLAPSE_STEPS):
            groups = await gather([[rollout(model, seed) for _ in range(COLLAPSE_GAMES)]])
            await model.train(groups, art.TrainConfig(learning_rate=rate, turn_discount=0.8))
        return model.history().query("split == 'train'").won.tolist()

    return with_new_model("nano", use)


def _why_no_collapse(answer: Callable[[], float]) -> str | None:
    rate = answer()
    if not is_number(rate):
        return f"Expected a number, got {rate!r}."
    if not 0 < (rate := float(rate)) <= 1:
        return f"Expected a learning rate above 0 and at most 1, got {rate:g}."
    if rate <= FIRST_RATE:
        return f"This is at most the rate of this notebook, {FIRST_RATE:g}, at which the training works. Try a higher one."
    won = won_in_training(rate)
    shares = ", ".join(f"{share:.0%}" for share in won)
    if fmean(won[-2:]) < won[0] / 2:
        return None
    return (f"No collapse: at the rate {rate:g} the share of games won by step was {shares}. The mean of the last two "
            "must be below half of the first: try a higher rate.")  # fmt: skip


FIRST_RATE = 3e-3  # of notebook 02
COLLAPSE = Exercise(right=lambda: 0.1, accept=_why_no_collapse)

EXERCISES = {"slide": SLIDE, "outcome": OUTCOME, "rise": RISE, "verdict": VERDICT, "collapse": COLLAPSE}

check = checker(EXERCISES)
