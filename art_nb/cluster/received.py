"""The policies of one model whose adapters come by wire, not from a folder of checkpoints."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load

from art_nb.training.policy import Policy
from art_nb.training.versions import IN_MEMORY, Versions


class Received(Versions):
    """As `Versions`; who asks has resolved the names."""

    def __init__(self, policy: Policy, name: str, base: str, seed: int, base_folder: str):
        super().__init__(policy, name, base, Path(), seed, Path(base_folder))
        self._adapters: dict[int, tuple[str, dict[str, torch.Tensor]]] = {}

    @property
    def latest(self) -> str:
        return self.at(self.step)

    def has(self, name: str, version: str) -> bool:
        """Whether this version of the adapter is here. version: any text that differs where the tensors may."""
        return self._adapters.get(_step(name), ("", {}))[0] == version

    def take(self, name: str, version: str, adapter: bytes) -> None:
        """Keep an adapter, the content of its safetensors file; the oldest of too many goes."""
        step = _step(name)
        if step in self._adapters:
            self.forget()
        self._adapters[step] = version, load(adapter)
        self.step = max(self.step, step)
        while len(self._adapters) > IN_MEMORY:
            del self._adapters[next(iter(self._adapters))]

    def _is_kept(self, name: str) -> bool:
        return _step(name) in self._adapters

    def _adapter(self, step: int) -> dict[str, torch.Tensor]:
        return self._adapters[step][1]


def _step(name: str) -> int:
    return int(name.rpartition("@")[2])
