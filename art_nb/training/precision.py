"""The dtype of a model: some CPUs multiply bfloat16 up to four times as fast as float32, and older GPUs only emulate it."""

import functools
import time
from statistics import median

import torch

ROUNDS = 7
MAX_TIME_RATIO = 0.7  # relative to float32: a gain worth the lost precision, and larger than the measurement noise


def dtype_on_cpu(stored: torch.dtype | None) -> torch.dtype:
    """Return bfloat16 if a model is stored in it and this CPU multiplies it clearly faster, else float32."""
    return torch.bfloat16 if stored == torch.bfloat16 and multiplies_bfloat16_faster() else torch.float32


def dtype_on_gpu(stored: torch.dtype | None) -> torch.dtype | str:
    """Return float16 if a model is stored in bfloat16 and this GPU (a T4, say) only emulates it, else "auto": as stored."""
    emulated = stored == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.float16 if emulated else "auto"


@functools.cache
def multiplies_bfloat16_faster() -> bool:
    """Whether this CPU multiplies bfloat16 clearly faster than float32. Measured once, if it has AVX512-BF16 or AMX."""
    if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return False
    times: dict[torch.dtype, list[float]] = {dtype: [] for dtype in (torch.float32, torch.bfloat16)}
    factors = {dtype: torch.ones(512, 512, dtype=dtype) for dtype in times}
    for _ in range(1 + ROUNDS):  # alternating, so that other load slows both; the first round warms up
        for dtype, factor in factors.items():
            started = time.perf_counter()
            torch.nn.functional.linear(factor, factor)
            times[dtype].append(time.perf_counter() - started)
    of_float32, of_bfloat16 = (median(each[1:]) for each in times.values())
    return of_bfloat16 < MAX_TIME_RATIO * of_float32
