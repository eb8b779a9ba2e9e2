"""In which numbers a model is computed on a processor. It knows nothing of models but how they are stored.

Many processors multiply bfloat16, 16 bits with the range of float32, up to four times as fast as float32. Others take longer
over it than over float32.
"""

from __future__ import annotations

import torch


def multiplies_bfloat16() -> bool:
    """Whether this processor has instructions for products in bfloat16 that torch uses."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def dtype_on_cpu(stored: torch.dtype | None) -> torch.dtype:
    """bfloat16 where a model is stored in it and the processor multiplies it, else float32."""
    return torch.bfloat16 if stored == torch.bfloat16 and multiplies_bfloat16() else torch.float32
