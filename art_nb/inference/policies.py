"""Policies to sample from, which are named sets of weights, and a model with many LoRA adapters.

Does not depend on checkpoints, slots or text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

# By layer: the matrices (in, rank) and (rank, out); the second includes the scaling.
Adapter = dict[str, tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, eq=False)
class NamedPolicy:
    """A policy and its name. Its weights never change: an update creates another policy.

    seed: part of the seed of every draw; any value with a repr. model: called like a transformers model, with `base_model`.
    adapter: passed to `model`, a `MultiLoraModel` that policies share; None: `model` itself has the policy's weights.
    """

    name: str
    seed: object
    model: Any
    adapter: Adapter | None = None


class MultiLoraModel:
    """A transformers model and many LoRA adapters; the tokens of one forward may use different ones.

    model: a plain transformers model, called with one packed row. layers: names of the adapted linear layers.
    """

    def __init__(self, model: torch.nn.Module, layers: Iterable[str]):
        self.model = model
        self._routes: list[tuple[torch.Tensor | None, Adapter]] = []
        for name in layers:
            model.get_submodule(name).register_forward_hook(partial(self._add, name))

    def __call__(self, *, adapters: Sequence[Adapter], counts: Sequence[int], **options: Any) -> Any:
        """Return the model's output for a packed row (1, N) whose next `counts[i]` tokens use `adapters[i]`."""
        self._routes = routes(adapters, counts, self.model.device)
        try:
            return self.model(**options)
        finally:
            self._routes = []

    def _add(self, name: str, layer: torch.nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        x, out = inputs[0].flatten(0, -2), output.view(-1, output.shape[-1])  # one row per token
        for tokens, adapter in self._routes:
            down, up = adapter[name]
            if tokens is None:
                out.addmm_(x @ down, up)
            else:
                out.index_add_(0, tokens, x.index_select(0, tokens) @ down @ up)


def routes(
    adapters: Sequence[Adapter], counts: Sequence[int], device: torch.device
) -> list[tuple[torch.Tensor | None, Adapter]]:
    """Return each distinct adapter with the indices of its tokens; None: all tokens. Empty adapters are left out."""
    distinct = list({id(adapter): adapter for adapter in adapters}.values())
    if len(distinct) == 1:
        return [(None, distinct[0])] if distinct[0] else []
    index = {id(adapter): i for i, adapter in enumerate(distinct)}
    owner = torch.tensor([index[id(adapter)] for adapter in adapters]).repeat_interleave(torch.tensor(counts))
    return [((owner == i).nonzero()[:, 0].to(device), adapter) for i, adapter in enumerate(distinct) if adapter]
