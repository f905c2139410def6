"""Executors: how the clients of a round are reached, in this process, in others or on other machines, and their
answers. Also resolves executor, precision and device `auto` on this machine.

Secure sum of uploads: stages of the uplink turn them into integers, and a channel (masks or encryption) adds these.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from sordino import tree
from sordino.accounting.events import Json
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.device import CPU, here
from sordino.errors import ConfigError, RangeSaturation, UnsoundGuarantee
from sordino.fast import bf16_instructions
from sordino.planning.accounts import OpenRound
from sordino.privacy.uplink import Summed, Uplink
from sordino.privacy.uplink.channels import Channel, SumAtSites
from sordino.privacy.uplink.secure_stages import Encrypted, NoiseShare, check_room
from sordino.privacy.uplink.stages import private
from sordino.tree import Tree
from sordino.types import NoiseSource, Params, Task, Terms

Scores = dict[int, list[float]]  # of each client: the means of its metrics, way after way of model after model


@dataclass(frozen=True)
class Answers:
    """Answers of clients in one round, in the order in which they are computed or arrive."""

    uploads: Iterable[tuple[int, Tree] | Summed] = ()  # by rising client, trees or messages; some of them added up
    sum: SumAtSites | None = None  # instead of uploads: a secure sum, computed where the clients are


@dataclass(frozen=True)
class Tally:
    """Summary of a round's uploads that came in time: which clients, and how many bytes."""

    answered: list[int]
    size: int  # bytes of all uploads
    payload: int  # of one upload, without its envelope
    secure: Json = field(default_factory=dict)  # what an encrypted or masked sum cost


class Clients(ABC):
    """Interface by which a round reaches its clients, in this process, in others or on other machines."""

    repeats = False  # true: for a repeated round clients resend their answers, at no new cost

    @abstractmethod
    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Answers:
        """Answers of every client named in `terms` to round t; `down`: the broadcast."""

    def gather(self) -> None:  # noqa: B027 (empty on purpose)
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


OFTEN = 1e-3  # of the values beyond the range: from there on a strict run stops


class SecureSum:
    """Secure sum of the uploads of each round of a run, as the uplink's secure stage (masks or encryption) says."""

    def __init__(self, uplink: Uplink, run: str, channel: Channel | None = None) -> None:
        """`channel`: adds the integers of the uploads; None: the channel that the uplink's secure stage implies."""
        assert uplink.secure is not None
        assert uplink.grid is not None
        self._grid, self._secure = uplink.grid, uplink.secure
        self._channel = channel or uplink.secure.sums.channel(uplink.secure, uplink.grid.layout, run)
        self.broadcast = 0  # bytes of what goes down in place of the model: an encrypted sum

    def __call__(
        self,
        now: OpenRound,
        uploads: Iterable[Any],
        elsewhere: SumAtSites | None,
        weights: Sequence[float],
        uplink: Uplink,
        zero: Tree,
        source: NoiseSource,
    ) -> tuple[Summed, Tally]:
        """The sum of uploads, and its cost; empty if the protocol was aborted. `weights`: of all clients; `elsewhere`:
        a sum between sites, in place of `uploads`.
        """
        cohort = now.granted
        like, bound, noise = uplink.shape(zero), uplink.bound(tree.size(zero)), uplink.noise()
        own = None
        if noise is not None and (used := noise.multiplier or now.central) is not None:
            if isinstance(noise, NoiseShare):
                check_room(self._grid.layout, len(cohort), noise.room(bound, used))
            elif private(uplink.server):
                own = flat(noise.release(like, bound, used, source))
        published = uplink.per_coordinate
        if published is not None and not published.flagged and cohort:
            drawn = published.release(like, [weights[k] for k in cohort], [], self._grid.scale, source)
            own = flat(tree.map(lambda leaf: leaf.round().long(), drawn))  # rounding a sum of integers and noise
        if elsewhere is not None:
            found = elsewhere.open(own)
        else:
            found = self._channel.sum(now.t, ((k, flat(x)) for k, x in uploads), cohort, tree.size(like), own)
        values = max(1, len(found.who) * tree.size(like))
        # a share of noise is beyond the range, and is not cut to it
        cut = 0 if uplink.shared or found.saturated is None else found.saturated
        if self._grid.strict and not found.aborted and cut / values > OFTEN:
            raise RangeSaturation(
                f"{cut} of {values} values are outside the range from {-self._grid.layout.reach:g} to "
                f"{self._grid.layout.reach:g}",
                why="they were cut to this range, so the sum is not the sum of the uploads",
                fix="set a larger range in the quantise stage, or clip the uploads",
                code="range-saturation",
            )
        cost = {
            "mode": self._secure.mode,
            "saturated": None if found.saturated is None else cut,
            "cpu_seconds": {part: round(value, 5) for part, value in found.seconds.items()},
            **({"aborted": found.aborted} if found.aborted else {}),
        }
        if isinstance(self._secure, Encrypted) and self._secure.keys == "shared":
            self.broadcast = found.payload
        noised = own is not None or bool(found.aborted)
        total = Summed(tree.unflat(here(torch.from_numpy(found.total)), like), found.who, noised)
        return total, Tally(sorted(found.who), found.bytes_up, found.payload, cost)


def check_one_broadcast(tells_each: bool) -> None:
    """Refuses masked sums between sites for an algorithm that sends each client its own message (`tells_each`): no
    digest could show that all clients got the same broadcast.
    """
    if tells_each:
        raise UnsoundGuarantee(
            "masked uploads from clients that each get a message of their own",
            why="clients detect a server that sends one of them another model by comparing what all of them received",
            fix="use another uplink, or an algorithm with one broadcast for all",
            code="masks-need-one-broadcast",
        )


def words_of(algorithm: AnyAlgorithm, task: Task, t: int, down: Tree) -> int:
    """Number of integers in an upload of this round."""
    return tree.size(algorithm.uplink.at(t, down).shape(algorithm.zero(task, down)))


def flat(upload: Tree) -> np.ndarray[Any, np.dtype[np.int64]]:
    """All integers of one upload as one vector."""
    return np.concatenate([leaf.cpu().numpy().reshape(-1) for leaf in tree.leaves(upload)])
