"""Several processes that train one policy: each takes its share of the micro-batches, and what they find is added up.

It knows nothing of losses and models. Source: torch's `ProcessGroupGloo`, without the global state that `torch.distributed`
keeps of one: a group that has lost a process is let go, and another one is made.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

import torch

T = TypeVar("T")
COME, ANSWER = 60.0, 600.0  # seconds that the others may take to come, and for their share of a step


class Parted(ConnectionError):
    """Another of the processes has died, or does not answer."""


class Alone:
    """The only process that trains."""

    size = 1

    def share(self, items: list[T]) -> list[T]:
        """Those of the items that this process works on; every item is somebody's."""
        return items

    def add_up(self, tensors: list[torch.Tensor]) -> None:
        """Replace each, in place, by the sum over all processes; each has as many of the same shapes. Raises: Parted."""

    def least(self, values: list[float]) -> list[float]:
        """Of each the least over all processes. Raises: Parted."""
        return values


class Ranks(Alone):
    """One of `size` processes, number `rank`; all wait here for each other, which rank 0 lets them do at host and port.

    come, answer: seconds after which one that does not come, or does not answer, is given up.

    Raises: Parted when not all come.
    """

    def __init__(self, rank: int, size: int, host: str, port: int, *, come: float = COME, answer: float = ANSWER):
        self.rank, self.size, self.answer = rank, size, timedelta(seconds=answer)
        wait = timedelta(seconds=come)
        try:
            store = torch.distributed.TCPStore(host, port, size, rank == 0, wait)
            self._group = torch.distributed.ProcessGroupGloo(store, rank, size, wait)
        except RuntimeError as error:
            raise Parted(f"not all {size} learners came to {host}:{port}: {error}") from error

    def share(self, items: list[T]) -> list[T]:
        return items[self.rank :: self.size]

    def add_up(self, tensors: list[torch.Tensor]) -> None:
        flat = torch.cat([tensor.detach().flatten().float() for tensor in tensors]).cpu()
        self._reduce(flat, torch.distributed.ReduceOp.SUM)
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def least(self, values: list[float]) -> list[float]:
        found = torch.tensor(values, dtype=torch.float64)
        self._reduce(found, torch.distributed.ReduceOp.MIN)
        return found.tolist()

    def _reduce(self, tensor: torch.Tensor, how: torch.distributed.ReduceOp) -> None:
        options = torch.distributed.AllreduceOptions()
        options.reduceOp, options.timeout = how, self.answer
        try:
            self._group.allreduce([tensor], options).wait()
        except RuntimeError as error:
            raise Parted(f"another learner is gone: {error}") from error
