"""The policies of one model, by name: every kept checkpoint as "name@step", the latest as "name" too, and the base model.

A checkpoint is read when it is first asked for; the last few that were asked for stay in memory.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from art_nb.inference.chat import RequestError
from art_nb.inference.policies import NamedPolicy
from art_nb.storage import checkpoints
from art_nb.training.policy import Policy, is_adapter
from art_nb.training.state import read_adapter

IN_MEMORY = 8  # of small models each is a copy of the weights, of large ones an adapter


class Versions:
    """What can be asked of one model.

    Args:
        policy: what is trained; gives the base model and the shape of the adapter.
        name, base: the model's name, and what its `base_model` is called.
        folder: of its checkpoints.
        seed: of all that is drawn; mixed with the step.
        base_folder: where the base model lies, if it has another name.
    """

    def __init__(self, policy: Policy, name: str, base: str, folder: Path, seed: int, base_folder: Path | None = None):
        self.base_folder = base_folder or Path(base)
        self.policy, self.name, self.base, self.folder, self.seed = policy, name, base, folder, seed
        self.step = 0  # the latest
        self._read = lru_cache(maxsize=IN_MEMORY)(self._read_one)

    def names(self) -> list[str]:
        """Everything that `asked` answers to."""
        return [self.name, *map(self.at, checkpoints.list_checkpoints(self.folder)), self.base]

    def at(self, step: int) -> str:
        """The name of the checkpoint of a step."""
        return f"{self.name}@{step}"

    def asked(self, name: str | None = None) -> NamedPolicy:
        """The policy of that name, or the latest. Raises: RequestError when there is none; it says which there are."""
        if name in (None, self.name, self.at(self.step)):
            return self._read(self.at(self.step))
        if name == self.base or self._is_kept(name):
            return self._read(name)
        raise RequestError(
            f"model {name!r} is not here: this client answers for {', '.join(map(repr, self.names()))}. "
            f"{self.name!r} is the latest, step {self.step}, and {self.base!r} the model without an adapter; other "
            "steps were never reached or their checkpoints are deleted. Another model has a client of its own."
        )

    def forget(self) -> None:
        """Read every checkpoint again: files have been replaced."""
        self._read.cache_clear()

    def _is_kept(self, name: str) -> bool:
        own, _, step = name.rpartition("@")
        well_formed = own == self.name and step.isdecimal() and name == self.at(int(step))
        return well_formed and checkpoints.step_folder(self.folder, int(step)).exists()

    def _read_one(self, name: str) -> NamedPolicy:
        if name == self.base:
            adapter = read_adapter(self.policy, self.base_folder) if is_adapter(self.base_folder) else None
            return self.policy.named(name, (self.seed, "base"), adapter)
        step = int(name.rpartition("@")[2])
        adapter = read_adapter(self.policy, checkpoints.step_folder(self.folder, step))
        return self.policy.named(name, (self.seed, step), adapter)
