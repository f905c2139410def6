"""Canaries in a replay of a run: rows or clients with gradients or uploads of the attacker's choice, each present or
absent by a coin.

A canary example is a row whose gradient is a direction of its own; a canary client sends nothing but such a direction
(Andrew, Kairouz, Oh, Oprea, McMahan and Suriyakumar, ICLR 2024; Nasr et al., USENIX Security 2023). Directions are far
longer than every clip. Those of one release are orthogonal, so that no canary moves the score of another.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino import keys, tree
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.algorithms.local_sgd import LocalSgd
from sordino.algorithms.optional import Estimates
from sordino.audits.lower_bounds import FAR
from sordino.audits.planted import PLANTED, PlantedSums, PlantedUplink, Through
from sordino.keys import Key
from sordino.ledger.ledger import MEMORY
from sordino.privacy.readers import NoisyReader
from sordino.privacy.readers.class_sums import ClassSums
from sordino.privacy.readers.episodes import CellGradient
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.runs.simulation import Simulation
from sordino.sampling import Cohort
from sordino.tree import Tree
from sordino.types import Subject, Terms

ROOM = 40_000_000  # most coordinates of all directions together, for memory
REPLAYS = 20  # most replays of one audit
SHARE = 0.8  # largest share of a client's rows, or of the clients, that may be canaries


@dataclass(frozen=True)
class Canaries(ABC):
    """Base class for the canaries of one audit: as many as `wanted`, or fewer where they do not fit."""

    simulation: Simulation
    subject: Subject  # of the guarantee
    wanted: int
    key: Key

    @abstractmethod
    def unfit(self) -> str:
        """Reason why no canary can be placed; empty if one can."""

    @cached_property
    @abstractmethod
    def owners(self) -> list[int]:
        """The client of each canary of one replay, in ascending order."""

    @property
    def gates(self) -> AnyAlgorithm:
        return self.simulation.setup.algorithm

    @cached_property
    def cohort(self) -> Cohort:
        return self.simulation.federation(MEMORY, "audit").cohort

    @cached_property
    def zero(self) -> Tree:
        """An upload of zeros, which shows the shape of uploads."""
        setup = self.simulation.setup
        return self.gates.zero(setup.task, self.gates.broadcast(self.gates.init(setup.task, setup.key)))

    @property
    def each(self) -> bool:
        """True if the attacker can read every client's upload by itself, not only their sum."""
        uplink = self.gates.uplink
        together = uplink.central or any(stage.aggregate_only for stage in uplink.client)
        return self.subject.adversary == "server" and not together

    @property
    def replays(self) -> int:
        return min(REPLAYS, math.ceil(self.wanted / max(1, len(self.owners))))

    @property
    def more(self) -> str:
        """Advice for the report: what would let the audit prove a larger privacy loss, or why nothing would."""
        if not self.each and not self.gates.uplink.central:
            return "the noise of every client is in the sum that is seen, and one client's is promised"
        return "more canaries would"

    @property
    def turns(self) -> bool:
        """True if an absent canary sends the opposite direction; otherwise it sends zero."""
        return self.subject.neighbours == "replace"

    def by_client(self) -> Iterator[tuple[int, slice]]:
        """Clients, each with the positions of its canaries among all canaries."""
        start = 0
        for k in dict.fromkeys(self.owners):
            stop = start + self.owners.count(k)
            yield k, slice(start, stop)
            start = stop


