"""How much of what a hand-written reward teaches does the offline judge teach?

`python -m benchmarks.rise_judge --seeds 0 1 2` prints one JSON line. From each seed two models learn 2048 as in notebook
04: the same start, games and steps, one reward for each game; once it is `outcome_reward`, once the judge's score. Each is
measured by the share of 400 held-out games won and by their mean outcome, before and after; `share` is the judge's rise
over the reward's, by the outcome (`share_won`: by games won); `ratio` is the smallest `share` of all seeds.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from statistics import fmean

import art_nb as art
from art_nb.rewards import RubricJudge, ruler_score_group
from art_nb.tasks.game_2048 import Game, outcome_reward, scenarios
from benchmarks.gathering import BASE, registered
from benchmarks.result import print_result, say
from benchmarks.rising import falling

STEPS, GAMES, GROUPS, SIZE, WINNING_TILE = 12, 400, 4, 16, 64
LEARNING_RATE = 3e-3
JUDGE = RubricJudge("game_2048")


async def play(model: art.TrainableModel, seed: int) -> art.Trajectory:
    """One game, each move from its board alone, with one reward for all of it."""
    game, client = Game(seed, winning_tile=WINNING_TILE), model.openai_client()
    trajectory = art.Trajectory(metadata={"seed": seed, "winning_tile": WINNING_TILE})
    while not game.over:
        board = {"role": "user", "content": game.render()}
        completion = await client.chat.completions.create(
            model=model.get_inference_name(), messages=[board], max_tokens=4
        )
        trajectory.messages_and_choices += [board, completion.choices[0]]
        game.move(completion.choices[0].message.content)
    trajectory.reward, trajectory.metrics["won"] = outcome_reward(game), game.won
    return trajectory


async def judged(group: art.TrajectoryGroup) -> art.TrajectoryGroup | None:
    """The group with the judge's scores as rewards."""
    return await ruler_score_group(group, JUDGE)


async def skill(model: art.TrainableModel, games: int) -> dict[str, float]:
    """Over the first `games` test games: those won, in percent, and the mean outcome."""
    played = await art.gather_trajectories([play(model, seed) for seed in scenarios("test", games)], pbar_desc=None)
    return {"won": 100 * fmean(t.metrics["won"] for t in played), "outcome": fmean(t.reward for t in played)}


async def train(model: art.TrainableModel, after_each, steps: int) -> None:
    for step in range(steps):
        seeds = scenarios("train", (step + 1) * GROUPS)[-GROUPS:]
        groups = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(play(model, seed) for _ in range(SIZE)) for seed in seeds],
            after_each=after_each, pbar_desc=None,
        )  # fmt: skip
        await model.train(groups, art.TrainConfig(learning_rate=falling(step, steps, LEARNING_RATE)))
        say(f"{model.name}: step {step + 1} of {steps}, won {fmean(t.metrics['won'] for g in groups for t in g):.0%}")


async def measure_seed(folder: str, seed: int, steps: int = STEPS, games: int = GAMES) -> dict:
    found: dict = {"seed": seed}
    for name, after_each in (("reward", None), ("judge", judged)):
        model = await registered(folder, BASE, f"{name}-{seed}", seed=seed)
        before, started = await skill(model, games), time.perf_counter()
        await train(model, after_each, steps)
        seconds, after = time.perf_counter() - started, await skill(model, games)
        found[name] = {key: [before[key], after[key]] for key in before} | {"seconds": seconds}
        say(f"{name}, seed {seed}: {before} to {after}")
    return found | {"share": share(found, "outcome"), "share_won": share(found, "won")}


def share(found: dict, key: str) -> float | None:
    """The judge's rise over the reward's."""
    by_reward, by_judge = (found[name][key][1] - found[name][key][0] for name in ("reward", "judge"))
    return by_judge / by_reward if by_reward else None


def measure(seeds: list[int], steps: int = STEPS, games: int = GAMES) -> dict:
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
