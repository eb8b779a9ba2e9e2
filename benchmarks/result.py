"""What every benchmark prints: one line of JSON on stdout, with what is needed to read its numbers later."""

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
    """Runs `measure` with whatever it prints sent to stderr, then prints its numbers as the only line of stdout."""
    # The load is read first: it says how busy the machine was with other work.
    conditions = machine()
    with redirect_stdout(sys.stderr):
        numbers = measure()
    print(json.dumps(rounded({"benchmark": name, **numbers, "machine": conditions})))


def machine() -> dict:
    """Processor, cores, torch's threads, load of the last minute, device, versions, date and time (UTC)."""
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
    """The processor's name where Linux tells it, else its kind."""
    import platform

    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def say(text: str) -> None:
    """A line of progress, on stderr."""
    print(text, file=sys.stderr, flush=True)
