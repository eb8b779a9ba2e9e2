"""Data-parallel training: each process takes a share of the micro-batches, and losses and gradients are summed over all.

Does not depend on models or losses. Uses torch's `ProcessGroupGloo` directly, without the global state of
`torch.distributed`: when a process dies, the group is dropped and another one is created.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import TypeVar

import torch

T = TypeVar("T")
STEP_TIMEOUT = timedelta(minutes=10)


class PeerLost(ConnectionError):
    """Another process of the group did not join, has died or does not respond."""


class SingleProcess:
    """Training in one process: the interface of `ProcessGroup` without communication."""

    size = 1

    def shard(self, items: list[T]) -> list[T]:
        """Return the items of this process; every item belongs to exactly one process."""
        return items

    def sum_in_place(self, tensors: list[torch.Tensor]) -> None:
        """Replace each tensor with its sum over all processes, which pass equal shapes. Raises: PeerLost."""

    def minimum(self, values: list[float]) -> list[float]:
        """Return the minimum of each value over all processes. Raises: PeerLost."""
        return values


class ProcessGroup(SingleProcess):
    """Process number `rank` of `size`. The constructor blocks until all have joined.

    Rank 0 listens on host and port. Gloo listens on a port of its own in each process, at the address of its hostname: the
    machines must be able to reach each other there; block these ports for all others.

    join_timeout: seconds to wait for the others to join.

    Raises: PeerLost when not all join in time.
    """

    def __init__(self, rank: int, size: int, host: str, port: int, *, join_timeout: float = 60.0):
        self.rank, self.size = rank, size
        timeout = timedelta(seconds=join_timeout)
        try:
            # torch would listen on all interfaces, and does not check who connects.
            listening = socket.create_server((host, port), backlog=size).detach() if rank == 0 else None
            store = torch.distributed.TCPStore(host, port, size, rank == 0, timeout, master_listen_fd=listening)
            self._group = torch.distributed.ProcessGroupGloo(store, rank, size, timeout)
        except (RuntimeError, OSError) as error:
            raise PeerLost(f"not all {size} learners joined at {host}:{port} within {join_timeout:g} s: {error}") from error

    def shard(self, items: list[T]) -> list[T]:
        return items[self.rank :: self.size]

    def sum_in_place(self, tensors: list[torch.Tensor]) -> None:
        flat = torch.cat([tensor.detach().flatten().float() for tensor in tensors]).cpu()
        self._all_reduce(flat, torch.distributed.ReduceOp.SUM)
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def minimum(self, values: list[float]) -> list[float]:
        reduced = torch.tensor(values, dtype=torch.float64)
        self._all_reduce(reduced, torch.distributed.ReduceOp.MIN)
        return reduced.tolist()

    def _all_reduce(self, tensor: torch.Tensor, operation: torch.distributed.ReduceOp) -> None:
        options = torch.distributed.AllreduceOptions()
        options.reduceOp, options.timeout = operation, STEP_TIMEOUT
        try:
            self._group.allreduce([tensor], options).wait()
        except RuntimeError as error:
            raise PeerLost(f"another learner has died or does not respond: {error}") from error
