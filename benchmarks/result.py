"""The output of most benchmarks: one line of JSON on stdout, with the conditions of the measurement."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.game_2048 import rounded


def print_result(name: str, measure: Callable[[], dict]) -> None:
    """Run `measure` with its output redirected to stderr, then print its numbers as the only line of stdout.

    With the option --help or -h, print the benchmark's docstring instead.
    """
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(sys.modules["__main__"].__doc__)
        return
    # The load is read first, so that it shows other work on the machine.
    conditions = machine()
    with redirect_stdout(sys.stderr):
        numbers = measure()
    print(json.dumps(rounded({"benchmark": name, **numbers, "machine": conditions})))


def machine() -> dict:
    """Return processor, cores, torch's threads, load of the last minute, device, versions, and date and time (UTC)."""
    import torch
    import transformers
    import trl

    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "versions": {module.__name__: module.__version__ for module in (torch, transformers, trl)},
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
    }


def processor() -> str:
    """Return the processor's name on Linux, and its architecture elsewhere."""
    import platform

    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def say(text: str) -> None:
    """Print a line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)
