"""Executors: how the clients of a round are reached, in this process, in others or on other machines, and their
answers. Also resolves executor, precision and device `auto` on this machine.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from sordino.accounting.events import Json
from sordino.device import CPU
from sordino.errors import ConfigError
from sordino.fast.processor import bf16_instructions
from sordino.privacy.uplink import Summed
from sordino.privacy.uplink.channels import SumAtSites
from sordino.tree import Tree
from sordino.types import Params, Terms

Scores = dict[int, list[float]]  # of each client: the means of its metrics, way after way of model after model


@dataclass(frozen=True)
class Answers:
    """Answers of clients in one round, in the order in which they are computed or arrive."""

    uploads: Iterable[tuple[int, Tree] | Summed] = ()  # by rising client, trees or messages; some of them added up
    sum: SumAtSites | None = None  # in place of uploads: a secure sum, played where the clients are


@dataclass(frozen=True)
class Tally:
    """Summary of a round's uploads that came in time: which clients, and how many bytes."""

    answered: list[int]
    size: int  # bytes of all uploads
    payload: int  # of one upload, without its envelope
    secure: Json = field(default_factory=dict)  # what an encrypted or masked sum cost


class Clients(ABC):
    """Interface by which a round reaches its clients, in this process, in others or on other machines."""

    repeats = False  # true: asked for a round again, they resend what they have sent, and pay no second time

    @abstractmethod
    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Answers:
        """Answers of every client named in `terms` to round t; `down`: the broadcast."""

    def gather(self) -> None:  # noqa: B027 (a default, not a hole)
        """Waits, before a round, until enough clients can be reached; clients on this machine always can."""

    def away(self, client: int) -> bool:
        """True where this client is known not to answer."""
        return False


class Executor(Clients):
    """Interface by which a whole run reaches its clients. Scoring, saving and restoring have no default, so that no
    executor forgets them.
    """

    @abstractmethod
    def score(self, t: int, models: Sequence[Params], ways: Sequence[str]) -> Scores:
        """Scores of models on each client's own test examples. They are not protected by noise; a site sends them only
        if it shares scores.
        """

    @abstractmethod
    def keep(self, step: int) -> Mapping[str, Tree]:
        """Saves the clients' states of this step durably, except for those that it returns, which go into the server's
        own checkpoint.
        """

    @abstractmethod
    def restore(self, step: int, place: Path) -> None:
        """Resets the clients to the states that they saved at `step` in the folder `place`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Tells the clients that the run has ended; does nothing by default."""
        return


def decide(executor: str, precision: str, noisy: bool, device: str = CPU) -> tuple[str, str]:
    """Executor and precision with `auto` resolved; `noisy`: the method reads noisy gradients. A run resolves them once,
    when it starts, and keeps them in its experiment.toml.
    """
    # noisy reads are shared by clients at the same weights, others by clients of equal shape; where a task cannot gain,
    # both are the plain loop
    if executor == "auto":
        executor = "pooled" if noisy else "stack"
    if precision == "auto":  # on an accelerator it has not been measured yet what bf16 costs, and what it saves
        precision = "bf16" if device == CPU and bf16_instructions() else "fp32"
    return executor, precision


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_of(name: str, number: int | None = None) -> str:
    """Name of the torch device, with `auto` resolved; refused where this machine has no such device. `number`: index of
    a process among several on one machine; each takes the accelerator of its own index, modulo their number.
    """
    import torch

    if name == "auto":
        return device_of("cuda" if torch.cuda.is_available() else CPU, number)
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type == CPU:
        return CPU
    if device.type == "mps":
        raise ConfigError(
            'engine.device = "mps"',
            why="sums and seeded draws use 64-bit floats, which Apple's graphics processors lack",
            fix='leave it out: "cpu" is the default',
            code="device-without-float64",
        )
    if device.type != "cuda":
        raise ConfigError(
            f"engine.device = {name!r}",
            why="no such device is known",
            fix='choose "cpu", "cuda", "cuda:1" and so on, or "auto"',
            code="unknown-device",
        )
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"engine.device = {name!r}",
            why=f"torch {torch.__version__} finds {torch.cuda.device_count()} such devices here",
            fix='choose "auto" to take what there is, or install a torch that was built for your accelerator',
            code="no-such-device",
        )
    return str(device) if number is None else f"cuda:{number % torch.cuda.device_count()}"


def processes_of(name: str) -> int:
    """Default number of client processes: one for each core, or for each accelerator."""
    import torch

    return cores() if name == CPU else torch.cuda.device_count()


def check_between_machines(name: str) -> None:
    """Refuses an accelerator in a run between sites."""
    if name != CPU:
        raise ConfigError(
            f"engine.device = {name!r} in a run between sites",
            why="sites compute on the processor, because the server does not know their hardware",
            fix='leave engine.device out; where all machines are yours, torchrun with engine.executor = "ranks" '
            "computes on their accelerators",
            code="device-of-one-process",
        )
