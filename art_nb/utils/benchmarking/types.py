"""`BenchmarkModelKey`: a model and split to compare."""

from dataclasses import dataclass


@dataclass
class BenchmarkModelKey:
    """A model's logged trajectories of one split (None: "val"), labelled `display_name` (None: its name)."""

    name: str
    display_name: str | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        self.display_name, self.split = self.display_name or self.name, self.split or "val"

    def __str__(self) -> str:
        return str(self.display_name)
