"""What the policies of a model are called: every kept checkpoint "name@step", the latest "name" too, and the base model."""

from __future__ import annotations

from pathlib import Path

from art_nb.inference.chat import RequestError
from art_nb.storage import checkpoints


class Names:
    """Which policies of a model can be asked.

    name, base: the model's name, and what its `base_model` is called. folder: of its checkpoints.
    """

    def __init__(self, name: str, base: str, folder: Path):
        self.name, self.base, self.folder = name, base, folder
        self.step = 0  # the latest

    def names(self) -> list[str]:
        """Everything that `resolve` answers to."""
        return [self.name, *map(self.at, checkpoints.list_checkpoints(self.folder)), self.base]

    def at(self, step: int) -> str:
        """The name of the checkpoint of a step."""
        return f"{self.name}@{step}"

    def resolve(self, name: str | None = None) -> str:
        """"name@step" of the policy of that name, or of the latest; or the base model's name.

        Raises: RequestError when there is none; it says which there are.
        """
        if name is None or name == self.name:
            return self.at(self.step)
        if name in (self.at(self.step), self.base) or self._is_kept(name):
            return name
        raise RequestError(
            f"model {name!r} is not here: this client answers for {', '.join(map(repr, self.names()))}. "
            f"{self.name!r} is the latest, step {self.step}, and {self.base!r} the model without an adapter; other "
            "steps were never reached or their checkpoints are deleted. Another model has a client of its own."
        )

    def _is_kept(self, name: str) -> bool:
        own, _, step = name.rpartition("@")
        well_formed = own == self.name and step.isdecimal() and name == self.at(int(step))
        return well_formed and checkpoints.step_folder(self.folder, int(step)).exists()
