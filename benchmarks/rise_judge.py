"""Training with the offline judge's scores compared with training with the hand-written reward.

`python -m benchmarks.rise_judge --seeds 0 1 2` prints one JSON line. From each seed two models learn 2048
as in notebook 05, RULER, but in 12 steps of 64 games, with the same initial weights and games; the reward
of a game is `outcome_reward` for one and the judge's score for the other. Each is evaluated by the share
of 400 held-out games won and by their mean outcome, before and after. `share` is the rise in the outcome
with the judge over that with the reward (`share_won`: of games won), and `ratio` the smallest `share`.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from statistics import fmean

import art_nb as art
from art_nb.rewards import RubricJudge, ruler_score_group
from benchmarks.gathering import BASE, registered
from benchmarks.result import print_result, say
from benchmarks.rising import decayed_rate, train
from game_2048 import Game, outcome_reward, scenarios

STEPS, GAMES, GROUPS, SIZE, WINNING_TILE = 12, 400, 4, 16, 64
LEARNING_RATE = 3e-3
JUDGE = RubricJudge("game_2048")


async def play(model: art.TrainableModel, seed: int) -> art.Trajectory:
    """Play one game. Each prompt is the current board; the game has one reward."""
    game, client = Game(seed, winning_tile=WINNING_TILE), model.openai_client()
    trajectory = art.Trajectory(metadata={"seed": seed, "winning_tile": WINNING_TILE})
    while not game.over:
        board = {"role": "user", "content": game.render()}
        completion = await client.chat.completions.create(model=model.get_inference_name(), messages=[board], max_tokens=1)
        trajectory.messages_and_choices += [board, completion.choices[0]]
        game.move(completion.choices[0].message.content)
    trajectory.reward, trajectory.metrics["won"] = outcome_reward(game), game.won
    return trajectory


async def judged(group: art.TrajectoryGroup) -> art.TrajectoryGroup | None:
    """Return the group with the judge's scores as rewards."""
    return await ruler_score_group(group, JUDGE)


async def skill(model: art.TrainableModel, games: int) -> dict[str, float]:
    """Return the percentage of the first `games` test games won, and their mean outcome."""
    played = await art.gather_trajectories([play(model, seed) for seed in scenarios("test", games)], pbar_desc=None)
    return {"won": 100 * fmean(t.metrics["won"] for t in played), "outcome": fmean(t.reward for t in played)}


async def measure_seed(folder: str, seed: int, steps: int = STEPS, games: int = GAMES) -> dict:
    """Train with both rewards from one seed."""
    found: dict = {"seed": seed}
    configs = [art.TrainConfig(learning_rate=decayed_rate(step, steps, LEARNING_RATE)) for step in range(steps)]
    seeds = scenarios("train", steps * GROUPS)
    for name, after_each in (("reward", None), ("judge", judged)):
        model = await registered(folder, BASE, f"{name}-{seed}", seed=seed)
        before = await skill(model, games)
        seconds = await train(model, lambda s, _, m=model: play(m, s), seeds, configs, GROUPS, SIZE, ["won"], after_each)
        after = await skill(model, games)
        found[name] = {key: [before[key], after[key]] for key in before} | {"seconds": seconds}
        say(f"{name}, seed {seed}: {before} to {after}")
    return found | {"share": share(found, "outcome"), "share_won": share(found, "won")}


def share(found: dict, key: str) -> float | None:
    """Return the rise with the judge over the rise with the reward."""
    by_reward, by_judge = (found[name][key][1] - found[name][key][0] for name in ("reward", "judge"))
    return by_judge / by_reward if by_reward else None


def measure(seeds: list[int], steps: int = STEPS, games: int = GAMES) -> dict:
    """Train with both rewards from each seed."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [asyncio.run(measure_seed(folder, seed, steps, games)) for seed in seeds]
    shares = [run["share"] for run in runs]
    return {"runs": runs, "ratio": None if None in shares else min(shares)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS)
    a = parser.parse_args()
    print_result("rise_judge", lambda: measure(a.seeds, a.steps))
