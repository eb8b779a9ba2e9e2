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

    begin: where these tokens begin among all that attend; ends: how many tokens each slot holds, the new ones included.
    """

    first: int
    last: int
    new: int
    begin: int
    ends: list[int]
    masks: dict[int | None, tuple[int, torch.Tensor | None]] = field(default_factory=dict)

    def takes(self, slot: int, new: int, end: int, ragged: bool) -> bool:
        """Whether one more slot fits in: the next one, with as many new tokens and (nearly) as many in all."""
        if slot != self.last + 1 or new != self.new:
            return False
        low, high = min(end, self.ends[0]), max(end, self.ends[0])
        return low == high or ragged and high <= 1.12 * low + 16

    def mask(self, window: int | None, heads: int, like: torch.Tensor) -> tuple[int, torch.Tensor | None]:
        """The first position that any of the tokens sees, and what to add to the scores from there on.

        The mask has shape (slots or 1, 1, heads * new, positions); None where all is seen.
        """
        if window not in self.masks:
            low, high = min(self.ends), max(self.ends)
            start = max(0, low - self.new - window + 1) if window else 0
            mask = None
            if self.new > 1 or low < high:
                ends = torch.tensor(self.ends if low < high else [high])[:, None, None, None]
                own = ends - self.new + torch.arange(self.new)[:, None]
                # Without a window all that lies before the new tokens is seen.
                seen = torch.arange(start if window else low - self.new, high)
                hidden = (seen > own) | (seen <= own - window) if window else seen > own
                mask = torch.zeros(len(ends), heads, self.new, high - start)
                mask[..., -len(seen) :].masked_fill_(hidden, -torch.inf)
                mask = mask.flatten(1, 2)[:, None].to(like.device, like.dtype)
            self.masks[window] = start, mask
        return self.masks[window]


class SlotCache(Cache):
    """Buffers of shape (slots, key heads, capacity, head size) per layer, grown on demand.

    lengths: how many tokens each slot holds; set one lower to drop tokens from its end.
    """

    def __init__(self, slots: int, layers: int, device: torch.device):
        self.lengths = [0] * slots
        self.last_layer, self.device = layers - 1, device
        self.buffers: dict[int, list[torch.Tensor]] = {}

    def begin(self, slots: list[int], counts: list[int], kept: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepare a forward of `counts[i]` new tokens for `slots[i]` (ascending), the last `kept[i]` with an output.

        Returns position ids (1, N) and the packed indices (M,) of the tokens with an output. After the forward the
        caller raises `lengths` by as many tokens as it wants to keep.
        """
        ends = [self.lengths[slot] + count for slot, count in zip(slots, counts, strict=True)]
        self.groups, self.last_groups = self._grouped(slots, counts, ends), self._grouped(slots, kept, ends)
        self.needed = (slots[-1] + 1, max(ends))
        slot, end, count, keep = (torch.tensor(x, device=self.device) for x in (slots, ends, counts, kept))
        self.rows = slot.repeat_interleave(count)
        self.positions = _runs(end - count, count)
        self.outputs = _runs(count.cumsum(0) - keep, keep)
        return self.positions[None], self.outputs

    def _grouped(self, slots: list[int], news: list[int], ends: list[int]) -> list[Group]:
        groups: list[Group] = []
        begin = 0
        for slot, new, end in zip(slots, news, ends, strict=True):
            ragged = new <= FEW or self.device.type != "cpu"
            if not (groups and groups[-1].takes(slot, new, end, ragged)):
                groups.append(Group(slot, slot, new, begin, []))
            groups[-1].last = slot
            groups[-1].ends.append(end)
            begin += new
        return groups

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
        """query: (1, H, N, D); key: (1, K, N, D); value: (1, K, N, Dv); H a multiple of K. Returns (1, N, H, Dv).

        In the last layer what the tokens without an output would get is left out: it is zero.
        """
        keys, values = self._keep(layer, key, value)
        query = query[0].transpose(0, 1)
        out = query.new_zeros(*query.shape[:2], value.shape[3])
        if layer < self.last_layer:
            self._attend(self.groups, query, keys, values, scaling, window, out)
        else:
            query = query.index_select(0, self.outputs)
            kept = self._attend(self.last_groups, query, keys, values, scaling, window, torch.empty_like(out[: len(query)]))
            out.index_copy_(0, self.outputs, kept)
        return out[None]

    @staticmethod
    def _attend(groups: list[Group], query, keys, values, scaling, window, out) -> torch.Tensor:
        """query: (M, H, D), group by group; writes to `out`: (M, H, Dv)."""
        kinds, heads = keys.shape[1], query.shape[1] // keys.shape[1]
        # The heads that share a key head become extra queries of it: no copy of keys and values is made.
        query, out = (x.unflatten(1, (kinds, heads)) for x in (query, out))
        for group in groups:
            start, mask = group.mask(window, heads, query)
            slots, mine = slice(group.first, group.last + 1), slice(group.begin, group.begin + group.new * len(group.ends))
            shape = (len(group.ends), group.new, kinds, heads, -1)
            attended = torch.nn.functional.scaled_dot_product_attention(
                query[mine].view(shape).permute(0, 2, 3, 1, 4).flatten(2, 3),
                keys[slots, :, start : max(group.ends)],
                values[slots, :, start : max(group.ends)],
                attn_mask=mask,
                scale=scaling,
            )
            out[mine].view(shape).copy_(attended.unflatten(2, (heads, group.new)).permute(0, 3, 1, 2, 4))
        return out.flatten(1, 2)

    def _keep(self, layer: int, *states: torch.Tensor) -> list[torch.Tensor]:
        """Write the new tokens' keys and values behind what their slots hold; returns the layer's buffers."""
        buffers = self.buffers.setdefault(layer, [new.new_empty(0, new.shape[1], 0, new.shape[3]) for new in states])
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
        grown = buffer.new_empty(slots, kinds, capacity, size)
        grown[:had_slots, :, :had] = buffer
        # What is masked is multiplied by zero, so it has to be a number.
        grown[had_slots:], grown[:had_slots, :, had:] = 0, 0
        return grown

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Asked for by models, which use it only where no position ids are given."""
        return 0


def _runs(starts: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """starts[i], starts[i] + 1, ... `counts[i]` numbers each, all in one row."""
    before = counts.cumsum(0) - counts
    return (starts - before).repeat_interleave(counts) + torch.arange(int(counts.sum()), device=counts.device)