@dataclass(frozen=True)
class CanaryDirections(Canaries):
    """Canaries that can be told apart: each moves the release along a direction of its own."""

    @property
    @abstractmethod
    def numbers(self) -> int:
        """Number of coordinates of a canary's direction."""

    @property
    @abstractmethod
    def order(self) -> int:
        """Order p of the p-norm by which gradients or uploads are clipped."""

    @abstractmethod
    def behind(self, planted: Mapping[int, Tensor], through: Through, sure: bool) -> AnyAlgorithm:
        """The run's method with canaries planted among its gradients or uploads; `sure`: every sample includes every
        canary."""

    @abstractmethod
    def seen(self, upload: Tree) -> Tensor | None:
        """The part of an upload, or of a mean of uploads, that a canary changes."""

    @abstractmethod
    def worth(self, terms: Terms) -> float:
        """Weight of a round in the score: the squared ratio of a canary's effect to the noise, if it takes part."""

    @cached_property
    def rate(self) -> float:
        """Sampling rate of a canary, where all have the same."""
        return 1.0

    def rates(self, planned: NDArray[np.float64] | None) -> Tensor:
        """Sampling rate of each canary in a round. `planned`: of each client, where its budget decides."""
        if planned is None or not self.hidden:
            return torch.full((len(self.owners),), self.rate).double()
        return torch.from_numpy(planned)[self.owners]

    @property
    def hidden(self) -> bool:
        """True if nobody sees which canaries take part in a round."""
        return False

    @property
    def alone(self) -> bool:
        """True if a client with a canary uploads nothing but that canary."""
        return False

    @cached_property
    def towards(self) -> Tensor:
        """Unit direction of each canary, [canaries, coordinates]."""
        if not self.each:
            return directions(self.key, len(self.owners), self.numbers, self.order)
        found = [
            directions(keys.fold(self.key, k), part.stop - part.start, self.numbers, self.order)
            for k, part in self.by_client()
        ]
        return torch.cat(found)

    def planted(self, levels: Tensor) -> dict[int, Tensor]:
        far = FAR * levels[:, None] * self.towards
        return {k: far[part] for k, part in self.by_client()}


def directions(key: Key, many: int, numbers: int, order: int) -> Tensor:
    """Random unit vectors, `many` of them with `numbers` coordinates: orthogonal if there are enough coordinates; for
    the 1-norm (`order` 1) each has a single coordinate.
    """
    if order == 1:
        return torch.nn.functional.one_hot(keys.permutation(key, numbers)[:many], numbers).float()
    drawn = keys.normal(key, many * numbers).reshape(numbers, many)
    if many <= numbers:
        drawn, _ = torch.linalg.qr(drawn)
    return torch.nn.functional.normalize(drawn, dim=0).T.float().contiguous()


