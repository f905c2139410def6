"""Communication between ranks of torch.distributed: texts, client messages and sums.

Only lengths, JSON and wire messages cross: no object that would have to be unpickled. They travel by gloo, from CPU
memory. Sums travel by nccl, from one accelerator to the other, where every rank has one of its own; and by gloo where
there are none, or where ranks share one."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from sordino import tree
from sordino.device import CPU, here, on
from sordino.errors import ConfigError
from sordino.tree import Tree
from sordino.types import Tensor

# a rank may compute for hours while others wait; one that dies closes its connections, which is noticed at once
PATIENCE = timedelta(days=1)
AHEAD = 1 << 26  # bytes of messages that a rank has sent, and rank 0 has not taken yet


class RankTeam:
    """All ranks of a run, seen from one of them."""

    def __init__(self) -> None:
        import torch.distributed.nn  # noqa: F401  # before there is a group: see `leave`

        dist.init_process_group("gloo", timeout=PATIENCE)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._met = False
        self._adders: Any = None  # the group that adds on accelerators
        self._sent: deque[tuple[Any, Tensor]] = deque()  # what is on its way to rank 0

    def meet(self, device: str) -> None:
        """Exchange devices and agree on a backend for sums, once in a run."""
        if self._met:
            return
        self._met = True
        mine = torch.device(device)
        told = [torch.zeros(hashlib.sha256().digest_size, dtype=torch.uint8, device=CPU) for _ in range(self.world)]
        dist.all_gather(told, _bytes(hashlib.sha256(_name_of(mine, self.rank).encode()).digest()))
        alone = len({tuple(one.tolist()) for one in told}) == self.world
        if mine.type == "cuda" and alone and dist.is_nccl_available():
            self._adders = dist.new_group(backend="nccl", timeout=PATIENCE)

    def say(self, text: bytes, body: bytes = b"") -> None:
        """Send a text and bytes from rank 0 to all ranks."""
        with on(CPU):
            dist.broadcast(torch.tensor([len(text), len(body)]), 0)
            dist.broadcast(_bytes(text + body), 0)

    def hear(self) -> tuple[bytes, bytes]:
        with on(CPU):
            lengths = torch.zeros(2, dtype=torch.int64)
            dist.broadcast(lengths, 0)
            text, body = lengths.tolist()
            data = torch.empty(text + body, dtype=torch.uint8)
            dist.broadcast(data, 0)
        whole = data.numpy().tobytes()
        return whole[:text], whole[text:]

    def send(self, message: bytes) -> None:
        """Send a message to rank 0 without waiting, up to `AHEAD` bytes in flight."""
        with on(CPU):
            for data in (torch.tensor([len(message)]), _bytes(message)):
                self._sent.append((dist.isend(data, 0), data))
        self.flush(AHEAD)

    def flush(self, ahead: int = 0) -> None:
        """Wait until at most `ahead` bytes are in flight."""
        waiting = sum(data.nbytes for _, data in self._sent)
        while self._sent and waiting > ahead:
            sending, data = self._sent.popleft()
            sending.wait()
            waiting -= data.nbytes

    def take(self, rank: int) -> bytes:
        """Receive the next message of a rank."""
        with on(CPU):
            length = torch.zeros(1, dtype=torch.int64)
            dist.recv(length, rank)
            data = torch.empty(int(length), dtype=torch.uint8)
            dist.recv(data, rank)
        return data.numpy().tobytes()

    def wait(self) -> None:
        """Barrier: return when every rank has called it."""
        dist.barrier()

    def added(self, numbers: Tensor) -> Tensor:
        """The sum of `numbers` over all ranks."""
        if self._adders is not None:
            dist.all_reduce(numbers, group=self._adders)
            return numbers
        there = numbers.to(CPU)
        dist.all_reduce(there)
        return here(there)

    def sum(self, part: Tree) -> Tree:
        """The sum over all ranks of their trees of tensors, computed in float64."""
        return tree.unflat(self.added(torch.cat([leaf.double().reshape(-1) for leaf in tree.leaves(part)])), part)

    def leave(self) -> None:
        """Destroy the process group and drop the last reference to it, else its threads may crash Python at exit.

        `torch.distributed.nn` keeps a reference for good, as the default of its functions, where it is imported while
        there is a group; a network that is drawn inside a phase does so.
        """
        dist.destroy_process_group()
        joined.cache_clear()


@cache
def joined() -> RankTeam:
    """The ranks of this run, as seen from this process; the group is joined once, for all phases."""
    if "RANK" not in os.environ:
        raise ConfigError(
            'engine.executor = "ranks" was started without torchrun',
            why="torchrun starts the other ranks, which share the clients",
            fix="start it as torchrun --nproc-per-node 2 -m sordino run ..., or use another executor",
            code="no-ranks",
        )
    return RankTeam()


def local_rank() -> int:
    """The number of this rank among those of its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def _name_of(device: torch.device, rank: int) -> str:
    """Name of an accelerator, unique over all machines; on the CPU, of this rank."""
    if device.type != "cuda":
        return f"rank {rank}"
    return str(torch.cuda.get_device_properties(device).uuid)


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
