"""The slot cache against a plain implementation of attention, over random sequences of forwards."""

import random

import pytest
import torch

from art_nb.inference import cache as kv_cache
from art_nb.inference.cache import SlotCache

HEADS, KINDS, SIZE, VALUE_SIZE, LAYERS, SLOTS = 4, 2, 8, 6, 3, 7


class Plain:
    """Reference: the states of a slot as whole tensors, and attention one token at a time."""

    def __init__(self):
        self.keys = torch.zeros(LAYERS, KINDS, 0, SIZE)
        self.values = torch.zeros(LAYERS, KINDS, 0, VALUE_SIZE)

    def add(self, keys, values):
        self.keys, self.values = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)

    def keep(self, length):
        self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]

    def attend(self, layer, query, position, window):
        """query: (H, D) of the token at `position`. Returns (H, Dv)."""
        seen = slice(max(0, position - window + 1) if window else 0, position + 1)
        out = []
        for head in range(HEADS):
            kind = head // (HEADS // KINDS)
            scores = self.keys[layer, kind, seen] @ query[head] * 0.3
            out.append(scores.softmax(0) @ self.values[layer, kind, seen])
        return torch.stack(out)


def forward(cache, plain, slots, counts, kept, windows, draws):
    """Run one forward of random states through both, and compare every token with an output."""
    positions, outputs = cache.begin(slots, counts, kept)
    total = sum(counts)
    query, key, value = (
        torch.randn(LAYERS, 1, heads, total, size, generator=draws)
        for heads, size in ((HEADS, SIZE), (KINDS, SIZE), (KINDS, VALUE_SIZE))
    )
    found = [cache.attend(i, query[i], key[i], value[i], 0.3, windows[i])[0] for i in range(LAYERS)]
    offset, expected_positions, expected_outputs = 0, [], []
    for slot, count, keep in zip(slots, counts, kept, strict=True):
        held = cache.lengths[slot]
        mine = slice(offset, offset + count)
        plain[slot].add(key[:, 0, :, mine], value[:, 0, :, mine])
        for layer in range(LAYERS):
            # The last layer attends only from the tokens with an output.
            for i in range(count - keep if layer == LAYERS - 1 else 0, count):
                theirs = plain[slot].attend(layer, query[layer, 0, :, offset + i], held + i, windows[layer])
                torch.testing.assert_close(found[layer][offset + i], theirs, atol=1e-5, rtol=1e-5)
        expected_positions += range(held, held + count)
        expected_outputs += range(offset + count - keep, offset + count)
        cache.lengths[slot] += count
        offset += count
    assert positions.tolist() == [expected_positions]
    assert outputs.tolist() == expected_outputs


@pytest.mark.parametrize("few", [0, 8, 1000], ids=["a call per slot", "mixed", "a mask per slot"])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("grouped", [SlotCache._grouped, SlotCache._padded_groups], ids=["as on a CPU", "as on a GPU"])
def test_random_forwards_equal_reference_attention(seed, window, few, grouped, monkeypatch):
    monkeypatch.setattr(kv_cache, "MAX_MASKED", few)
    monkeypatch.setattr(kv_cache, "MIN_PADDED_SIZE", few)
    monkeypatch.setattr(kv_cache, "MAX_SCORES", 1000 * few)
    monkeypatch.setattr(SlotCache, "_grouped", grouped)
    choose, draws = random.Random(seed), torch.Generator().manual_seed(seed)
    cache, plain = SlotCache(SLOTS, LAYERS, torch.device("cpu")), [Plain() for _ in range(SLOTS)]
    for _ in range(12):
        slots = sorted(choose.sample(range(SLOTS), choose.randint(1, SLOTS)))
        same = choose.choice([None, 1, 3])
        counts = [same or choose.choice([1, 1, 2, 9, 40]) for _ in slots]
        kept = [choose.randint(1, min(count, 4)) for count in counts]
        forward(cache, plain, slots, counts, kept, [None, window, window], draws)
        for slot in range(SLOTS):  # an edited conversation, or a wrong speculation
            if choose.random() < 0.2:
                cache.lengths[slot] = choose.randint(0, cache.lengths[slot])
                plain[slot].keep(cache.lengths[slot])
        source, target = choose.sample(range(SLOTS), 2)
        shared = choose.randint(0, cache.lengths[source])
        cache.copy(source, target, shared)
        plain[target].keys = plain[source].keys[:, :, :shared]
        plain[target].values = plain[source].values[:, :, :shared]


def test_adjacent_slots_of_equal_length_share_a_call():
    cache = SlotCache(8, 2, torch.device("cpu"))
    cache.lengths = [30, 30, 30, 31, 0, 30, 30, 30]
    cache.begin([0, 1, 2, 3, 5, 6, 7], [20] * 5 + [1] * 2, [1] * 7)
    assert [(g.first, g.last, g.new) for g in cache.groups] == [(0, 2, 20), (3, 3, 20), (5, 5, 20), (6, 7, 1)]
    # With one new token each, slots of similar length share a call.
    assert [(g.first, g.last, g.new) for g in cache.last_groups] == [(0, 3, 1), (5, 7, 1)]


def test_slots_of_unequal_length_have_separate_calls():
    cache = SlotCache(3, 1, torch.device("cpu"))
    cache.lengths = [50, 2000, 50]
    cache.begin([0, 1, 2], [1, 1, 1], [1, 1, 1])
    assert [(g.first, g.last) for g in cache.groups] == [(0, 0), (1, 1), (2, 2)]


def test_on_a_gpu_slots_share_a_call_unless_it_would_be_large(monkeypatch):
    cache = SlotCache(64, 1, torch.device("cpu"))
    cache.lengths = [20 * slot for slot in range(64)]
    news = [1 + slot % 9 for slot in range(64)]
    step = list(range(64)), news, [a + b for a, b in zip(cache.lengths, news, strict=True)]
    assert [group.size for group in cache._padded_groups(*step)] == [(64, 9)]
    assert len(cache._grouped(*step)) == 64
    monkeypatch.setattr(kv_cache, "MAX_SCORES", 10 * 16 * max(step[2]))
    assert [group.size[0] for group in cache._padded_groups(*step)] == [10] * 6 + [4]


def test_buffers_grow_on_demand_and_are_reused():
    cache = SlotCache(64, 2, torch.device("cpu"))

    def fill(slots, count):
        cache.begin(slots, [count] * len(slots), [1] * len(slots))
        for layer in range(2):
            shapes = ((1, heads, count * len(slots), size) for heads, size in ((4, 8), (2, 8), (2, 6)))
            cache.attend(layer, *map(torch.randn, shapes), 1.0)
        for slot in slots:
            cache.lengths[slot] += count

    fill([0, 1], 10)
    assert cache.buffers[0][0].shape == (2, 2, 128, 8) and cache.buffers[1][1].shape == (2, 2, 128, 6)
    fill([2], 10)
    fill([0], 130)
    before = cache.buffers[0][0]
    assert before.shape == (3, 2, 192, 8)
    cache.lengths = [0] * 64
    fill([0, 2], 150)
    assert cache.buffers[0][0] is before
