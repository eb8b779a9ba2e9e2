"""Accuracy of the simulated scheduler: `simulate` compared with RayBackend with 1, 2 and 4 samplers.

`python -m benchmarks.samplers` prints one JSON line. With each number of samplers, batches of conversations of 1 to 12
turns are gathered. From every other batch the duration of a turn is measured as a function of the conversations per
sampler. With this function the simulation predicts the duration of the other batches. `ratio_N` is the simulated over
the real seconds with N samplers. The measured function includes the slowdown if samplers outnumber cores.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections import defaultdict

import art_nb as art
from art_nb.backends.ray.backend import RayBackend
from benchmarks.gathering import BASE
from benchmarks.result import print_result, say
from course.simulation import Times, measured_turn, simulate

TURNS = range(1, 13)
GROUPS, SIZE, BATCHES = 8, 4, 8
MAX_TOKENS = 8


class ConversationBatch:
    """Concurrent conversations. turns: number in each; requests: (active conversations, seconds) of each."""

    def __init__(self, model: art.TrainableModel, seed: int):
        self.model, draw = model, random.Random(seed)
        self.turns = [draw.choice(TURNS) for _ in range(GROUPS * SIZE)]
        self.requests: list[tuple[int, float]] = []
        self.active = 0

    async def gather(self) -> float:
        """Run all conversations. Returns seconds."""
        started = time.perf_counter()
        await asyncio.gather(*(self._converse(i, turns) for i, turns in enumerate(self.turns)))
        return time.perf_counter() - started

    async def _converse(self, number: int, turns: int) -> None:
        client, name = self.model.openai_client(), self.model.get_inference_name()
        messages: list = [{"role": "user", "content": f"game {number}"}]
        self.active += 1
        for _ in range(turns):
            together, started = self.active, time.perf_counter()
            answer = await client.chat.completions.create(model=name, messages=messages, max_tokens=MAX_TOKENS)
            self.requests.append((together, time.perf_counter() - started))
            messages += [{"role": "assistant", "content": answer.choices[0].message.content or ""}]
            messages += [{"role": "user", "content": "and now?"}]
        self.active -= 1


async def measured(samplers: int, folder: str) -> dict[str, float]:
    """Return the mean real and simulated seconds of a batch, and their ratio."""
    model = art.TrainableModel(name=f"with{samplers}", project="samplers", base_model=str(BASE))
    backend = RayBackend(samplers=samplers, path=folder, engine="transformers")
    await model.register(backend)
    await ConversationBatch(model, -1).gather()  # warm-up
    batches = [ConversationBatch(model, seed) for seed in range(BATCHES)]
    seconds = [await batch.gather() for batch in batches]
    await backend.close()
    by_share = defaultdict(list)
    for batch in batches[::2]:
        for together, took in batch.requests:
            by_share[max(1, round(together / samplers))].append(took)
    points = [(share, statistics.median(took)) for share, took in by_share.items() if len(took) >= 4]
    turn, run = measured_turn(points), {"samplers": samplers, "groups": GROUPS, "group_size": SIZE, "steps": 20}
    played = [
        simulate(Times(turn, batch.turns, lambda n: 0.0), **run, seed=seed)
        for seed, batch in enumerate(batches[1::2])
    ]
    simulated = statistics.fmean(each.seconds / 20 for each in played)
    real = statistics.fmean(seconds[1::2])
    say(f"{samplers} samplers: {real:.2f} s per batch, simulated {simulated:.2f}")
    return {"real": real, "simulated": simulated, "ratio": simulated / real}


def measure() -> dict[str, float]:
    """Compare simulation and reality for each number of samplers."""
    import ray

    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for samplers in (1, 2, 4):
            for name, value in asyncio.run(measured(samplers, folder)).items():
                found[f"{name}_{samplers}"] = value
    ray.shutdown()
    return found


if __name__ == "__main__":
    print_result("samplers", measure)
