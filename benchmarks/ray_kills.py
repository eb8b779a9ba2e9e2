"""Training on Ray while samplers and learner are killed by SIGKILL at random times, compared with an undisturbed run.

`python -m benchmarks.ray_kills [kills] [seed]` prints one JSON line (default: 30 kills, seed 0; needs the
extra `ray`). A run trains the nano model on 2048 up to the 128 tile, with two samplers and a learner,
until this number of actors have been killed; then another run takes as many steps undisturbed.

`lost` and `doubled`: episodes and rows of metrics that are too few or too many in a step; `different`: steps whose
tokens differ from the undisturbed run (rounding depends on the batches of the two samplers and can change a sample and
all that follows). `won` and `quiet_won`: percentage of 200 test games won; `low` and `high`: the 95% interval of their
difference, paired by game; `within`: whether it contains 0. `killed`: counts by actor and phase of the run. `ratio`: won
over quiet_won.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable

import psutil

import art_nb as art
from art_nb.backends.ray.backend import ModelActors
from art_nb.backends.ray.calls import until_ready
from benchmarks.gathering import BASE
from benchmarks.paired import paired
from benchmarks.result import print_result, say
from benchmarks.rising import decayed_rate
from benchmarks.skills import game, measure_wins
from game_2048 import scenarios

STEPS, GROUPS, SIZE, GAMES, SAMPLERS = 8, 4, 8, 200, 2
MAX_DELAY = 5.0  # seconds until the next kill
KINDS = ("SamplerActor", "LearnerActor")


def actors() -> list[tuple[str, psutil.Process]]:
    """Return (kind, process) of this process's Ray actors; Ray writes the kind into the process title."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            title = "".join(process.cmdline()[:1])
        except psutil.Error:  # the process has ended
            continue
        found += [(kind, process) for kind in KINDS if title.startswith(f"ray::{kind}")]
    return found


class RunPhase:
    """The current phase of a run, for the report."""

    text = "begins"


async def killer(kills: int, draw: random.Random, actors_of_model: ModelActors, phase: RunPhase) -> Counter[str]:
    """Kill actors, one time in five before the previous one is back. Returns the kills by actor and phase."""
    killed: Counter[str] = Counter()
    everyone = actors_of_model.all_actors()
    while killed.total() < kills:
        if draw.random() < 0.8:
            await asyncio.gather(*map(until_ready, everyone))
        await asyncio.sleep(draw.uniform(0, MAX_DELAY))
        if not (there := actors()):
            continue
        kind, process = draw.choice(there)
        process.kill()
        process.wait()
        killed[f"{kind} while the run {phase.text}"] += 1
        say(f"kill {killed.total()} of {kills}: {kind} while the run {phase.text}")
    return killed


async def train(model: art.TrainableModel, enough: Callable[[int], bool], phase: RunPhase) -> int:
    """Train until `enough(step)`. Returns the number of steps."""
    step = 0
    while not enough(step):
        phase.text = "plays"
        seeds = scenarios("train", (step + 1) * GROUPS)[-GROUPS:]
        groups = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(game(model, s, by_tool=False) for _ in range(SIZE)) for s in seeds], pbar_desc=None
        )
        phase.text = "learns"
        result = await model.train(
            groups, art.TrainConfig(learning_rate=decayed_rate(min(step, STEPS - 1), STEPS, 3e-3), turn_discount=0.5)
        )
        step += 1
        say(f"step {step}")
        if result.step != step:
            raise RuntimeError(f"after step {step} the model is at step {result.step}")
    return step


def learned(model: art.TrainableModel, step: int) -> Counter[str]:
    """Return the episodes of a step with their tokens, and their counts."""
    return Counter(
        repr((record["group"], record["reward"], [turn.get("tokens") for turn in record["turns"]]))
        for record in model.records("train", step)
    )


async def run(folder: str, kills: int, steps: int, draw: random.Random) -> dict:
    """Train for at least `steps` steps and until `kills` actors have been killed."""
    async with art.RayBackend(samplers=SAMPLERS, path=folder, engine="transformers") as backend:
        model = art.TrainableModel(name="m", project="benchmarks", base_model=str(BASE))
        await model.register(backend)
        phase = RunPhase()
        killing = asyncio.create_task(killer(kills, draw, backend.loaded(model), phase))
        training = asyncio.create_task(train(model, lambda step: step >= steps and killing.done(), phase))
        try:
            await asyncio.wait([killing, training], return_when=asyncio.FIRST_EXCEPTION)
            steps = await training
            killed = await killing
        finally:
            killing.cancel()
            training.cancel()
        rows = Counter(model.history().query("split == 'train'").step)
        return {
            "steps": steps, "killed": dict(sorted(killed.items())),
            "wins": await measure_wins(model, GAMES),
            "rows": [rows[step] for step in range(1, steps + 1)],
            "learned": [learned(model, step) for step in range(1, steps + 1)],
        }  # fmt: skip


def measure(kills: int = 30, seed: int = 0) -> dict:
    """Run with kills, then undisturbed."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        disturbed = asyncio.run(run(one, kills, STEPS, draw))
        quiet = asyncio.run(run(other, 0, disturbed["steps"], draw))
    counts = [(step.total(), GROUPS * SIZE) for step in disturbed["learned"]] + [(rows, 1) for rows in disturbed["rows"]]
    games = paired(quiet["wins"], disturbed["wins"])
    return {
        "kills": sum(disturbed["killed"].values()), "killed": disturbed["killed"], "steps": disturbed["steps"],
        "lost": sum(max(expected - found, 0) for found, expected in counts),
        "doubled": sum(max(found - expected, 0) for found, expected in counts),
        "different": sum(one != other for one, other in zip(disturbed["learned"], quiet["learned"], strict=True)),
        "won": games["after"], "quiet_won": games["before"], "low": games["low"], "high": games["high"],
        "within": games["low"] <= 0 <= games["high"],
        "ratio": games["after"] / games["before"],
    }  # fmt: skip


if __name__ == "__main__":
    print_result("ray_kills", lambda: measure(*map(int, sys.argv[1:3])))
