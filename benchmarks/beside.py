"""How much training does beside another process, by how torch's threads wait for each other.

`python -m benchmarks.beside` prints one JSON line. SmolLM2 gives 8 short answers and is trained on them, round after
round, by as many threads as there are cores. `ratio_alone`: its rounds a second with the wait that `import art_nb`
sets, over those with torch's own. `ratio_beside`: the same while another process keeps one core busy, as a browser does
that draws. `ratio_twice`: the same while a second such training runs. Sides take turns. A ratio is null where the other
side ended no round.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from statistics import fmean

import art_nb as art
from art_nb.real_model import smollm2
from benchmarks.gathering import registered
from benchmarks.result import print_result, say
from benchmarks.rollout_real import another_process, answers

GROUPS, SIZE = 1, 8
LOADING = 30.0  # seconds that a second training has to load the model before anything is counted
FIRST = {"ours": "import art_nb", "own": "import torch"}  # what is imported first


async def work(folder: str) -> None:
    """Answers and trains, and prints a line for each round, until it is killed."""
    model = await registered(folder, smollm2(), "beside", engine="transformers")
    while True:
        groups = [art.TrajectoryGroup(group) for group in answers(model, GROUPS, SIZE)]
        await model.train(await art.gather_trajectory_groups(groups, pbar_desc=None))
        print(time.perf_counter(), flush=True)


@contextmanager
def training(side: str) -> Iterator[subprocess.Popen]:
    """Inside, a process works; it prints the time at the end of each round."""
    program = f"{FIRST[side]}; import asyncio, benchmarks.beside as b, sys; asyncio.run(b.work(sys.argv[1]))"
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-c", program, folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=quiet) as run:
            try:
                yield run
            finally:
                run.kill()


def rounds(side: str, seconds: float, beside: str) -> float:
    """Rounds a second, after three to warm up, beside what is named."""
    with training(side) as run:
        lines = run.stdout
        assert lines is not None  # it was asked for
        for _ in range(3):
            if not lines.readline():
                raise RuntimeError(f"the process that trains ended with {run.wait()}")
        with {"alone": nullcontext, "beside": another_process, "twice": partial(training, side)}[beside]():
            time.sleep(LOADING if beside == "twice" else 0)
            started = time.perf_counter()
            time.sleep(seconds)
        run.kill()
        found = sum(started < float(line) <= started + seconds for line in lines if line.endswith("\n")) / seconds
    say(f"{side}, {beside}: {found:.3f} rounds a second")
    return found


def measure(seconds: float = 40.0, repeats: int = 2) -> dict:
    result: dict = {}
    for beside in ("alone", "beside", "twice"):
        each = [[rounds(side, seconds, beside) for side in FIRST] for _ in range(repeats)]
        ours, own = (fmean(found) for found in zip(*each, strict=True))
        result |= {f"ratio_{beside}": ours / own if own else None}
        result |= {f"ours_{beside}_rounds_per_s": ours, f"own_{beside}_rounds_per_s": own}
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each measurement")
    print_result("beside", lambda: measure(parser.parse_args().seconds))
