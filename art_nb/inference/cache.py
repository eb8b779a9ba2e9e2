"""KV cache of many conversations, kept across turns. Depends on torch, numpy and transformers only.

Each conversation occupies a slot. A forward takes the new tokens of several slots, packed into one row without padding, and
each token attends to its own slot only. A turn therefore computes only its new tokens. The last layer computes attention
only for the tokens whose logits are needed. Works with transformers' causal LMs whose layers all use full or sliding-window
attention (see `training.policy.load_policy`).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

ATTENTION = "art_nb_slots"
MIN_PADDED_SIZE = 16  # new tokens per slot in the smallest class of padded calls; decoding has at most MAX_SPECULATED + 1
MAX_SCORES = 2**26  # attention scores per head in a padded call of several slots
MAX_MASKED = 8  # new tokens per slot up to which one masked call for slots of unequal length beats a call per slot


def slot_attention(module, query, key, value, attention_mask, slot_cache=None, **options):
    """Attend with the forward's argument `slot_cache`; without one, use SDPA. Raises: ValueError: sinks or soft-capping."""
    if slot_cache is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if ignored := [name for name in ("s_aux", "softcap") if options.get(name) is not None]:
        raise ValueError(f"{type(module).__name__} is not supported: the sampler does not compute {ignored[0]}")
    window = options.get("sliding_window")
    return slot_cache.attend(module.layer_idx, query, key, value, options["scaling"], window), None


AttentionInterface.register(ATTENTION, slot_attention)


@dataclass
class SlotGroup:
    """Adjacent slots `first` to `last` that share one attention call, each with `new` query tokens.

    begin: index of the first query token among the packed queries; ends: tokens in each slot, the new ones included.
    """

    first: int
    last: int
    new: int
    begin: int
    ends: list[int]
    masks: dict[int | None, tuple[int, torch.Tensor | None]] = field(default_factory=dict)

    def attend(self, query, keys, values, scaling: float, window: int | None, out: torch.Tensor) -> None:
        """Compute the attention of the group's queries, and write it to `out`.

        query: (M, K, H / K, D), of all groups; out: (M, K, H / K, Dv). keys, values: of all slots, see `SlotCache`.
        """
        kv_heads, heads = query.shape[1:3]
        start, mask = self.mask(window, heads, query)
        slots = slice(self.first, self.last + 1)
        tokens = slice(self.begin, self.begin + self.new * len(self.ends))
        shape = (len(self.ends), self.new, kv_heads, heads, -1)
        attended = torch.nn.functional.scaled_dot_product_attention(
            query[tokens].view(shape).permute(0, 2, 3, 1, 4).flatten(2, 3),
            keys[slots, :, start : max(self.ends)],
            values[slots, :, start : max(self.ends)],
            attn_mask=mask,
            scale=scaling,
        )
        out[tokens].view(shape).copy_(attended.unflatten(2, (heads, self.new)).permute(0, 3, 1, 2, 4))

    def accepts(self, slot: int, new: int, end: int, ragged: bool) -> bool:
        """Whether `slot` follows the last one, has as many new tokens, and has the same length (similar if `ragged`)."""
        if slot != self.last + 1 or new != self.new:
            return False
        low, high = min(end, self.ends[0]), max(end, self.ends[0])
        return low == high or ragged and high <= 1.12 * low + 16

    def mask(self, window: int | None, heads: int, like: torch.Tensor) -> tuple[int, torch.Tensor | None]:
        """Return the first key position that is visible to any query, and the additive mask from there on.

        The mask has shape (slots or 1, 1, heads * new, positions), or is None when every position is visible.
        """
        if window not in self.masks:
            low, high = min(self.ends), max(self.ends)
            start = max(0, low - self.new - window + 1) if window else 0
            mask = None
            if self.new > 1 or low < high:
                ends = torch.tensor(self.ends if low < high else [high])[:, None, None, None]
                own = ends - self.new + torch.arange(self.new)[:, None]
                # Without a window, all keys before the shortest slot's new tokens are visible and need no comparison.
                keys = torch.arange(start if window else low - self.new, high)
                hidden = (keys > own) | (keys <= own - window) if window else keys > own
                mask = torch.zeros(len(ends), heads, self.new, high - start)
                mask[..., -len(keys) :].masked_fill_(hidden, -torch.inf)
                mask = mask.flatten(1, 2)[:, None].to(like.device, like.dtype)
            self.masks[window] = start, mask
        return self.masks[window]


