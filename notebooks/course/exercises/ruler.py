"""The exercises of notebook 05, RULER."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING

from art_nb.rewards.agreement import pairs_right
from art_nb.rewards.judge_answers import UnusableAnswer, parse
from course.exercises import Exercise, checker, is_number
from course.exercises.training import draw, draws, gather, percents, with_new_model
from game_2048.environment import MOVES, Game, legal_moves, scenarios
from game_2048.rules import Board

if TYPE_CHECKING:
    from art_nb import TrainableModel

JUDGED = [
    ([1.0, 0.0, 2.0], [0.5, 0.1, 0.9]), ([1.0, 0.0, 2.0, 2.0], [0.5, 0.1, 0.2, 0.9]), ([0.0, 0.0, 1.0], [0.4, 0.4, 0.4]),
    ([-1.0, 1.3, 0.2, 1.1], [0.1, 0.7, 0.7, 0.2]),
]  # fmt: skip


def _share(truth: list[float], scores: list[float], tie: float = 0.5, equal: bool = False) -> float:
    """Return the share of pairs in the same order. tie: credit for equal scores. equal: include pairs with equal truths."""
    pairs = [(a, b) for a, b in combinations(zip(truth, scores, strict=True), 2) if equal or a[0] != b[0]]
    right = [tie if a[1] == b[1] else float((a[0] - b[0]) * (a[1] - b[1]) > 0) for a, b in pairs]
    return sum(right) / len(right)


def _neighbours(truth: list[float], scores: list[float]) -> float:
    found = [_share(truth[i : i + 2], scores[i : i + 2]) for i in range(len(truth) - 1) if truth[i] != truth[i + 1]]
    return sum(found) / len(found)


AGREEMENT = Exercise(
    right=lambda truth, scores: pairs_right(truth, scores)[0],
    cases=lambda: JUDGED,
    mistakes={
        "Two equal scores do not order the pair: count it as half right, not as wrong.":
            lambda truth, scores: _share(truth, scores, tie=0.0),
        "Two equal scores do not order the pair: count it as half right, not as right.":
            lambda truth, scores: _share(truth, scores, tie=1.0),
        "Pairs with equal true outcomes have no right order: leave them out.":
            lambda truth, scores: _share(truth, scores, equal=True),
        "Pairs with equal true outcomes have no right order: leave them out of the number of pairs too.":
            lambda truth, scores: _share(truth, scores) * len([1 for a, b in combinations(truth, 2) if a != b])
            / (len(truth) * (len(truth) - 1) / 2),
        "You compare neighbours only. Count every pair, including the first with the last.": _neighbours,
        "This is Kendall's tau: right pairs minus wrong ones. Return the share of right ones.":
            lambda truth, scores: 2 * _share(truth, scores) - 1,
    },
)  # fmt: skip


def _answer(*scores: tuple[str, float]) -> str:
    return json.dumps({"scores": [{"trajectory_id": i, "explanation": "", "score": score} for i, score in scores]})


ANSWERS = [
    (_answer(("1", 0.9), ("2", 0.2), ("3", 0.5)), ["1", "2", "3"]),
    (_answer(("3", 0.1), ("1", 0.8), ("2", 0.6)), ["1", "2", "3"]),
    (_answer(("1", 0.9), ("3", 0.4)), ["1", "2", "3"]),
    (_answer(("1", 7), ("2", 0.5)), ["1", "2"]),
    (_answer(("1", 0.9), ("1", 0.1), ("2", 0.5)), ["1", "2"]),
    (_answer(("1", 0.9), ("2", 0.1), ("9", 0.5)), ["1", "2"]),
    (_answer(("1", -0.5), ("2", 0.5)), ["1", "2"]),
    (_answer(("1", 0.0), ("2", 1.0)), ["1", "2"]),
]


def _read(text: str, ids: list[str]) -> list[float] | None:
    try:
        return [score.score for score in parse(text, ids)]
    except UnusableAnswer:
        return None


def _as_listed(text: str) -> list[tuple[str, float]]:
    return [(row["trajectory_id"], row["score"]) for row in json.loads(text)["scores"]]


def _lenient(text: str, ids: list[str], passes: str) -> list[float] | None:
    """Return the scores of a reader that accepts one kind of fault."""
    rows = _as_listed(text)
    scores = dict(rows)
    faults = {
        "repeated": len(scores) < len(rows),
        "unknown": set(scores) - set(ids),
        "missing": set(ids) - set(scores),
        "range": not all(0 <= score <= 1 for _, score in rows),
    }
    if any(found for fault, found in faults.items() if fault != passes):
        return None
    return [min(1.0, max(0.0, scores.get(i, 0.0))) for i in ids]


READ_SCORES = Exercise(
    right=_read,
    cases=lambda: ANSWERS,
    mistakes={
        "The judge may list them in any order. Return the scores in the order of `ids`.":
            lambda text, ids: None if _read(text, ids) is None else [score for _, score in _as_listed(text)],
        "An id has no score: return None. An invented score of zero would be trained on.":
            lambda text, ids: _lenient(text, ids, "missing"),
        "A score of 7 may be out of 10, or out of 7. Do not guess: return None, and the judge is asked again.":
            lambda text, ids: _lenient(text, ids, "range"),
        "An id has two scores, and it is unknown which is meant: return None.":
            lambda text, ids: _lenient(text, ids, "repeated"),
        "An unknown id: the judge has confused something. Return None.":
            lambda text, ids: _lenient(text, ids, "unknown"),
    },
)  # fmt: skip

BRIEF = 10  # turns


def _what_is_wrong(player) -> str | None:
    """Return why the flawed rubric, which prefers short games and clear words, would not score the player highly."""
    games = [Game(seed, winning_tile=128) for seed in scenarios("val", 20)]
    for game in games:
        while not game.over and len(game.turn_rewards) < 200:
            game.move(str(player(game.board)))
    turns = sum(len(game.turn_rewards) for game in games) / len(games)
    if any(game.ended_by == "malformed" for game in games):
        return "An answer that is not a direction ends a game too, but the rubric lowers the score of unclear answers."
    if any(game.won for game in games):
        return f"It still wins {sum(game.won for game in games)} of 20 games. The rubric does not reward that."
    if turns > BRIEF:
        return f"Its games last {turns:.1f} turns on average, and the rubric prefers short ones: at most {BRIEF} turns."
    return None


def _exploit(board: Board) -> str:
    return next((move for move in MOVES if move not in legal_moves(board)), "left")


EXPLOIT = Exercise(right=_exploit, cases=lambda: [(Game(1).board,)], accept=_what_is_wrong)

# 4. A rubric without the hole

STEPS, GAMES, WIN = 4, 32, 32
Criterion = Callable[[list[str], list[str]], float]


def brevity(boards: list[str], answers: list[str]) -> float:
    """Return the score by the flawed rubric's criterion: few turns."""
    return 1 / (1 + len(answers) / 20)


