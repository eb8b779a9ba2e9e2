"""In which numbers a model is computed on a processor. It knows nothing of models but how they are stored.

Some processors multiply bfloat16, 16 bits with the range of float32, up to four times as fast as float32. Others have
instructions for it that are slower than those for float32, or none: so it is measured.
"""

from __future__ import annotations

import functools
import time
from statistics import median

import torch

ROUNDS = 7
CLEARLY = 0.7  # of float32's time: a gain worth the lost precision, and no chance that noise decides


def dtype_on_cpu(stored: torch.dtype | None) -> torch.dtype:
    """bfloat16 where a model is stored in it and the processor multiplies it clearly faster, else float32."""
    return torch.bfloat16 if stored == torch.bfloat16 and multiplies_bfloat16_faster() else torch.float32


@functools.cache
def multiplies_bfloat16_faster() -> bool:
    """Whether this processor multiplies bfloat16 clearly faster than float32, found once by doing it: some 0.1 s."""
    if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return False
    times: dict[torch.dtype, list[float]] = {dtype: [] for dtype in (torch.float32, torch.bfloat16)}
    factors = {dtype: torch.ones(512, 512, dtype=dtype) for dtype in times}
    for _ in range(1 + ROUNDS):  # in turns, so that what else runs here slows both
        for dtype, factor in factors.items():
            started = time.perf_counter()
            torch.nn.functional.linear(factor, factor)
            times[dtype].append(time.perf_counter() - started)
    of_float32, of_bfloat16 = (median(each[1:]) for each in times.values())
    return of_bfloat16 < CLEARLY * of_float32
