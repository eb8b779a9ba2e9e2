"""The policies of one model, by name, ready to be sampled from.

A checkpoint is read when it is first asked for; the last few that were asked for stay in memory.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch

from art_nb.inference.policies import NamedPolicy
from art_nb.storage import checkpoints
from art_nb.training.names import Names
from art_nb.training.policy import Policy, is_adapter
from art_nb.training.state import read_adapter

IN_MEMORY = 8  # of small models each is a copy of the weights, of large ones an adapter


class Versions(Names):
    """What can be asked of one model.

    Args:
        policy: what is trained; gives the base model and the shape of the adapter.
        name, base, folder: as of `Names`.
        seed: of all that is drawn; mixed with the step.
        base_folder: where the base model lies, if it has another name.
    """

    def __init__(self, policy: Policy, name: str, base: str, folder: Path, seed: int, base_folder: Path | None = None):
        super().__init__(name, base, folder)
        self.base_folder = base_folder or Path(base)
        self.policy, self.seed = policy, seed
        self._read = lru_cache(maxsize=IN_MEMORY)(self._read_one)

    def asked(self, name: str | None = None) -> NamedPolicy:
        """The policy of that name, or the latest. Raises: RequestError, as `resolve`."""
        return self._read(self.resolve(name))

    def forget(self) -> None:
        """Read every checkpoint again: files have been replaced."""
        self._read.cache_clear()

    def _read_one(self, name: str) -> NamedPolicy:
        if name == self.base:
            adapter = read_adapter(self.policy, self.base_folder) if is_adapter(self.base_folder) else None
            return self.policy.named(name, (self.seed, "base"), adapter)
        step = int(name.rpartition("@")[2])
        return self.policy.named(name, (self.seed, step), self._adapter(step))

    def _adapter(self, step: int) -> dict[str, torch.Tensor]:
        return read_adapter(self.policy, checkpoints.step_folder(self.folder, step))