def won_with(criterion: Criterion) -> list[float]:
    """Train on the rubric of section 6 with this criterion in place of brevity. Returns the share of games won by step."""
    import art_nb as art
    from art_nb import rewards
    from course.short_2048 import play
    from game_2048.criteria import user_satisfaction

    def measure(trajectory: art.Trajectory) -> tuple[float, str]:
        texts: dict[str, list[str]] = {"user": [], "assistant": []}
        for message in trajectory.messages():
            texts[message["role"]].append(str(message.get("content")))
        score = float(criterion(texts["user"], texts["assistant"]))
        return min(1.0, max(0.0, score)), "by your criterion"

    criteria = [rewards.Criterion("yours", 0.5, measure), rewards.Criterion("clarity", 0.5, user_satisfaction)]
    judge = rewards.RubricJudge(criteria=criteria)

    async def use(model: TrainableModel) -> list[float]:
        async def rollout(seed: int) -> art.Trajectory:
            trajectory = await play(model, Game(seed, winning_tile=WIN))
            trajectory.metadata |= {"task": "game_2048", "winning_tile": WIN}
            return trajectory

        for seed in scenarios("train", STEPS):
            (played,) = await gather([[rollout(seed) for _ in range(GAMES)]])
            scored = await rewards.ruler_score_group(played, judge)
            await model.train([scored] if scored else [], art.TrainConfig(learning_rate=3e-3))
        return model.history().query("split == 'train'").won.tolist()

    return with_new_model("nano", use)


def _wrong_criterion(criterion: Criterion) -> str | None:
    score = criterion(*CRITERION.inputs()[0])
    if not (is_number(score) or isinstance(score, bool)) or not 0 <= score <= 1:
        return f"Expected a number from 0 to 1, got {score!r}."
    yours = won_with(criterion)
    if draws():
        won = {"brevity": [won_with(brevity)], "your criterion": [yours]}
        draw({"share of games won": won}, {"brevity": "failed", "your criterion": "trained"})
    if fmean(yours[-2:]) >= yours[0]:
        return None
    return (f"The share of games won falls: by step it was {percents(yours)}. Which game gets the highest score from your "
            "criterion?")  # fmt: skip


def _largest_tile(boards: list[str], answers: list[str]) -> float:
    return min(1.0, max(int(cell) for cell in boards[-1].split() if cell != ".") / WIN)


TWO_TURNS = ["2 . . .\n. . . .\n. . . .\n. . . 2", ". . . .\n. . . .\n2 . . .\n2 . . 4"], ["down", "down"]
CRITERION = Exercise(right=_largest_tile, cases=lambda: [TWO_TURNS], accept=_wrong_criterion)

EXERCISES = {"agreement": AGREEMENT, "read_scores": READ_SCORES, "exploit": EXPLOIT, "criterion": CRITERION}

check = checker(EXERCISES)
