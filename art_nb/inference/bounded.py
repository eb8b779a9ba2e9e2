"""A dict of limited size, for entries whose number depends on clients."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_PROMPTS = 100_000  # prompts whose repetitions are counted, on a server per policy


class BoundedDict(dict[K, V]):
    """A dict that drops its oldest entry when `d[key] = value` makes it larger than `max_entries`."""

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self.max_entries = max_entries

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > self.max_entries:
            del self[next(iter(self))]
