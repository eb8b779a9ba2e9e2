"""Keys and values of many conversations, kept across turns in preallocated buffers; knows nothing of text or sampling.

Each conversation owns a slot. A forward pass appends the new tokens of some slots, which may differ in length, and
attends to everything those slots hold. The buffers are sliced to the longest conversation taking part, so a short
conversation never pays for the capacity, and an old turn is never computed twice.

Source: the cache interface is transformers' `Cache.update`, so any causal LM of transformers can use it.
"""

from __future__ import annotations

import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache

ATTENTION = "art_nb_slots"


def grouped_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **_):
    """Scaled dot-product attention that leaves grouped keys and values unrepeated.

    query: (B, H, N, D); key, value: (B, K, T, D) with H a multiple of K; attention_mask: (B, 1, N, T) bool.
    Returns ((B, N, H, D), None), as transformers' attention functions do.
    """
    batch, heads, new, _ = query.shape
    groups = heads // key.shape[1]
    # The heads that share a key head become extra queries of it: no copy of keys and values is made.
    query = query.reshape(batch, key.shape[1], groups * new, -1)
    mask = attention_mask if groups == 1 else attention_mask.repeat(1, 1, groups, 1)
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(batch, heads, new, -1).transpose(1, 2), None


AttentionInterface.register(ATTENTION, grouped_attention)


class SlotCache(Cache):
    """Buffers of shape (slots, key heads, capacity, head size) per layer, and the number of tokens each slot holds."""

    def __init__(self, slots: int, dtype: torch.dtype, device: torch.device):
        self.slots, self.dtype, self.device = slots, dtype, device
        self.lengths = [0] * slots
        self.layers: list[list[torch.Tensor]] = []

    def begin(self, rows: list[int], counts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepare a forward of `counts[i]` new tokens for slot `rows[i]`, right-padded to the longest.

        Returns position ids (B, N) and the attention mask (B, 1, N, T): a token sees its own slot up to itself.
        """
        held = torch.tensor([self.lengths[row] for row in rows], device=self.device)
        new = max(counts)
        self.total = int(held.max()) + new
        self.positions = held[:, None] + torch.arange(new, device=self.device)
        # Rows that are a run of neighbouring slots are read in place; others are copied out of the buffers.
        self.run = slice(rows[0], rows[0] + len(rows)) if rows == list(range(rows[0], rows[0] + len(rows))) else None
        self.rows = torch.tensor(rows, device=self.device)
        mask = torch.arange(self.total, device=self.device) <= self.positions[:, :, None]
        return self.positions, mask[:, None]

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        """Write (B, K, N, D) behind what each slot holds; return the slots' keys and values up to the longest."""
        while len(self.layers) <= layer_idx:
            self.layers.append([])
        if not self.layers[layer_idx]:
            self.layers[layer_idx] = [self._empty(states, self.total) for states in (key_states, value_states)]
        out = []
        for i, states in enumerate((key_states, value_states)):
            buffer = self.layers[layer_idx][i]
            if buffer.shape[2] < self.total:
                grown = self._empty(states, self.total)
                grown[:, :, : buffer.shape[2]] = buffer
                buffer = self.layers[layer_idx][i] = grown
            buffer[self.rows[:, None], :, self.positions] = states.transpose(1, 2)
            out.append((buffer[self.run] if self.run else buffer[self.rows])[:, :, : self.total])
        return out[0], out[1]

    def _empty(self, states: torch.Tensor, at_least: int) -> torch.Tensor:
        capacity = 128
        while capacity < at_least:
            capacity *= 2
        return torch.zeros(self.slots, states.shape[1], capacity, states.shape[3], dtype=states.dtype, device=self.device)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if not hasattr(self, "total") else self.total

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1
