"""The policies of one model in a process that receives its adapters instead of reading checkpoints."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from safetensors.torch import load

from art_nb.training.policy import Policy
from art_nb.training.policy_store import IN_MEMORY, PolicyStore


class RemotePolicyStore(PolicyStore):
    """A `PolicyStore` that is filled with `add`. Callers pass only names that `PolicyNames.resolve` returned."""

    def __init__(self, policy: Policy, name: str, base: str, seed: int, base_folder: str):
        super().__init__(policy, name, base, Path(), seed, Path(base_folder))
        self._adapters: dict[int | None, tuple[str, dict[str, torch.Tensor]]] = {}

    def has(self, name: str, version: str) -> bool:
        """Return whether this version of the adapter is stored. version: any text that changes with the tensors."""
        return self._adapters.get(self.step_of(name), ("", {}))[0] == version

    def add(self, name: str, version: str, adapter: bytes) -> None:
        """Store an adapter, given as the content of its safetensors file. A later step becomes the latest."""
        step = self.step_of(name)
        if step in self._adapters:
            self.clear()
        self._adapters[step] = version, {key: tensor.to(self.policy.device) for key, tensor in load(adapter).items()}
        self.step = max(self.step, step or 0)

    def drop_oldest(self, needed: Collection[str]) -> None:
        """Keep at most IN_MEMORY adapters: drop those added first, but none of a policy in `needed`."""
        steps = {self.step_of(name) for name in needed}
        others = [step for step in self._adapters if step not in steps]
        for step in others[: max(0, len(self._adapters) - IN_MEMORY)]:
            del self._adapters[step]

    def _is_kept(self, name: str) -> bool:
        return self.step_of(name) in self._adapters

    def _adapter(self, step: int) -> dict[str, torch.Tensor]:
        return self._adapters[step][1]
