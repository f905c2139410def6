"""Settings of [engine]: where and how a run computes, and the network that is put between server and clients."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from sordino.config.section import Section
from sordino.errors import NOT_NEGATIVE, POSITIVE, Range

OF_A_PROCESS = {
    "latency_ms": NOT_NEGATIVE, "down_mbit": POSITIVE, "up_mbit": POSITIVE, "compute": Range(least=1),
}  # fmt: skip


class Network(Section):
    """The network between the server and its client processes. Only time is added; with a timeout, a client that is
    silent misses the round. A list has a number for each client process, in turn.
    """

    latency_ms: float | list[float] = 0.0  # milliseconds that every message takes longer
    down_mbit: float | list[float] | None = None  # megabits per second to a client process
    up_mbit: float | list[float] | None = None  # megabits per second from a client process
    compute: float | list[float] = 1.0  # how many times slower than this machine clients compute
    timeout_s: float | None = Field(default=None, gt=0)  # seconds after which a round goes on without silent clients

    def of(self, process: int) -> dict[str, Any]:
        """Delays and bandwidths of one client process, and its slowness."""
        told = {name: getattr(self, name) for name in OF_A_PROCESS}
        return {name: v[process % len(v)] if isinstance(v, list) else v for name, v in told.items()}


class Engine(Section):
    # where a run computes: cpu, cuda, cuda:1 and so on, or auto for an accelerator where there is one; with "cuda" each
    # client process, or rank, takes the one of its own number
    device: str = "cpu"
    # how clients are computed; auto chooses by the algorithm, and all of them give the same result but for rounding
    executor: Literal["auto", "loop", "stack", "pooled", "processes", "ranks"] = "auto"
    # numbers in training; sums, clipping, noise and evaluation always use fp32 or wider
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    # how many cores train clients at once: threads and forks of this process, or client processes; auto: all there are
    workers: int | Literal["auto"] = "auto"
    threads: int = 1  # torch threads per process
    deadline_s: float | None = Field(default=None, gt=0)  # of `processes`: the most seconds for the work of one client
    checkpoint_every: int = 1  # write a checkpoint after every so many rounds
    cache: str | None = None  # a directory to keep candidates that take long to make; none: the user's own cache
    network: Network = Network()  # delays and bandwidths that are put between the server and its client processes

    @property
    def client_processes(self) -> bool:
        """Clients live in processes of their own, to which the server sends messages."""
        return self.executor == "processes"

    @property
    def one_process(self) -> bool:
        """All clients share the process of the server."""
        return self.executor not in ("processes", "ranks")
