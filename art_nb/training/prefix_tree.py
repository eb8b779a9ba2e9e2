"""Sequences that begin alike as a tree: what they share goes through the model once. It knows nothing of losses.

The answers of a group share their prompt, the searches of a batch the tools' schemas, the splits of a conversation its
beginning. A node of the tree is a token together with all that stands before it, and what a causal model computes at a
token depends on nothing else. So the nodes lie in one row, without padding, each at the position that it has in its own
sequences, and each attends to its ancestors alone. Whatever follows from the nodes' outputs, gradients included, is what
follows from the sequences one by one, but for rounding. (Dropout draws once for a node, not for each sequence through it.)

Source: transformers' `AttentionInterface`; Liu et al., PrefixGrouper (arXiv 2506.05433), has the same with one level.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward

ATTENTION = "art_nb_prefix_tree"
QUERIES = 256  # of a tile, at most: keys behind its last query or before its window are then not looked at
CALL = 4096  # scores that are computed in the time that one more call of attention takes


def tree_attention(module, query, key, value, attention_mask, prefix_tree=None, **options):
    """Attention as transformers' models call it. `prefix_tree` is an argument of the model's forward, handed through;
    without it this is plain attention."""
    if prefix_tree is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    window, scaling = options.get("sliding_window"), options["scaling"]
    if query.device.type != "cpu":
        return flex_attention_forward(module, query, key, value, prefix_tree.block_mask(window), scaling=scaling)
    last = module.layer_idx == module.config.num_hidden_layers - 1
    return prefix_tree.attend(query, key, value, scaling, window, last), None


AttentionInterface.register(ATTENTION, tree_attention)


@contextmanager
def attending_in_trees(decoder: PreTrainedModel) -> Iterator[None]:
    """Inside, the decoder takes `prefix_tree=` and attends accordingly."""
    before, decoder.config._attn_implementation = decoder.config._attn_implementation, ATTENTION
    try:
        yield
    finally:
        decoder.config._attn_implementation = before


@torch.no_grad()
def fits_trees(decoder: PreTrainedModel) -> bool:
    """Whether a decoder computes from a tree what it computes from the sequences one by one; tried on a small tree.

    Not where layers keep a state or attend in chunks, or otherwise than by transformers' interface.
    """
    kinds = getattr(decoder.config, "layer_types", None) or ["full_attention"]
    if not decoder._supports_attention_backend or not {*kinds} <= {"full_attention", "sliding_attention"}:
        return False
    training = decoder.training
    decoder.eval()
    sequences = [[5, 6, 7], [5, 6, 8, 9], [5, 6, 8, 10, 11], [12, 6, 7]]
    tree = PrefixTree(sequences, decoder.device)
    alone = [decoder(input_ids=tree.ids.new_tensor([ids]), use_cache=False).last_hidden_state[0] for ids in sequences]
    with attending_in_trees(decoder):
        found = decoder(input_ids=tree.ids[None], position_ids=tree.positions[None], prefix_tree=tree, use_cache=False)
    decoder.train(training)
    expected, found = torch.cat(alone), torch.cat([found.last_hidden_state[0, path] for path in tree.paths])
    return bool(((found - expected).norm(dim=-1) < torch.finfo(found.dtype).eps ** 0.5 * expected.norm(dim=-1)).all())


def common_start(a: list[int], b: list[int]) -> int:
    """How many tokens two sequences begin with alike."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    return next(i for i in range(shorter) if a[i] != b[i])


