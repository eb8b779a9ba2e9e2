"""Keys and values of many conversations, kept across turns; knows nothing of text or sampling.

Each conversation owns a slot. A forward takes the new tokens of some slots, packed one behind the other without
padding, and each token attends to what its own slot holds. So a turn costs its new tokens, a short conversation does
not pay for a long one, and the last layer attends only from the tokens whose output is asked for.

Source: transformers' `AttentionInterface` and `Cache.update`, so any causal LM of transformers can use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

ATTENTION = "art_nb_slots"
FEW = 8  # new tokens up to which a mask for each slot costs less than a call for each slot


def slot_attention(module, query, key, value, attention_mask, slot_cache=None, **options):
    """Attention as transformers' models call it. `slot_cache` is an argument of the model's forward, handed through;
    without it this is plain attention."""
    if slot_cache is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    window = options.get("sliding_window")
    return slot_cache.attend(module.layer_idx, query, key, value, options["scaling"], window), None


AttentionInterface.register(ATTENTION, slot_attention)


@dataclass
class Group:
    """Neighbouring slots, `first` to `last`, that attend in one call, each from its newest `new` tokens.

    tokens: where these lie in the packed input; ends: how many tokens each slot holds, the new ones included.
    """

    first: int
    last: int
    new: int
    tokens: list[torch.Tensor]
    ends: list[int]
    masks: dict[int | None, tuple[int, torch.Tensor | None]] = field(default_factory=dict)

    def takes(self, slot: int, new: int, end: int, ragged: bool) -> bool:
        """Whether one more slot fits in: the next one, with as many new tokens and (about) as many in all."""
        low, high = min(end, *self.ends), max(end, *self.ends)
        return slot == self.last + 1 and new == self.new and (low == high or ragged and high <= 1.25 * low + 32)

    def mask(self, window: int | None, heads: int, like: torch.Tensor) -> tuple[int, torch.Tensor | None]:
        """The first position that any of the tokens sees, and what to add to the scores from there on.

        The mask has shape (slots or 1, 1, heads * new or 1, positions); None where all is seen.
        """
        if window not in self.masks:
            begin = max(0, min(self.ends) - self.new - window + 1) if window else 0
            ends = torch.tensor(self.ends if min(self.ends) < max(self.ends) else self.ends[:1])[:, None, None]
            own = ends - self.new + torch.arange(self.new)[:, None]
            seen = torch.arange(begin, max(self.ends))
            hidden = (seen > own) | (seen <= own - window) if window else seen > own
            mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf).repeat(1, heads, 1)[:, None]
            self.masks[window] = begin, mask.to(like.device, like.dtype) if hidden.any() else None
        return self.masks[window]


class SlotCache(Cache):
    """Buffers of shape (slots, key heads, capacity, head size) per layer, grown on demand.

    lengths: how many tokens each slot holds; set one lower to drop tokens from its end.
    """

    def __init__(self, slots: int, layers: int, device: torch.device):
        self.lengths = [0] * slots
        self.layers_before_last, self.device = layers - 1, device
        self.buffers: dict[int, list[torch.Tensor]] = {}

    def begin(self, slots: list[int], counts: list[int], kept: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepare a forward of `counts[i]` new tokens for `slots[i]` (ascending), with an output for the last `kept[i]`.

        Returns position ids (1, N) and the packed indices (M,) of the tokens with an output. After the forward the
        caller raises `lengths` by as many tokens as it wants to keep.
        """
        self.groups: list[Group] = []
        self.last_groups: list[Group] = []
        count, packed = torch.tensor(counts), torch.arange(sum(counts))
        shift = torch.tensor([self.lengths[slot] for slot in slots]) - count.cumsum(0) + count
        self.rows = torch.tensor(slots).repeat_interleave(count).to(self.device)
        self.positions = (packed + shift.repeat_interleave(count)).to(self.device)
        packed, offset = packed.to(self.device), 0
        for slot, new, keep in zip(slots, counts, kept, strict=True):
            offset += new
            self._join(self.groups, slot, self.lengths[slot] + new, packed[offset - new : offset])
            self._join(self.last_groups, slot, self.lengths[slot] + new, packed[offset - keep : offset])
        self.needed = (slots[-1] + 1, max(end for group in self.groups for end in group.ends))
        return self.positions[None], torch.cat([tokens for group in self.last_groups for tokens in group.tokens])

    def _join(self, groups: list[Group], slot: int, end: int, tokens: torch.Tensor) -> None:
        ragged = len(tokens) <= FEW or self.device.type != "cpu"
        if not (groups and groups[-1].takes(slot, len(tokens), end, ragged)):
            groups.append(Group(slot, slot, len(tokens), [], []))
        groups[-1].last = slot
        groups[-1].tokens.append(tokens)
        groups[-1].ends.append(end)

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int) -> None:
        """Let slot `target` hold the first `length` tokens of slot `source`."""
        for buffers in self.buffers.values():
            for i, buffer in enumerate(buffers):
                buffers[i] = self._grown(buffer, target + 1, length)
                buffers[i][target, :, :length] = buffers[i][source, :, :length]
        self.lengths[target] = length

    def update(self, key_states, value_states, *args, **kwargs):
        """Nothing yet: `attend` keeps keys and values in the form in which they are attended to."""
        return key_states, value_states

    def attend(self, layer: int, query, key, value, scaling: float, window: int | None = None) -> torch.Tensor:
        """query: (1, H, N, D); key: (1, K, N, D); value: (1, K, N, Dv); H a multiple of K. Returns (1, N, H, Dv)."""
        keys, values = self._keep(layer, key, value)
        query = query[0].transpose(0, 1)
        out = query.new_zeros(*query.shape[:2], value.shape[3])
        for group in self.groups if layer < self.layers_before_last else self.last_groups:
            tokens = torch.cat(group.tokens)
            out[tokens] = self._attend(group, query.index_select(0, tokens), keys, values, scaling, window)
        return out[None]

    @staticmethod
    def _attend(group: Group, query, keys, values, scaling: float, window: int | None) -> torch.Tensor:
        """query: (slots * new, H, D), slot by slot. Returns (slots * new, H, Dv)."""
        slots, heads, kinds = len(group.ends), query.shape[1], keys.shape[1]
        begin, mask = group.mask(window, heads // kinds, query)
        seen = slice(group.first, group.last + 1), slice(None), slice(begin, max(group.ends))
        # The heads that share a key head become extra queries of it: no copy of keys and values is made.
        query = query.view(slots, group.new, kinds, heads // kinds, -1).permute(0, 2, 3, 1, 4).flatten(2, 3)
        out = torch.nn.functional.scaled_dot_product_attention(
            query, keys[seen], values[seen], attn_mask=mask, scale=scaling
        )
        out = out.unflatten(2, (heads // kinds, group.new)).permute(0, 3, 1, 2, 4)
        return out.reshape(slots * group.new, heads, -1)

    def _keep(self, layer: int, *states: torch.Tensor) -> list[torch.Tensor]:
        """Write the new tokens' keys and values behind what their slots hold; returns the layer's buffers."""
        buffers = self.buffers.setdefault(layer, [new.new_zeros(0, new.shape[1], 0, new.shape[3]) for new in states])
        for i, new in enumerate(states):
            buffers[i] = self._grown(buffers[i], *self.needed)
            buffers[i][self.rows, :, self.positions] = new[0].transpose(0, 1)
        return buffers

    def _grown(self, buffer: torch.Tensor, slots: int, capacity: int) -> torch.Tensor:
        """The buffer, or a larger one with its content where it has not so many slots or so much capacity."""
        had_slots, kinds, had, size = buffer.shape
        if slots <= had_slots and capacity <= had:
            return buffer
        # By half as much again at least, so that what is copied stays little.
        slots = had_slots if slots <= had_slots else min(len(self.lengths), max(slots, 3 * had_slots // 2))
        capacity = had if capacity <= had else max(capacity, 3 * had // 2, 128)
        grown = buffer.new_zeros(slots, kinds, capacity, size)
        grown[:had_slots, :, :had] = buffer
        return grown

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Asked for by models, which use it only where no position ids are given."""
        return 0
