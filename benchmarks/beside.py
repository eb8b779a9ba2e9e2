"""Training throughput on a shared machine, for two spin times of torch's threads.

`python -m benchmarks.beside` prints one JSON line. In each round SmolLM2 samples 8 short answers and is trained on them,
with torch's default threads. `ratio_alone`: rounds per second with the spin time that `import art_nb` sets, over those
with torch's default. `ratio_beside`: the same while another process keeps one core busy, as a rendering browser does.
`ratio_twice`: the same while a second training process runs. The settings alternate. A ratio is null if torch's default
completed no round.
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
from benchmarks.gathering import registered
from benchmarks.result import print_result, say
from benchmarks.rollout_real import another_process, answers
from course.real_model import smollm2

GROUPS, SIZE = 1, 8
LOADING = 30.0  # seconds for the second training process to load its model before the measurement
FIRST = {"ours": "import art_nb", "own": "import torch"}  # the first import of each side


async def work(folder: str) -> None:
    """Sample and train, and print the time after each round, until killed."""
    model = await registered(folder, smollm2(), "beside", engine="transformers")
    while True:
        groups = [art.TrajectoryGroup(group) for group in answers(model, GROUPS, SIZE)]
        await model.train(await art.gather_trajectory_groups(groups, pbar_desc=None))
        print(time.perf_counter(), flush=True)


@contextmanager
def training(side: str) -> Iterator[subprocess.Popen]:
    """Run `work` in another process, which prints the time after each round."""
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
    """Return rounds per second, after three for warm-up. beside: the other work: "alone" (none), "beside" or "twice"."""
    with training(side) as run:
        lines = run.stdout
        assert lines is not None  # requested with PIPE
        for _ in range(3):
            if not lines.readline():
                raise RuntimeError(f"the training process exited with {run.wait()}")
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
    parser.add_argument("--seconds", type=float, default=40.0, help="duration of each measurement")
    print_result("beside", lambda: measure(parser.parse_args().seconds))