class PrefixTree:
    """The N nodes of some sequences in one row: of each sequence, in turn, what the one before it does not begin with.

    Sorted sequences make the smallest tree: then each shares most with the one before it.

    ids, positions: (N,), of the nodes. paths: for each sequence the node of each of its tokens. ends: (N,), where the nodes
    that come from a node end: n and all below it are n, n + 1, ... ends[n] - 1. needed: (N,) bool, the nodes whose output
    the last layer has to give; all of them until `need` says otherwise.
    """

    def __init__(self, sequences: list[list[int]], device: torch.device | str = "cpu"):
        ids: list[int] = []
        self.paths: list[np.ndarray] = []
        self.shared: list[int] = []  # by each sequence with the one before it
        for before, sequence in zip([[], *sequences], sequences, strict=False):
            shared = common_start(before, sequence)
            new = np.arange(len(ids), len(ids) + len(sequence) - shared)
            self.paths.append(np.concatenate([self.paths[-1][:shared], new]) if shared else new)
            self.shared.append(shared)
            ids += sequence[shared:]
        self.ids = torch.tensor(ids, device=device)
        depths = [np.arange(shared, len(path)) for path, shared in zip(self.paths, self.shared, strict=True)]
        self.positions = torch.from_numpy(np.concatenate(depths)).to(device)
        ends = np.zeros(len(ids), dtype=np.int64)
        for path in self.paths:
            ends[path] = path[-1] + 1
        self.ends = torch.from_numpy(ends).to(device)
        self.need(torch.ones_like(self.ids, dtype=torch.bool))

    def __len__(self) -> int:
        return len(self.ids)

    def need(self, needed: torch.Tensor) -> None:
        """needed: (N,) bool. In the last layer only these attend."""
        self.needed = needed
        self.plans: dict[tuple, Plan] = {}
        self.block_masks: dict[int | None, BlockMask] = {}

    def attend(self, query, key, value, scaling: float, window: int | None, last: bool) -> torch.Tensor:
        """query: (1, H, N, D); key: (1, K, N, D); value: (1, K, N, Dv); H a multiple of K. Returns (1, N, H, Dv).

        window: how many tokens back a token sees, itself included. last: nodes that are not needed get 0.
        """
        heads, kinds = query.shape[1], key.shape[1]
        query, key, value = (x[0].transpose(0, 1).flatten(1) for x in (query, key, value))
        plan, found = self._plan(window, last, query.dtype), []
        for call in plan.calls:
            q = query.index_select(0, call.queries).view(call.tiles, -1, heads, query.shape[1] // heads)
            k, v = (x.index_select(0, call.keys).view(call.tiles, -1, kinds, x.shape[1] // kinds) for x in (key, value))
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            out = scaled_dot_product_attention(q, k, v, attn_mask=call.mask, scale=scaling, enable_gqa=heads != kinds)
            found.append(out.transpose(1, 2).flatten(0, 1).flatten(1))
        found.append(found[0].new_zeros(1, found[0].shape[1]))
        return torch.cat(found).index_select(0, plan.places).view(1, len(self), heads, -1)

    def block_mask(self, window: int | None) -> BlockMask:
        """What each node attends to, for FlexAttention: the nodes before it that it comes from."""

        def seen(batch, head, query, key):
            above = (key <= query) & (query < self.ends[key])
            return above if window is None else above & (self.positions[query] - self.positions[key] < window)

        if window not in self.block_masks:
            size, device = len(self), self.ids.device
            compiled = device.type == "cuda"  # else a mask of N x N is made on the way
            self.block_masks[window] = create_block_mask(seen, None, None, size, size, device=device, _compile=compiled)
        return self.block_masks[window]

    def _plan(self, window: int | None, last: bool, dtype: torch.dtype) -> Plan:
        """How the nodes attend in a layer; made once for all layers of a kind."""
        if window and window >= max(map(len, self.paths)):
            window = None
        if (window, last, dtype) not in self.plans:
            self.plans[window, last, dtype] = Plan(self, list(self._tiles(window, last)), window, dtype)
        return self.plans[window, last, dtype]

    def _tiles(self, window: int | None, last: bool) -> Iterator[Tile]:
        """Every node that attends, once: with the sequence that it was laid down for."""
        needed = self.needed.numpy() if last else np.ones(len(self), dtype=bool)
        for path, shared in zip(self.paths, self.shared, strict=True):
            attending = shared + np.flatnonzero(needed[path[shared:]])
            for first in range(0, len(attending), QUERIES):
                queries = attending[first : first + QUERIES]
                start = max(0, queries[0] - window + 1) if window else 0
                yield Tile(path[queries], path[start : queries[-1] + 1], start)


@dataclass(frozen=True)
class Tile:
    """Nodes of one sequence that attend together, and the nodes they look at, which stand at `start` and behind it."""

    queries: np.ndarray
    keys: np.ndarray
    start: int


@dataclass(frozen=True)
class Call:
    """B tiles that attend in one call, n queries to m keys.

    queries: (B * n,) and keys: (B * m,) nodes, padded; mask: (B, 1, n, m), what is added to the scores.
    """

    tiles: int
    queries: torch.Tensor
    keys: torch.Tensor
    mask: torch.Tensor


class Plan:
    """The calls of attention that a layer makes; places: (N,), the row of their outputs, one behind the other, that is each
    node's. Behind the last one stands a row of zeros, for nodes that do not attend."""

    def __init__(self, tree: PrefixTree, tiles: list[Tile], window: int | None, dtype: torch.dtype):
        groups = alike(tiles)
        self.calls = [_call(tree, group, window, dtype) for group in groups]
        begins = np.cumsum([0, *(len(call.queries) for call in self.calls)])
        places = np.full(len(tree), begins[-1])
        for begin, group, call in zip(begins, groups, self.calls, strict=False):
            width = len(call.queries) // call.tiles
            for i, tile in enumerate(group):
                places[tile.queries] = begin + i * width + np.arange(len(tile.queries))
        self.places = torch.from_numpy(places)


def alike(tiles: list[Tile]) -> list[list[Tile]]:
    """Tiles in groups whose padding costs less than further calls would."""
    groups: list[list[Tile]] = []
    widest = scores = 0
    for tile in sorted(tiles, key=lambda tile: (len(tile.keys), len(tile.queries))):
        alone = len(tile.queries) * len(tile.keys)
        together = (len(groups[-1]) + 1) * max(widest, len(tile.queries)) * len(tile.keys) if groups else 0
        if groups and together <= scores + alone + CALL:
            widest, scores = max(widest, len(tile.queries)), together
            groups[-1].append(tile)
        else:
            widest, scores = len(tile.queries), alone
            groups.append([tile])
    return groups


def _call(tree: PrefixTree, tiles: list[Tile], window: int | None, dtype: torch.dtype) -> Call:
    queries, keys = (_padded([getattr(tile, side) for tile in tiles]) for side in ("queries", "keys"))
    own = tree.positions[queries][:, None, :, None]
    seen = torch.tensor([tile.start for tile in tiles])[:, None, None, None] + torch.arange(keys.shape[1])
    hidden = (seen > own) | (seen <= own - window) if window else seen > own
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)
    return Call(len(tiles), queries.flatten(), keys.flatten(), mask)


def _padded(rows: list[np.ndarray]) -> torch.Tensor:
    """Rows of one length, each filled up with its last node: it sees something, so that nothing turns into NaN."""
    padded = np.repeat([row[-1] for row in rows], max(map(len, rows))).reshape(len(rows), -1)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return torch.from_numpy(padded)
