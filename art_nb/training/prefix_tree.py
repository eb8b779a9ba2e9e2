"""Prefix trees: compute each shared prefix of token sequences only once, in the forward and in the backward pass.

A node of the tree is a token together with all tokens before it: the output of a causal model there depends on nothing else.
The nodes form one unpadded row. Each keeps its position in its sequences and attends only to itself and its ancestors.
Outputs and gradients equal those of the separate sequences up to rounding (dropout draws once per node).

Does not depend on losses. Related: PrefixGrouper (arXiv 2506.05433), a tree of one level.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from art_nb.inference.slots import common_prefix

ATTENTION = "art_nb_prefix_tree"
MAX_QUERIES = 256  # per tile: keys after a tile's last query, or before its first query's window, are skipped
CALL_COST = 4096  # one more attention call costs as much as computing this many scores


def tree_attention(module, query, key, value, attention_mask, prefix_tree=None, **options):
    """Attention function for transformers, whose models pass it their forward's `prefix_tree=`; None: plain attention."""
    if prefix_tree is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    window, scaling = options.get("sliding_window"), options["scaling"]
    if not _on_cpu(query) and query.dtype != torch.float32:  # models in float32 are small: compiling takes too long
        options = {"scaling": scaling, "kernel_options": {"BACKEND": "TRITON"}}  # the decoding kernel fails here
        return flex_attention_forward(module, query, key, value, prefix_tree.block_mask(window), **options)
    last = module.layer_idx == module.config.num_hidden_layers - 1
    return prefix_tree.attend(query, key, value, scaling, window, last), None


def _on_cpu(query: torch.Tensor) -> bool:
    return query.device.type == "cpu"


AttentionInterface.register(ATTENTION, tree_attention)


@contextmanager
def enable_tree_attention(decoder: PreTrainedModel) -> Iterator[None]:
    """Make the decoder's forward accept `prefix_tree=` inside the `with` block."""
    before, decoder.config._attn_implementation = decoder.config._attn_implementation, ATTENTION
    try:
        yield
    finally:
        decoder.config._attn_implementation = before


@torch.no_grad()
def supports_prefix_trees(decoder: PreTrainedModel) -> bool:
    """Whether a decoder gives the same outputs for a small tree as for its sequences one by one.

    It does not if layers keep a state, attend in chunks, use attention dropout or bypass transformers' attention interface.
    """
    kinds = getattr(decoder.config, "layer_types", None) or ["full_attention"]
    dropout = any(getattr(decoder.config, name, 0) for name in ("attention_dropout", "attn_pdrop"))
    if dropout or not decoder._supports_attention_backend or not {*kinds} <= {"full_attention", "sliding_attention"}:
        return False
    training = decoder.training
    decoder.eval()
    sequences = [[5, 6, 7], [5, 6, 8, 9], [5, 6, 8, 10, 11], [12, 6, 7]]
    tree = PrefixTree(sequences, decoder.device)
    tree.dtype = decoder.dtype  # the precision of the rows below
    rows = [decoder(input_ids=tree.ids.new_tensor([ids]), use_cache=False).last_hidden_state[0] for ids in sequences]
    with enable_tree_attention(decoder):
        found = decoder(input_ids=tree.ids[None], position_ids=tree.positions[None], prefix_tree=tree, use_cache=False)
    decoder.train(training)
    expected, found = torch.cat(rows), torch.cat([found.last_hidden_state[0, path] for path in tree.paths])
    return bool(((found - expected).norm(dim=-1) < torch.finfo(found.dtype).eps ** 0.5 * expected.norm(dim=-1)).all())


class Tile(NamedTuple):
    """Nodes of one sequence that attend together, and the nodes they attend to, at positions `start`, start + 1, ..."""

    queries: np.ndarray
    keys: np.ndarray
    start: int


