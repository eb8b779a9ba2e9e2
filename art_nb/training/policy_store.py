"""The policies of one model, loaded by name for sampling. The most recently used ones stay in memory."""

from functools import lru_cache
from pathlib import Path

import torch

from art_nb.inference.policies import NamedPolicy
from art_nb.training.names import PolicyNames
from art_nb.training.policy import Policy, is_adapter
from art_nb.training.state import read_adapter

IN_MEMORY = 8  # each is a copy of a small model's weights, or a large model's adapter


class PolicyStore(PolicyNames):
    """Loads the policies of one model from its checkpoints.

    policy: the policy in training, which has the base model and an adapter of the same shape. seed: of all sampling;
    combined with the step. base_folder: of the base model; None: `base`.
    """

    def __init__(self, policy: Policy, name: str, base: str, folder: Path, seed: int, base_folder: Path | None = None):
        super().__init__(name, base, folder)
        self.base_folder = base_folder or Path(base)
        self.policy, self.seed = policy, seed
        self.load = lru_cache(maxsize=IN_MEMORY)(self._load)

    def get(self, name: str | None = None) -> NamedPolicy:
        """Return the policy with that name; None: the latest. Raises: as `resolve` and `read_adapter`."""
        return self.load(self.resolve(name))

    def clear(self) -> None:
        """Drop the policies in memory, because their files have been replaced."""
        self.load.cache_clear()

    def _load(self, name: str) -> NamedPolicy:
        step = self.step_of(name)
        if step is None:
            adapter = read_adapter(self.policy, self.base_folder) if is_adapter(self.base_folder) else None
            return self.policy.named(name, (self.seed, "base"), adapter)
        return self.policy.named(name, (self.seed, step), self._adapter(step))

    def _adapter(self, step: int) -> dict[str, torch.Tensor]:
        return read_adapter(self.policy, self.checkpoint(step))
