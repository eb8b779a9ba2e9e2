"""The names of a model's policies: "name@step" of every kept checkpoint, "name" for the latest, and the base model."""

from pathlib import Path

from art_nb.inference.chat import RequestError
from art_nb.storage import checkpoints
from art_nb.types import PolicyName


class PolicyNames:
    """The names of a model's policies that can be sampled.

    name, base: the model's name, and its `base_model`. folder: of its checkpoints. step: the latest step.
    """

    def __init__(self, name: str, base: str, folder: Path):
        self.name, self.base, self.folder = name, base, folder
        self.step = 0

    def names(self) -> list[str]:
        """Return all names that `resolve` accepts."""
        return [self.name, *map(self.at, checkpoints.list_checkpoints(self.folder)), self.base]

    def at(self, step: int | None = None) -> str:
        """Return "name@step"; None: the latest step."""
        return str(PolicyName(self.name, self.step if step is None else step))

    def step_of(self, policy: str) -> int | None:
        """Return the step in the name of a policy; None for a name without a step, such as the base model's."""
        found = None if policy == self.base else PolicyName.parse(policy)
        return found.step if found else None

    def checkpoint(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step."""
        return checkpoints.step_folder(self.folder, step)

    def resolve(self, name: str | None = None) -> str:
        """Return the full name of a policy, "name@step" or the base model's name. name: one of `names`; None: the latest.

        Raises: RequestError for an unknown name; the message lists the known ones.
        """
        if name is None or name == self.name:
            return self.at()
        if name in (self.at(), self.base) or self._is_kept(name):
            return name
        raise RequestError(
            f"unknown model {name!r}: this client serves {', '.join(map(repr, self.names()))}. {self.name!r} is the latest "
            f"policy, step {self.step}, and {self.base!r} the model without an adapter. Checkpoints of other steps were "
            "deleted or never written. For another model, use that model's client."
        )

    def _is_kept(self, name: str) -> bool:
        found = PolicyName.parse(name) if isinstance(name, str) else None
        return found is not None and found.model == self.name and self.checkpoint(found.step).exists()