class PrefixTree:
    """The N nodes of the sequences in one row: each sequence adds the tokens after its common prefix with the previous one.

    Sorted sequences give the smallest tree: each then shares its longest prefix with the previous one.

    ids, positions: (N,), of the nodes. paths: for each sequence the nodes of its tokens. ends: (N,): node n and its
    descendants are n, n + 1, ... ends[n] - 1. needed: (N,) bool, the nodes whose output of the last layer is used.
    dtype: lowest precision of attention on a CPU; torch's backward pass takes several times as long in bfloat16.
    """

    dtype = torch.float32

    def __init__(self, sequences: list[list[int]], device: torch.device | str = "cpu"):
        ids: list[int] = []
        self.paths: list[np.ndarray] = []
        self.shared: list[int] = []  # of each sequence, the length of the prefix shared with the one before it
        for previous, sequence in zip([[], *sequences], sequences, strict=False):
            shared = common_prefix(previous, sequence)
            new = np.arange(len(ids), len(ids) + len(sequence) - shared)
            self.paths.append(np.concatenate([self.paths[-1][:shared], new]) if shared else new)
            self.shared.append(shared)
            ids += sequence[shared:]
        self.ids = torch.tensor(ids, device=device)
        depths = [np.arange(shared, len(path)) for path, shared in zip(self.paths, self.shared, strict=True)]
        self.positions = torch.from_numpy(np.concatenate(depths)).to(device)
        ends = np.zeros(len(ids), dtype=np.int64)
        for path in self.paths:
            ends[path] = np.maximum(ends[path], path[-1] + 1)  # a sequence may be a prefix of the one before it
        self.ends = torch.from_numpy(ends).to(device)
        self.set_needed(torch.ones_like(self.ids, dtype=torch.bool))

    def __len__(self) -> int:
        return len(self.ids)

    def set_needed(self, needed: torch.Tensor) -> None:
        """Set the nodes that attend in the last layer, (N,) bool. By default all do."""
        self.needed = needed
        self._plans: dict[tuple, AttentionPlan] = {}
        self._block_masks: dict[int | None, BlockMask] = {}

    def attend(self, query, key, value, scaling: float, window: int | None, last: bool) -> torch.Tensor:
        """Attention of each node to itself and its ancestors, in plain torch.

        query: (1, H, N, D); key: (1, K, N, D); value: (1, K, N, Dv); H a multiple of K. Returns (1, N, H, Dv).
        window: number of tokens that a token attends to, itself included; None: all. last: whether this is the last layer,
        where the output is 0 at nodes that are not needed.
        """
        heads, kv_heads, given = query.shape[1], key.shape[1], query.dtype
        dtype = torch.promote_types(given, self.dtype) if _on_cpu(query) else given
        query, key, value = (x[0].transpose(0, 1).flatten(1).to(dtype) for x in (query, key, value))
        plan, outputs = self._plan(window, last, dtype), []
        for call in plan.calls:
            q = query.index_select(0, call.queries).view(call.tiles, -1, heads, query.shape[1] // heads)
            k, v = (x.index_select(0, call.keys) for x in (key, value))
            k, v = (x.view(call.tiles, -1, kv_heads, x.shape[1] // kv_heads) for x in (k, v))
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            if not _on_cpu(query):  # a GPU's memory-efficient kernels need as many key heads as query heads
                k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
            out = scaled_dot_product_attention(q, k, v, attn_mask=call.mask, scale=scaling, enable_gqa=heads != k.shape[1])
            outputs.append(out.transpose(1, 2).flatten(0, 1).flatten(1))
        outputs.append(outputs[0].new_zeros(1, outputs[0].shape[1]))
        return torch.cat(outputs).index_select(0, plan.rows).view(1, len(self), heads, -1).to(given)

    def block_mask(self, window: int | None) -> BlockMask:
        """Return FlexAttention's mask: each node attends to itself and its ancestors, within the window."""
        if window not in self._block_masks:
            n, lowest = len(self), self.positions - (window - 1 if window else len(self))

            def attends(batch, head, query, key):
                return (key <= query) & (query < self.ends[key]) & (self.positions[key] >= lowest[query])

            compiled = not _on_cpu(self.ids)  # uncompiled, it allocates an N x N mask
            with torch.no_grad(), torch.autocast(self.ids.device.type, enabled=False):  # else each mode recompiles it
                self._block_masks[window] = create_block_mask(attends, None, None, n, n, self.ids.device, _compile=compiled)
        return self._block_masks[window]

    def _plan(self, window: int | None, last: bool, dtype: torch.dtype) -> "AttentionPlan":
        """Return the plan of a layer; layers with the same window, role (`last`) and dtype share one."""
        if window and window >= max(map(len, self.paths)):
            window = None
        if (window, last, dtype) not in self._plans:
            self._plans[window, last, dtype] = AttentionPlan(self, list(self._tiles(window, last)), window, dtype)
        return self._plans[window, last, dtype]

    def _tiles(self, window: int | None, last: bool) -> Iterator[Tile]:
        """Yield tiles that contain every attending node once, in the first sequence that it belongs to."""
        needed = self.needed.cpu().numpy() if last else np.ones(len(self), dtype=bool)
        for path, shared in zip(self.paths, self.shared, strict=True):
            attending = shared + np.flatnonzero(needed[path[shared:]])
            for first in range(0, len(attending), MAX_QUERIES):
                queries = attending[first : first + MAX_QUERIES]
                start = max(0, queries[0] - window + 1) if window else 0
                yield Tile(path[queries], path[start : queries[-1] + 1], start)


class AttentionCall(NamedTuple):
    """One call of attention: B tiles, padded to n queries and m keys.

    queries: (B * n,) and keys: (B * m,) nodes; mask: (B, 1, n, m), added to the scores.
    """

    tiles: int
    queries: torch.Tensor
    keys: torch.Tensor
    mask: torch.Tensor


class AttentionPlan:
    """The attention calls of a layer. rows: (N,), the row of each node in their concatenated outputs.

    Nodes that do not attend are mapped to the row after the last, which contains zeros.
    """

    def __init__(self, tree: PrefixTree, tiles: list[Tile], window: int | None, dtype: torch.dtype):
        groups = _group_tiles(tiles)
        self.calls = [_attention_call(tree, group, window, dtype) for group in groups]
        starts = np.cumsum([0, *(len(call.queries) for call in self.calls)])
        rows = np.full(len(tree), starts[-1])
        for start, group, call in zip(starts, groups, self.calls, strict=False):
            width = len(call.queries) // call.tiles
            for i, tile in enumerate(group):
                rows[tile.queries] = start + i * width + np.arange(len(tile.queries))
        self.rows = torch.from_numpy(rows).to(tree.ids.device)


def _group_tiles(tiles: list[Tile]) -> list[list[Tile]]:
    """Group tiles of similar size, so that padding a group costs less than another call."""
    groups: list[list[Tile]] = []
    widest = scores = 0
    for tile in sorted(tiles, key=lambda tile: (len(tile.keys), len(tile.queries))):
        alone = len(tile.queries) * len(tile.keys)
        together = (len(groups[-1]) + 1) * max(widest, len(tile.queries)) * len(tile.keys) if groups else 0
        if groups and together <= scores + alone + CALL_COST:
            widest, scores = max(widest, len(tile.queries)), together
            groups[-1].append(tile)
        else:
            widest, scores = len(tile.queries), alone
            groups.append([tile])
    return groups


def _attention_call(tree: PrefixTree, tiles: list[Tile], window: int | None, dtype: torch.dtype) -> AttentionCall:
    device = tree.ids.device
    queries, keys = (_padded([getattr(tile, side) for tile in tiles]).to(device) for side in ("queries", "keys"))
    own, starts = tree.positions[queries][:, None, :, None], torch.tensor([tile.start for tile in tiles], device=device)
    position = starts[:, None, None, None] + torch.arange(keys.shape[1], device=device)
    hidden = (position > own) | (position <= own - window) if window else position > own
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
    return AttentionCall(len(tiles), queries.flatten(), keys.flatten(), mask)


def _padded(rows: list[np.ndarray]) -> torch.Tensor:
    """Stack rows, each padded with its last node: a query that attends to nothing would give NaN."""
    padded = np.repeat([row[-1] for row in rows], max(map(len, rows))).reshape(len(rows), -1)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return torch.from_numpy(padded)
