"""Training on Ray while its actors are killed: samplers and learner, SIGKILL at random instants; and a run left in peace.

`python -m benchmarks.ray_kills [kills] [seed]` prints one JSON line (30 kills, seed 0; extra `ray`). A run trains the nano
model on 2048 as notebook 02 does, in smaller steps, with two samplers and a learner, until as many of these were killed;
then another one takes as many steps in peace.

`lost` and `doubled`: episodes that are missing from a step, or in it twice, and rows of metrics; `different`: steps whose
tokens are not those of the quiet run (two samplers round as they are asked together, which can turn a draw, and what follows
it). `won` and `quiet_won`: share of 200 test games in percent, `low` and `high` the latter's 95% interval; `within`: whether
`won` lies in it. `killed`: who, while what went on. `ratio`: won over quiet_won.
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
from art_nb.cluster.calls import until_back
from art_nb.cluster.ray_backend import Spread
from art_nb.tasks.game_2048 import scenarios
from benchmarks.gathering import BASE
from benchmarks.result import print_result, say
from benchmarks.rise import rate, won
from benchmarks.skills import game

STEPS, GROUPS, SIZE, GAMES, SAMPLERS = 8, 4, 8, 200, 2
LONGEST = 5.0  # seconds until the next kill
KINDS = ("SamplerActor", "LearnerActor")


def actors() -> list[tuple[str, psutil.Process]]:
    """The processes of Ray's actors that belong to this one, with their kind, which Ray writes into their title."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            title = "".join(process.cmdline()[:1])
        except psutil.Error:  # it has ended meanwhile
            continue
        found += [(kind, process) for kind in KINDS if title.startswith(f"ray::{kind}")]
    return found


class Doing:
    """What goes on in a run."""

    text = "begins"


async def killer(kills: int, draw: random.Random, spread: Spread, doing: Doing) -> Counter[str]:
    """Kill as often, one time in five before the last one is back; who, while what went on."""
    killed: Counter[str] = Counter()
    everyone = [*spread.learners, *(member.actor for member in spread.pool.members)]
    while killed.total() < kills:
        if draw.random() < 0.8:
            await asyncio.gather(*map(until_back, everyone))
        await asyncio.sleep(draw.uniform(0, LONGEST))
        if not (there := actors()):
            continue
        kind, process = draw.choice(there)
        process.kill()
        process.wait()
        killed[f"{kind} while the run {doing.text}"] += 1
        say(f"kill {killed.total()} of {kills}: {kind} while the run {doing.text}")
    return killed


async def train(model: art.TrainableModel, enough: Callable[[int], bool], doing: Doing) -> int:
    """Steps, until there are enough of them; how many."""
    step = 0
    while not enough(step):
        doing.text = "plays"
        seeds = scenarios("train", (step + 1) * GROUPS)[-GROUPS:]
        groups = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(game(model, s, by_tool=False) for _ in range(SIZE)) for s in seeds], pbar_desc=None
        )
        doing.text = "learns"
        result = await model.train(
            groups, art.TrainConfig(learning_rate=rate(min(step, STEPS - 1), STEPS), turn_discount=0.5)
        )
        step += 1
        say(f"step {step}")
        if result.step != step:
            raise RuntimeError(f"this was step {step}, and the model says that it is at {result.step}")
    return step


def learned(model: art.TrainableModel, step: int) -> Counter[str]:
    """Every episode of a step, by its tokens, and how often it is there."""
    return Counter(
        repr((record["group"], record["reward"], [turn.get("tokens") for turn in record["turns"]]))
        for record in model.records("train", step)
    )


async def run(folder: str, kills: int, steps: int, draw: random.Random) -> dict:
    """At least so many steps, and until so many were killed."""
    async with art.RayBackend(samplers=SAMPLERS, path=folder, engine="transformers") as backend:
        model = art.TrainableModel(name="m", project="benchmarks", base_model=str(BASE))
        await model.register(backend)
        doing = Doing()
        killing = asyncio.create_task(killer(kills, draw, backend._of(model), doing))
        training = asyncio.create_task(train(model, lambda step: step >= steps and killing.done(), doing))
        try:
            await asyncio.wait([killing, training], return_when=asyncio.FIRST_EXCEPTION)
            steps = await training
            killed = await killing
        finally:
            killing.cancel()
            training.cancel()
        rows = Counter(model.history().query("split == 'train'").step)
        return {
            "steps": steps, "killed": dict(sorted(killed.items())), "won": 100 * sum(await won(model, GAMES)) / GAMES,
            "rows": [rows[step] for step in range(1, steps + 1)],
            "learned": [learned(model, step) for step in range(1, steps + 1)],
        }  # fmt: skip


def measure(kills: int = 30, seed: int = 0) -> dict:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        hurt = asyncio.run(run(one, kills, STEPS, draw))
        calm = asyncio.run(run(other, 0, hurt["steps"], draw))
    counts = [(step.total(), GROUPS * SIZE) for step in hurt["learned"]] + [(rows, 1) for rows in hurt["rows"]]
    share = calm["won"] / 100
    half = 196 * (share * (1 - share) / GAMES) ** 0.5
    low, high = calm["won"] - half, calm["won"] + half
    return {
        "kills": sum(hurt["killed"].values()), "killed": hurt["killed"], "steps": hurt["steps"],
        "lost": sum(max(expected - found, 0) for found, expected in counts),
        "doubled": sum(max(found - expected, 0) for found, expected in counts),
        "different": sum(one != other for one, other in zip(hurt["learned"], calm["learned"], strict=True)),
        "won": hurt["won"], "quiet_won": calm["won"], "low": low, "high": high, "within": low <= hurt["won"] <= high,
        "ratio": hurt["won"] / calm["won"],
    }  # fmt: skip


if __name__ == "__main__":
    print_result("ray_kills", lambda: measure(*map(int, sys.argv[1:3])))