class PaddedGroup:
    """Slots in one attention call, padded to equal numbers of new tokens: on a GPU, kernel launches cost more than padding.

    slots, new_counts, ends: one entry per slot, as in `SlotGroup`. tokens: indices of their tokens among the packed queries.
    """

    def __init__(self, slots: list[int], new_counts: list[int], ends: list[int], tokens: torch.Tensor, device: torch.device):
        self.size, self.high = (len(slots), max(new_counts)), max(ends)
        new, end = torch.tensor(new_counts), torch.tensor(ends)[:, None]
        adjacent = slots[-1] - slots[0] + 1 == len(slots)
        self.slots = slice(slots[0], slots[-1] + 1) if adjacent else torch.tensor(slots, device=device)
        rows = torch.arange(len(slots)).repeat_interleave(new), _ranges(torch.zeros_like(new), new), tokens
        self.rows, self.places, self.tokens = (x.to(device) for x in rows)
        # The position of each query, (slots, new). Padding gets that of the slot's last query; its outputs are not used.
        own = torch.minimum(end - new[:, None] + torch.arange(max(new_counts)), end - 1)
        self.low, self.own = int(own.min()), own.to(device)
        self.masks: dict[int | None, tuple[int, torch.Tensor]] = {}

    def attend(self, query, keys, values, scaling: float, window: int | None, out: torch.Tensor) -> None:
        """As `SlotGroup.attend`."""
        _, kv_heads, heads, size = query.shape
        start, mask = self._mask(window, heads, query)
        padded = query.new_zeros(*self.size, kv_heads, heads, size)
        padded[self.rows, self.places] = query[self.tokens]
        attended = torch.nn.functional.scaled_dot_product_attention(
            padded.permute(0, 2, 3, 1, 4).flatten(2, 3),
            keys[self.slots, :, start : self.high], values[self.slots, :, start : self.high], attn_mask=mask, scale=scaling,
        )  # fmt: skip
        out[self.tokens] = attended.unflatten(2, (heads, -1)).permute(0, 3, 1, 2, 4)[self.rows, self.places]

    def _mask(self, window: int | None, heads: int, like: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Return the first key position that a query attends to, and the additive mask (slots, 1, heads * new, keys)."""
        if window not in self.masks:
            start = max(0, self.low - window + 1) if window else 0
            keys, own = torch.arange(start, self.high, device=like.device), self.own[..., None]
            hidden = (keys > own) | (keys <= own - window) if window else keys > own
            mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, -torch.inf)
            self.masks[window] = start, mask[:, None, None].expand(-1, 1, heads, -1, -1).flatten(2, 3)
        return self.masks[window]


class SlotCache(Cache):
    """Per layer two buffers (slots, KV heads, capacity, head size) for keys and values, grown on demand.

    lengths: number of tokens in each slot; lower it to drop tokens from the end. attended: the layers that called `attend`
    in the current forward, in order.
    """

    def __init__(self, slots: int, layers: int, device: torch.device):
        self.lengths = [0] * slots
        self.last_layer, self.device = layers - 1, device
        self.buffers: dict[int, list[torch.Tensor]] = {}

    def begin(self, slots: list[int], counts: list[int], outputs: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepare a forward of `counts[i]` new tokens in `slots[i]` (ascending), with logits for the last `outputs[i]`.

        Returns position ids (1, N) and the packed indices (M,) of the tokens with logits. After the forward the caller
        raises `lengths` by the number of tokens to keep.
        """
        ends = [self.lengths[slot] + count for slot, count in zip(slots, counts, strict=True)]
        self.groups = self._grouped(slots, counts, ends)
        self.last_groups = self.groups if outputs == counts else self._grouped(slots, outputs, ends)
        self.needed, self.attended = (slots[-1] + 1, max(ends)), list[int]()
        slot, end, count, output = (torch.tensor(x) for x in (slots, ends, counts, outputs))
        rows = slot.repeat_interleave(count), _ranges(end - count, count), _ranges(count.cumsum(0) - output, output)
        self.rows, self.positions, self.outputs = (x.to(self.device) for x in rows)
        return self.positions[None], self.outputs

    def _grouped(self, slots: list[int], new_counts: list[int], ends: list[int]) -> list[SlotGroup] | list[PaddedGroup]:
        if self.device.type != "cpu":
            return self._padded_groups(slots, new_counts, ends)
        groups: list[SlotGroup] = []
        begin = 0
        for slot, new, end in zip(slots, new_counts, ends, strict=True):
            if not (groups and groups[-1].accepts(slot, new, end, new <= MAX_MASKED)):
                groups.append(SlotGroup(slot, slot, new, begin, []))
            groups[-1].last = slot
            groups[-1].ends.append(end)
            begin += new
        return groups

    def _padded_groups(self, slots: list[int], new_counts: list[int], ends: list[int]) -> list[PaddedGroup]:
        """Group slots by their number of new tokens: up to `MIN_PADDED_SIZE`, up to twice that, ... See `MAX_SCORES`."""
        begins, by_size, high = np.cumsum([0, *new_counts]), defaultdict[int, list[list[int]]](list), max(ends)
        for i, new in enumerate(new_counts):
            groups = by_size[size := max(MIN_PADDED_SIZE, 1 << (new - 1).bit_length())]
            if not groups or (len(groups[-1]) + 1) * size * high > MAX_SCORES:
                groups.append([])
            groups[-1].append(i)
        found = []
        for members in (each for groups in by_size.values() for each in groups):
            own_slots, own_counts, own_ends = ([each[i] for i in members] for each in (slots, new_counts, ends))
            tokens = torch.cat([torch.arange(begins[i], begins[i + 1]) for i in members])
            found.append(PaddedGroup(own_slots, own_counts, own_ends, tokens, self.device))
        return found

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of slot `source` to slot `target`, which then has that length."""
        for buffers in self.buffers.values():
            for i, buffer in enumerate(buffers):
                buffers[i] = self._grown(buffer, target + 1, length)
                buffers[i][target, :, :length] = buffers[i][source, :, :length]
        self.lengths[target] = length

    def update(self, key_states, value_states, *args, **kwargs):
        """Return the new states unchanged: `attend` stores them."""
        return key_states, value_states

    def attend(self, layer: int, query, key, value, scaling: float, window: int | None = None) -> torch.Tensor:
        """Store the new keys and values, and compute attention.

        query: (1, H, N, D); key: (1, K, N, D); value: (1, K, N, Dv); H a multiple of K. Returns (1, N, H, Dv). In the
        last layer, tokens without logits get zeros.
        """
        self.attended.append(layer)
        keys, values = self._store(layer, key, value)
        query = query[0].transpose(0, 1)
        out = query.new_zeros(*query.shape[:2], value.shape[3])
        if layer < self.last_layer:
            self._attend(self.groups, query, keys, values, scaling, window, out)
        else:
            query = query.index_select(0, self.outputs)
            last = self._attend(self.last_groups, query, keys, values, scaling, window, torch.empty_like(out[: len(query)]))
            out.index_copy_(0, self.outputs, last)
        return out[None]

    @staticmethod
    def _attend(groups: Sequence[SlotGroup | PaddedGroup], query, keys, values, scaling, window, out) -> torch.Tensor:
        """Compute attention group by group into `out`, (M, H, Dv), and return it. query: (M, H, D), in slot order."""
        kv_heads, heads = keys.shape[1], query.shape[1] // keys.shape[1]
        # Query heads that share a KV head become further queries of that head, so keys and values are not repeated.
        query, out = (x.unflatten(1, (kv_heads, heads)) for x in (query, out))
        for group in groups:
            group.attend(query, keys, values, scaling, window, out)
        return out.flatten(1, 2)

    def _store(self, layer: int, *states: torch.Tensor) -> list[torch.Tensor]:
        """Append the new keys and values to their slots. Returns the layer's buffers."""
        buffers = self.buffers.setdefault(layer, [new.new_empty(0, new.shape[1], 0, new.shape[3]) for new in states])
        for i, new in enumerate(states):
            buffers[i] = self._grown(buffers[i], *self.needed)
            buffers[i][self.rows, :, self.positions] = new[0].transpose(0, 1)
        return buffers

    @property
    def allocated(self) -> int:
        """The number of slots with allocated memory."""
        return max((buffers[0].shape[0] for buffers in self.buffers.values()), default=0)

    @property
    def capacity(self) -> int:
        """The number of tokens per slot that the allocated memory can hold."""
        return max((buffers[0].shape[2] for buffers in self.buffers.values()), default=0)

    def trim(self, rows: int, capacity: int) -> None:
        """Keep the first `rows` slots and the first `capacity` tokens of each, and free the memory of the rest."""
        kept = self.buffers.items() if rows else ()
        self.buffers = {layer: [buffer[:rows, :, :capacity].clone() for buffer in buffers] for layer, buffers in kept}

    def _grown(self, buffer: torch.Tensor, slots: int, capacity: int) -> torch.Tensor:
        """Return the buffer, enlarged if it has fewer than `slots` slots or a smaller `capacity`."""
        old_slots, kv_heads, old_capacity, size = buffer.shape
        if slots <= old_slots and capacity <= old_capacity:
            return buffer
        # Grow by at least half, so that copying is rare.
        slots = old_slots if slots <= old_slots else min(len(self.lengths), max(slots, 3 * old_slots // 2))
        capacity = old_capacity if capacity <= old_capacity else max(capacity, 3 * old_capacity // 2, 128)
        grown = buffer.new_empty(slots, kv_heads, capacity, size)
        grown[:old_slots, :, :old_capacity] = buffer
        # Masked values are multiplied by zero, so they must be finite.
        grown[old_slots:], grown[:old_slots, :, old_capacity:] = 0, 0
        return grown

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0. Models read it only when no position ids are given."""
        return 0


def _ranges(starts: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Concatenate the ranges of `counts[i]` integers from `starts[i]` on."""
    before = counts.cumsum(0) - counts
    return (starts - before).repeat_interleave(counts) + torch.arange(int(counts.sum()))
