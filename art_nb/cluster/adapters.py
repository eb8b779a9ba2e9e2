"""Adapters in Ray's object store: each gets there once, as the content of its file, when a sampler is first asked by it."""

from __future__ import annotations

from typing import Any

from art_nb.storage import checkpoints
from art_nb.training.names import Names

FILE = "adapter_model.safetensors"
KEPT = 8  # of the policies that were asked last


class Adapters:
    """Where the object store has the adapters of one model's policies."""

    def __init__(self, names: Names):
        self._names = names
        self._refs: dict[str, Any] = {}

    def __call__(self, policies: set[str]) -> dict[str, Any]:
        """Ray's references, by the policy's name; none for the base model."""
        import ray

        wanted = policies - {self._names.base}
        for name in wanted - self._refs.keys():
            folder = checkpoints.step_folder(self._names.folder, int(name.rpartition("@")[2]))
            self._refs[name] = ray.put((folder / FILE).read_bytes())
        found = {name: self._refs.pop(name) for name in wanted}
        self._refs |= found
        while len(self._refs) > max(KEPT, len(wanted)):
            del self._refs[next(iter(self._refs))]
        return found

    def know(self, refs: dict[str, Any]) -> None:
        """Ray's references that another process has, by the policy's name."""
        self._refs |= refs

    def clear(self) -> None:
        """Files have been replaced."""
        self._refs.clear()
