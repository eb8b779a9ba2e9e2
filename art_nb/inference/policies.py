"""A policy to sample from: a named set of weights. And adapters side by side: many policies on one model.

Knows nothing of where weights come from, of slots or of text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

# Of each adapted layer, by name: (in, rank) and (rank, out), the scaling multiplied in.
Adapter = dict[str, tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, eq=False)
class NamedPolicy:
    """What answers to one name. Its weights never change: after an update there is another policy.

    seed: mixed into every draw; any value with a repr. model: called as a transformers model is. adapter: what it adds
    to an `AdaptedModel`, which is shared with others; None where `model` is a model of its own.
    """

    name: str
    seed: object
    model: Any
    adapter: Adapter | None = None


class AdaptedModel:
    """A transformers model and many adapters: the tokens of one forward may each have another one.

    model: plain, its rows packed into one; layers: the names of its linear layers that adapters change.
    """

    def __init__(self, model: torch.nn.Module, layers: Iterable[str]):
        self.model = model
        self._routes: list[tuple[torch.Tensor | None, Adapter]] = []
        for name in layers:
            model.get_submodule(name).register_forward_hook(partial(self._add, name))

    def __call__(self, *, adapters: Sequence[Adapter], counts: Sequence[int], **options: Any) -> Any:
        """The model's forward of a packed row (1, N) whose next `counts[i]` tokens have `adapters[i]`."""
        self._routes = routes(adapters, counts, self.model.device)
        try:
            return self.model(**options)
        finally:
            self._routes = []

    def _add(self, name: str, layer: torch.nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        x, out = inputs[0].flatten(0, -2), output.view(-1, output.shape[-1])  # one row for each token
        for tokens, adapter in self._routes:
            down, up = adapter[name]
            if tokens is None:
                out.addmm_(x @ down, up)
            else:
                out.index_add_(0, tokens, x.index_select(0, tokens) @ down @ up)


def routes(
    adapters: Sequence[Adapter], counts: Sequence[int], device: torch.device
) -> list[tuple[torch.Tensor | None, Adapter]]:
    """Each adapter once, with the indices of its tokens; None for all of them. An empty one changes nothing."""
    different = list({id(adapter): adapter for adapter in adapters}.values())
    if len(different) == 1:
        return [(None, different[0])] if different[0] else []
    which = {id(adapter): i for i, adapter in enumerate(different)}
    owner = torch.tensor([which[id(adapter)] for adapter in adapters]).repeat_interleave(torch.tensor(counts))
    return [((owner == i).nonzero()[:, 0].to(device), adapter) for i, adapter in enumerate(different) if adapter]