@dataclass(frozen=True)
class CanaryExamples(CanaryDirections):
    """Canary rows of many clients, or canary cells (fixed groups of a client's rows), each with a gradient direction of
    its own.
    """

    def unfit(self) -> str:
        if type(self.gates.read) not in PLANTED:
            return "canaries cannot be placed behind this reader"
        change = Estimates.of(self.gates).change(self.zero)
        if change is None or tree.size(change) != self.numbers:
            return "uploads do not reveal the change of the whole model"
        if not self.each and self.cohort.hidden:
            return "the cohort is hidden"
        return "" if self.owners else "no client has two rows"

    @cached_property
    def owners(self) -> list[int]:
        # the same in every phase
        sizes, wanted = self.simulation.setup.public.sizes, min(self.wanted, ROOM // self.simulation.setup.parameters)
        if not self.each:  # all directions are in one sum, and no more can be orthogonal
            wanted = min(wanted, self.simulation.setup.parameters)
        room = {k: min(self._room(size), self.simulation.setup.parameters) for k, size in enumerate(sizes) if size > 1}
        found: list[int] = []
        while room and len(found) < wanted:  # one more at every client that has room
            here = list(room)[: wanted - len(found)]
            found += here
            room = {k: left - (k in here) for k, left in room.items() if left > (k in here)}
        return sorted(found)

    def _room(self, size: int) -> int:
        """Number of canaries that a client of `size` rows can hold."""
        reader = self.gates.read
        if not isinstance(reader, CellGradient):
            return int(SHARE * size)
        # where cells are drawn anew, two canaries in one cell would be clipped together
        return int(SHARE * reader.cells) if reader.sampling == "poisson" else min(int(SHARE * size), reader.cells // 2)

    @property
    def numbers(self) -> int:
        return self.simulation.setup.parameters

    @property
    def _reader(self) -> NoisyReader:
        reader = self.gates.read
        assert isinstance(reader, NoisyReader)
        return reader

    @property
    def order(self) -> int:
        reader = self._reader
        return (isinstance(reader, NoisyGradient) and reader.clip_order) or reader.mechanism.order

    @cached_property
    def rate(self) -> float:
        return self._reader.sampled or 1.0

    def behind(self, planted: Mapping[int, Tensor], through: Through, sure: bool) -> AnyAlgorithm:
        method = self.gates
        if isinstance(method, LocalSgd):  # a limit on steps comes after the noise, and would scale the noise down, too
            method = method.having(most_grad=None)
        return method.behind(read=PLANTED[type(self._reader)].of(self._reader, planted, through, sure))

    def seen(self, upload: Tree) -> Tensor | None:
        change = Estimates.of(self.gates).change(upload)
        return None if change is None else tree.flat(change).double()

    def worth(self, terms: Terms) -> float:
        reads = self._reader.reads(self.gates.work, 1)
        return reads / self._reader.used(terms.multiplier) ** 2


@dataclass(frozen=True)
class CanaryRowsOfSums(CanaryExamples):
    """Canary rows in a phase that releases sums per class, such as sums of features."""

    def unfit(self) -> str:
        sums = tree.leaves(self.zero)
        if type(self.gates.read) is not ClassSums or len(sums) != 1 or len(sums[0]) != self._classes:
            return "canaries cannot be placed behind this reader"
        return "" if self.each else "no single upload can be read"

    @property
    def _classes(self) -> int:
        return self.simulation.setup.task.labels

    @property
    def numbers(self) -> int:
        return tree.size(self.zero)

    order = 2

    rate = 1.0

    @cached_property
    def towards(self) -> Tensor:
        """Unit direction of each canary; a client's canaries are assigned to the classes in turn."""
        width = self.numbers // self._classes
        found = torch.zeros(len(self.owners), self._classes, width)
        for k, part in self.by_client():
            for label in range(self._classes):
                positions = torch.arange(part.start, part.stop)[label :: self._classes]
                found[positions, label] = directions(keys.fold(self.key, k, label), len(positions), width, 2)
        return found.flatten(1)

    def behind(self, planted: Mapping[int, Tensor], through: Through, sure: bool) -> AnyAlgorithm:
        reader = self.gates.read
        assert isinstance(reader, ClassSums)
        return self.gates.behind(read=PlantedSums.of(reader, planted, through))

    def seen(self, upload: Tree) -> Tensor | None:
        return tree.flat(upload).double()

    def worth(self, terms: Terms) -> float:
        reader = self.gates.read
        assert isinstance(reader, ClassSums)
        moved = (2 if self.turns else 1) * reader.clip
        return (moved / (reader.sensitivity * reader.used(terms.multiplier))) ** 2


@dataclass(frozen=True)
class CanaryClients(CanaryDirections):
    """Canary clients, which send only a direction."""

    def unfit(self) -> str:
        uplink = self.gates.uplink
        noise = uplink.noise()
        if noise is None or uplink.as_published is not None:
            return "canaries cannot be placed behind this noise"
        return "" if self.owners else "there is only one client"

    @cached_property
    def owners(self) -> list[int]:
        people = len(self.simulation.setup.public.sizes)
        order = keys.permutation(keys.fold(self.key, "clients"), people).tolist()
        # no more directions of one sum can be orthogonal
        room = ROOM // max(1, self.numbers) if self.each else self.numbers
        return sorted(order[: min(self.wanted, int(SHARE * people), room)])

    @property
    def numbers(self) -> int:
        return tree.size(self.zero)

    @property
    def order(self) -> int:
        noise = self.gates.uplink.noise()
        assert noise is not None
        return noise.mechanism.order

    @cached_property
    def rate(self) -> float:
        people = len(self.simulation.setup.public.sizes)
        return self.cohort.expected(people) / people if self.hidden else 1.0

    @property
    def hidden(self) -> bool:
        return self.cohort.hidden

    alone = True

    def behind(self, planted: Mapping[int, Tensor], through: Through, sure: bool) -> AnyAlgorithm:
        one = {k: rows[0] for k, rows in planted.items()}
        return self.gates.behind(uplink=PlantedUplink.of(self.gates.uplink, one, through))

    def seen(self, upload: Tree) -> Tensor | None:
        return tree.flat(upload).double()

    def worth(self, terms: Terms) -> float:
        uplink, plan = self.gates.uplink, self.simulation.setup.plan
        noise = uplink.noise()
        typed = None if noise is None else noise.multiplier
        planned = plan.quietest if uplink.personal else terms.multiplier  # one noise for all, and a bound for each
        return 1 / (typed or planned or 1.0) ** 2
