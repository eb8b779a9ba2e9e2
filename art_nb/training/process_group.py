"""Data-parallel training: each process takes a share of the micro-batches; losses and gradients are summed by all-reduce.

Does not depend on models or losses. Uses torch's `ProcessGroupGloo` directly, without the global state of
`torch.distributed`, so that a group whose process has died can be replaced by a new one.
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
        """Return this process's share of the items; every item belongs to exactly one process."""
        return items

    def sum_in_place(self, tensors: list[torch.Tensor]) -> None:
        """Replace each tensor by its float32 sum over all processes, which pass equal shapes. Raises: PeerLost."""

    def minimum(self, values: list[float]) -> list[float]:
        """Return the minimum of each value over all processes, which pass equally many. Raises: PeerLost."""
        return values


class ProcessGroup(SingleProcess):
    """Process number `rank` (from 0) of `size`. The constructor blocks until all have joined.

    Rank 0 listens at `host` and `port`. In each process Gloo also listens on a port of its own, at the address of the
    machine's hostname. The machines must reach each other there; firewall these ports against all others.

    join_timeout: seconds to wait for the others to join.

    Raises: PeerLost when not all join in time, or rank 0 cannot listen.
    """

    def __init__(self, rank: int, size: int, host: str, port: int, *, join_timeout: float = 60.0):
        self.rank, self.size = rank, size
        timeout = timedelta(seconds=join_timeout)
        try:
            # By default torch listens on all interfaces, without authentication.
            listening = socket.create_server((host, port), backlog=size).detach() if rank == 0 else None
            store = torch.distributed.TCPStore(host, port, size, rank == 0, timeout, master_listen_fd=listening)
            self._group = torch.distributed.ProcessGroupGloo(store, rank, size, timeout)
        except (RuntimeError, OSError) as error:
            raise PeerLost(f"{size} learners could not join at {host}:{port} (limit {join_timeout:g} s): {error}") from error

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
