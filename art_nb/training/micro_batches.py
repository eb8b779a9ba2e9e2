"""How sequences go through the model: cut into micro-batches, and laid out as a prefix tree or as padded rows.

It knows nothing of losses and models. A micro-batch is the dictionary that TRL's trainer takes, which speaks of sequences,
and under "layout" what the model is given in their place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from art_nb.training.prefix_tree import PrefixTree, common_start
from art_nb.training.sequences import TokenSequence


@dataclass
class Layout:
    """The tokens that go through the model at once, (rows, width) of them, and what is read from its output there.

    forward: arguments of the decoder's forward. needed: (rows, width) bool, the R places whose output predicts a sampled
    token. places: (M,), for each sampled token which of these R, as `tool_mask` lists the tokens.
    """

    forward: dict[str, Any]
    needed: torch.Tensor
    places: torch.Tensor


def padded_rows(batch: dict[str, torch.Tensor]) -> Layout:
    """A row for each sequence. Padding lies on the right, where a causal model never looks, so no mask is needed and
    attention takes its fastest path. Nothing follows the last token, so it does not go through the model."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)[:, :-1]
    needed = batch["tool_mask"].bool()
    return Layout({"input_ids": ids}, needed, torch.arange(int(needed.sum()), device=ids.device))


def tree_row(batch: dict[str, torch.Tensor], sequences: list[TokenSequence]) -> Layout:
    """One row, the nodes of the prefix tree. Tokens that may follow the same node share one place, and so its output."""
    trained = batch["tool_mask"].bool()
    tree = PrefixTree([s.ids[:-1] for s in sequences], trained.device)
    nodes = torch.zeros(trained.shape, dtype=torch.long)
    for i, path in enumerate(tree.paths):
        nodes[i, : len(path)] = torch.from_numpy(path)
    found, places = nodes.to(trained.device)[trained].unique(return_inverse=True)
    needed = torch.zeros(len(tree), dtype=torch.bool, device=trained.device).index_fill(0, found, True)
    tree.need(needed)
    forward = {"input_ids": tree.ids[None], "position_ids": tree.positions[None], "prefix_tree": tree}
    return Layout(forward, needed[None], places)


def by_length(sequences: list[TokenSequence], tokens: int, most: int) -> list[list[TokenSequence]]:
    """Sequences of like lengths together: at most `tokens` padded tokens and `most` sequences, at least one."""
    cuts: list[list[TokenSequence]] = [[]]
    for sequence in sorted(sequences, key=lambda s: len(s.ids)):
        # They get longer, so this one's length is the width of the batch that it would join.
        if cuts[-1] and (len(cuts[-1]) == most or (len(cuts[-1]) + 1) * len(sequence.ids) > tokens):
            cuts.append([])
        cuts[-1].append(sequence)
    return cuts


def by_beginning(sequences: list[TokenSequence], tokens: int, most: int) -> list[list[TokenSequence]]:
    """Sequences that begin alike together: at most `tokens` distinct tokens and `most` sequences, at least one."""
    cuts: list[list[TokenSequence]] = [[]]
    before: list[int] = []
    distinct = 0
    for sequence in sorted(sequences, key=lambda s: s.ids):
        new = len(sequence.ids) - common_start(before, sequence.ids)
        if cuts[-1] and (len(cuts[-1]) == most or distinct + new > tokens):
            cuts.append([])
            distinct, new = 0, len(sequence.ids)
        cuts[-1].append(sequence)
        distinct, before = distinct + new, sequence.ids
    return cuts


def collate(sequences: list[TokenSequence], pad: int, device: torch.device, as_tree: bool) -> dict[str, Any]:
    """A micro-batch. TRL's inputs are all (B, T) but the prompt: the first token is the prompt, the rest the completion.

    `tool_mask` is 1 on sampled tokens, wherever they are. A prompt of one token leaves all padding to the right.
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
    return batch | {"layout": tree_row(batch, sequences) if as_tree else padded_rows(batch)}
