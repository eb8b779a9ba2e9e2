"""Which slot holds which tokens, computed by which policy, and which slots are free; knows nothing of keys and values."""

from __future__ import annotations

WORTH_SHARING = 16  # tokens; a shorter common beginning is computed again


class Slots:
    """held: the tokens of each slot that are computed; owners: the name of the policy that computed them.

    free: those that no request uses, the longest idle first. What they hold can be gone on with by their owner alone.
    """

    def __init__(self, count: int):
        self.held: list[list[int]] = [[] for _ in range(count)]
        self.owners = [""] * count
        self.free = dict.fromkeys(range(count))

    def of(self, policy: str | None) -> list[int]:
        """The slots of a policy, or all."""
        return [slot for slot, owner in enumerate(self.owners) if policy in (None, owner)]

    def source(self, policy: str, prompt: list[int], last: int | None) -> tuple[int | None, int]:
        """The slot that holds most of the prompt's beginning, and how many tokens that is.

        last: the slot that the conversation had; the right one if nobody has used it since.
        """
        if last in self.free and self.owners[last] == policy and _starts(prompt, self.held[last]):
            return last, len(self.held[last])
        start = prompt[:WORTH_SHARING]
        alike = [s for s, held in enumerate(self.held) if held[:WORTH_SHARING] == start and self.owners[s] == policy]
        shared = {slot: common(self.held[slot], prompt) for slot in alike}
        return max(shared.items(), key=lambda item: item[1], default=(None, 0))

    def take(self, slot: int, policy: str, tokens: list[int]) -> None:
        """Give a free slot, which holds `tokens`, to a request to `policy`."""
        self.held[slot], self.owners[slot] = tokens, policy
        del self.free[slot]


def common(a: list[int], b: list[int]) -> int:
    """The length of the common beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def _starts(prompt: list[int], held: list[int]) -> bool:
    return len(held) > 0 and prompt[: len(held)] == held
