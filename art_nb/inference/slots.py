"""KV cache slots: their contents, prefix reuse, and the choice of the waiting generations that start in the next forward."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from art_nb.inference.cache import SlotCache
from art_nb.inference.generation import Generation, Owner

MIN_SHARED = 16  # tokens; a shorter common prefix is computed again
MIN_AWAITED = 32  # tokens saved from which a generation waits one forward pass for a prefix that another computes
MAX_PREFILL = 32768  # prompt tokens of one forward, beyond which no further generation is admitted


class Slots:
    """The slots of a cache.

    held: the computed tokens of each slot; owners: the `Generation.owner` that computed them.
    free: the unused slots, the longest unused first. Their contents can be reused.
    """

    def __init__(self, cache: SlotCache):
        count = len(cache.lengths)
        self.cache, self.owners, self.free = cache, [("", 0)] * count, dict.fromkeys(range(count))
        self.held: list[list[int]] = [[] for _ in range(count)]
        self._blocked: Generation | None = None  # the one that did not fit; later ones wait, too, or it might wait forever

    def clear(self, policy: str | None = None) -> None:
        """Drop the tokens of one policy, or of all."""
        for slot, (owner, _) in enumerate(self.owners):
            if policy in (None, owner):
                self.held[slot], self.cache.lengths[slot] = [], 0
        self.free = dict.fromkeys(sorted(self.free))  # in the initial order, so that a run can be repeated exactly

    def admit(
        self, waiting: list[Generation], active: Sequence[Generation] = (), most_tokens: int | None = None
    ) -> tuple[list[Generation], list[Generation]]:
        """Give waiting generations a free slot each. Returns those admitted, and those that still wait.

        A prefix of the prompt that some slot holds is not computed again. active: generations that have a slot. most_tokens:
        limit on slots times the longest conversation; up to 9/4 of it may be allocated, because buffers grow by half.
        """
        # Continued conversations come first, so that each finds its slot unchanged. Those of one policy get adjacent slots.
        queue = sorted(waiting, key=lambda each: (each is not self._blocked, each.previous_slot is None, each.policy.name))
        if len({generation.client for generation in queue}) > 1:
            queue = _in_turns(queue, active)
        longest_unused = iter(sorted(islice(self.free, len(queue))))
        admitted: list[Generation] = []
        delayed: list[Generation] = []
        self._blocked = None
        for generation in queue:
            if not self.free or self._blocked or sum(len(each.pending) for each in admitted) > MAX_PREFILL:
                delayed.append(generation)
                continue
            rows = self._rows([*active, *admitted], generation, most_tokens)
            if rows == 0:
                self._blocked = generation
                delayed.append(generation)
                continue
            owner, prompt = generation.owner, generation.prompt
            source, shared = self.longest_prefix(owner, prompt, generation.previous_slot)
            slot = source if source in self.free and shared == len(self.held[source]) else None
            if slot is None and _is_computed_next(generation, shared, admitted):
                delayed.append(generation)
                continue
            if slot is None:
                choice = longest_unused if rows is None else (each for each in self.free if each < rows)
                slot = next(each for each in choice if each in self.free)
            generation.slot, generation.pending = slot, self.occupy(slot, owner, prompt, source, shared)
            admitted.append(generation)
        return admitted, delayed

    def _rows(self, busy: list[Generation], generation: Generation, most_tokens: int | None) -> int | None:
        """Return how many of the first slots the generation may choose from; 0: it must wait, None: all.

        If the cache would become too large, the contents of the other slots are dropped. A lone generation need not wait.
        """
        if most_tokens is None:
            return None
        rows = max([each.slot + 1 for each in busy] + [min(self.free) + 1])
        longest = max(len(each.prompt) + each.max_tokens for each in [generation, *busy])
        if busy and rows * longest > most_tokens:
            return 0
        capacity = max(longest, self.cache.capacity)
        if len(self.held) * capacity <= most_tokens:
            return None
        if max(rows, self.cache.allocated) * capacity > most_tokens:
            kept = rows if busy else 0
            for slot, length in enumerate(self.cache.lengths):
                if slot >= kept or length > longest:
                    self.held[slot], self.cache.lengths[slot] = [], 0
            self.cache.trim(kept, longest)
        return max(rows, self.cache.allocated)

    def longest_prefix(self, owner: Owner, prompt: list[int], previous: int | None) -> tuple[int | None, int]:
        """Return the slot that holds the longest prefix of the prompt, and its length in tokens.

        previous: the slot of the conversation's last turn; it is the result if it has not been used since.
        """
        if previous in self.free and self.owners[previous] == owner:
            held = self.held[previous]
            if held and prompt[: len(held)] == held:
                return previous, len(held)
        start = prompt[:MIN_SHARED]
        alike = [s for s, held in enumerate(self.held) if held[:MIN_SHARED] == start and self.owners[s] == owner]
        shared = {slot: common_prefix(self.held[slot], prompt) for slot in alike}
        return max(shared.items(), key=lambda item: item[1], default=(None, 0))

    def occupy(self, slot: int, owner: Owner, prompt: list[int], source: int | None, shared: int) -> list[int]:
        """Take a free slot and copy `shared` tokens of the prompt from slot `source`. Returns the tokens left to compute."""
        if source is not None and slot != source and shared:
            self.cache.copy(source, slot, shared)
        shared = min(shared, len(prompt) - 1)  # the logits of at least one token are needed
        self.held[slot], self.owners[slot], self.cache.lengths[slot] = prompt[:shared], owner, shared
        del self.free[slot]
        return prompt[shared:]

    def extend(self, slot: int, tokens: list[int]) -> None:
        """Record that keys and values of these tokens were appended."""
        self.held[slot] += tokens
        self.cache.lengths[slot] += len(tokens)


def _in_turns(queue: list[Generation], active: Iterable[Generation]) -> list[Generation]:
    """Sort by how many generations of the same client are active or come first, so that no client takes all slots."""
    ahead = Counter(generation.client for generation in active)
    ranks = []
    for generation in queue:
        ranks.append(ahead[generation.client])
        ahead[generation.client] += 1
    return [queue[i] for i in sorted(range(len(queue)), key=ranks.__getitem__)]


def _is_computed_next(generation: Generation, shared: int, admitted: list[Generation]) -> bool:
    """Whether an admitted generation computes much more of the prompt than the `shared` tokens that are cached."""
    least = shared + MIN_AWAITED
    start, owner = generation.prompt[:least], generation.owner
    return len(start) == least and any(other.owner == owner and other.prompt[:least] == start for other in admitted)


def common_prefix(a: list[int], b: list[int]) -> int:
    """Return the length of the common prefix, found by bisection."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low
