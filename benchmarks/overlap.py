"""Training speed when the next batch is sampled while the model trains, compared with alternating the two.

`python -m benchmarks.overlap [steps]` prints one JSON line (default 12 steps; needs extra `ray`). Two models learn 2048 to
the 128 tile, from the same seed, on a `RayBackend` with one sampler and one learner with one thread each: one with
`max_staleness=0`, the other with 1. They alternate every six steps, so that other work on the
machine affects both; each time the first batch of the overlapped side is sampled, and its last trained on, without overlap.

`ratio`: steps per minute with staleness 1 over those with 0. `apart` and `overlapped`: for each the steps per minute, the
seconds of training and sampling per step, the mean staleness of the batches, and the percentage of 200 test games won at
the end. `difference`: of these percentages, overlapped minus apart, with a 95% interval (paired by game).
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from statistics import fmean

import art_nb as art
from benchmarks.gathering import BASE
from benchmarks.paired import paired
from benchmarks.result import print_result, say
from benchmarks.rising import decayed_rate
from benchmarks.skills import game, measure_wins
from course.overlap import OverlappedStep, overlapped
from game_2048 import scenarios

GAMES, GROUPS, SIZE, TURN = 200, 4, 16, 6  # TURN: steps of one model before the other continues
KINDS = {"apart": 0, "overlapped": 1}


async def gather(model: art.TrainableModel, step: int) -> list[art.TrajectoryGroup]:
    seeds = scenarios("train", (step + 1) * GROUPS)[-GROUPS:]
    groups = [art.TrajectoryGroup(game(model, s, by_tool=False) for _ in range(SIZE)) for s in seeds]
    return await art.gather_trajectory_groups(groups, pbar_desc=None)


async def take_turns(
    models: dict[str, art.TrainableModel], steps: int
) -> tuple[dict[str, list[OverlappedStep]], dict[str, float]]:
    """Train each model for `steps` steps, alternating. Returns the steps and the seconds of each."""
    taken: dict[str, list[OverlappedStep]] = {kind: [] for kind in models}
    seconds = dict.fromkeys(models, 0.0)
    for begin in range(0, steps, TURN):
        for kind, model in models.items():
            end = min(begin + TURN, steps)
            config = lambda step: art.TrainConfig(learning_rate=decayed_rate(step, steps, 3e-3), turn_discount=0.5)  # noqa: E731
            run = overlapped(model, lambda step, m=model: gather(m, step), end, config, max_staleness=KINDS[kind])
            async for step in run:
                taken[kind].append(step)
                say(f"{kind}: step {step.step} of {steps} after {step.seconds:.1f} s, {step.waited:.1f} s of waiting")
            seconds[kind] += taken[kind][-1].seconds
    return taken, seconds


async def compare(folder: str, steps: int) -> dict:
    async with art.RayBackend(samplers=1, path=folder, engine="transformers") as backend:
        models = {kind: art.TrainableModel(name=kind, project="benchmarks", base_model=str(BASE)) for kind in KINDS}
        for model in models.values():
            await model.register(backend)
            await measure_wins(model, 8)  # warm-up
        taken, seconds = await take_turns(models, steps)
        games = {kind: await measure_wins(model, GAMES) for kind, model in models.items()}
    found = {
        kind: {
            "steps_per_minute": 60 * steps / seconds[kind],
            "train_s": fmean(step.metrics["train_s"] for step in taken[kind]),
            "rollout_s": fmean(step.metrics.get("rollout_s", 0.0) for step in taken[kind]),
            "staleness": fmean(step.staleness for step in taken[kind]),
            "won": 100 * fmean(games[kind]),
        }
        for kind in KINDS
    }
    more = paired(games["apart"], games["overlapped"])
    ratio = found["overlapped"]["steps_per_minute"] / found["apart"]["steps_per_minute"]
    return {"ratio": ratio, **found, "difference": more["rise"], "low": more["low"], "high": more["high"]}


def measure(steps: int = 12) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(compare(folder, steps))


if __name__ == "__main__":
    print_result("overlap", lambda: measure(*map(int, sys.argv[1:2])))
