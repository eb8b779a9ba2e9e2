"""Split sequences into micro-batches, and lay each out as a prefix tree or as padded rows.

A micro-batch is TRL's input dictionary, whose tensors have a row per sequence, plus "layout", the model's input in place
of these tensors. Does not depend on losses or models.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from art_nb.inference.slots import common_prefix
from art_nb.training.prefix_tree import PrefixTree
from art_nb.training.sequences import TokenSequence


@dataclass
class Layout:
    """The tokens of one forward pass, in `height` rows of `width`.

    forward: arguments of the decoder's forward. needed: (height, width) bool, the R positions whose output predicts a
    trained token. rows: (M,), for each trained token in row-major order, which of these R outputs predicts it.
    """

    forward: dict[str, Any]
    needed: torch.Tensor
    rows: torch.Tensor


def padded_layout(batch: dict[str, torch.Tensor]) -> Layout:
    """Return a layout with a row per sequence.

    The padding is on the right, where a causal model does not attend to it, so no mask is passed: attention is faster
    without one. The last column predicts nothing and is left out.
    """
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)[:, :-1]
    needed = batch["tool_mask"].bool()
    return Layout({"input_ids": ids}, needed, torch.arange(int(needed.sum()), device=ids.device))


def tree_layout(batch: dict[str, torch.Tensor], sequences: list[TokenSequence]) -> Layout:
    """Return a layout with the nodes of the prefix tree in one row. Tokens that follow the same node share its output."""
    trained = batch["tool_mask"].bool()
    tree = PrefixTree([s.ids[:-1] for s in sequences], trained.device)
    nodes = torch.zeros(trained.shape, dtype=torch.long)
    for i, path in enumerate(tree.paths):
        nodes[i, : len(path)] = torch.from_numpy(path)
    predicting, rows = nodes.to(trained.device)[trained].unique(return_inverse=True)
    needed = torch.zeros(len(tree), dtype=torch.bool, device=trained.device).index_fill(0, predicting, True)
    tree.set_needed(needed)
    forward = {"input_ids": tree.ids[None], "position_ids": tree.positions[None], "prefix_tree": tree}
    return Layout(forward, needed[None], rows)


def split_sequences(
    sequences: list[TokenSequence], max_tokens: int, max_sequences: int, as_tree: bool
) -> list[list[TokenSequence]]:
    """Split sequences into groups of at most `max_sequences`, with common prefixes (`as_tree`) or of similar length.

    A group has at most `max_tokens` nodes of a prefix tree, or tokens including padding, unless a single sequence has more.
    """
    groups: list[list[TokenSequence]] = [[]]
    previous: list[int] = []
    tokens = 0
    for sequence in sorted(sequences, key=lambda s: s.ids if as_tree else [len(s.ids)]):
        length = len(sequence.ids)
        # In ascending order of length, the last sequence's length is the width of the padded rows.
        tokens = tokens + length - common_prefix(previous, sequence.ids) if as_tree else (len(groups[-1]) + 1) * length
        if groups[-1] and (len(groups[-1]) == max_sequences or tokens > max_tokens):
            groups.append([])
            tokens = length
        groups[-1].append(sequence)
        previous = sequence.ids
    return groups


def collate(sequences: list[TokenSequence], pad: int, device: torch.device, as_tree: bool) -> dict[str, Any]:
    """Return a micro-batch of B sequences.

    The first token of each is TRL's prompt, (B, 1), and the rest is its completion, (B, T), so all padding (token `pad`) is
    on the right. `tool_mask`, (B, T), is 1 on trained tokens. All other per-token values are (B, T).
    """
    width = max(len(s.ids) for s in sequences)

    def padded(rows: list[list], value: float) -> torch.Tensor:
        return torch.tensor([row + [value] * (width - len(row)) for row in rows], device=device)

    ids = padded([s.ids for s in sequences], pad)
    mask = padded([[1] * len(s.ids) for s in sequences], 0)
    trained = padded([[int(t) for t in s.trained] for s in sequences], 0)[:, 1:]
    batch = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": mask[:, :1],
        "completion_ids": ids[:, 1:],
        "completion_mask": mask[:, 1:],
        "tool_mask": trained,
        "advantages": padded([s.advantages for s in sequences], 0.0)[:, 1:],
        "sampling_logprobs": padded([s.logprobs for s in sequences], math.nan)[:, 1:],
        "off_policy": padded([s.off_policy for s in sequences], False)[:, 1:],
        "num_items_in_batch": trained.sum(),
    }
    return batch | {"layout": tree_layout(batch, sequences) if as_tree else padded_layout(batch)}
