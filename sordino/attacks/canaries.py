"""Canaries in a replay of a run: what they do is the attacker's choice, and whether they do it is decided by coins.

A canary of an example is a row whose gradient is a direction of its own; a canary of a client is a client that sends
nothing but such a direction (Andrew, Kairouz, Oh, Oprea, McMahan and Suriyakumar, ICLR 2024; Nasr et al., USENIX
Security 2023). Directions are far longer than every clip. Those that one release holds stand at right angles, so that
none moves what is seen of another one.

The attacker knows everything but the coins and the noise. So it takes away what the others sent, and weighs every round
by how loud its noise was.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sordino import keys, tree
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.attacks.pairs import FAR
from sordino.attacks.planted import PlantedReader, PlantedUplink, Quiet, Through
from sordino.attacks.replay import PhaseStart, Replay
from sordino.attacks.sources import Weak
from sordino.engine.executor import Clients
from sordino.engine.site import Site
from sordino.keys import Key
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink.one_direction import OneDirection
from sordino.runs.simulation import Simulation
from sordino.tree import Tree
from sordino.types import Adversary, Neighbours, Terms

ROOM = 40_000_000  # numbers of all directions together
REPLAYS = 20  # of one audit, at most
SHARE = 2  # one of so many rows, or clients, may be a canary


@dataclass(frozen=True)
class Canaries(ABC):
    """The canaries of a run. `wanted`: how many, where there is room."""

    simulation: Simulation
    adversary: Adversary
    neighbours: Neighbours
    wanted: int
    key: Key

    # what they are ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def unfit(self) -> str:
        """Why no canary can be placed; nothing where one can."""

    @cached_property
    @abstractmethod
    def owners(self) -> list[int]:
        """The client of each canary of one replay, in rising order."""

    @property
    @abstractmethod
    def numbers(self) -> int:
        """In one direction."""

    @property
    @abstractmethod
    def order(self) -> int:
        """The norm that the gate clips."""

    @abstractmethod
    def behind(self, planted: Mapping[int, Tensor], through: Through, sure: bool) -> AnyAlgorithm:
        """The run's method with canaries behind its gates. `sure`: no coin of a sample leaves one out."""

    @abstractmethod
    def seen(self, upload: Tree) -> Tensor | None:
        """What of an upload, or a mean of uploads, a canary moves."""

    @abstractmethod
    def multiplier(self, terms: Terms) -> float:
        """How loud the noise of a round is."""

    @property
    def rate(self) -> float:
        """How likely a canary is to be in a sample."""
        return 1.0

    @property
    def alone(self) -> bool:
        """Does the owner of a canary send nothing but that?"""
        return False

    @property
    def gates(self) -> AnyAlgorithm:
        return self.simulation.setup.algorithm

    @property
    def each(self) -> bool:
        """Does the attacker read single uploads?"""
        uplink = self.gates.uplink
        together = uplink.central or any(stage.aggregate_only for stage in uplink.client)
        return self.adversary == "server" and not together

    @property
    def replays(self) -> int:
        return min(REPLAYS, math.ceil(self.wanted / max(1, len(self.owners))))

    @property
    def turns(self) -> bool:
        """Does a canary that is not there point the other way? Else it is nothing."""
        return self.neighbours == "replace"

    def by_client(self) -> Iterator[tuple[int, slice]]:
        """Where the canaries of a client stand among all."""
        start = 0
        for k in dict.fromkeys(self.owners):
            stop = start + self.owners.count(k)
            yield k, slice(start, stop)
            start = stop

    @cached_property
    def towards(self) -> Tensor:
        """The direction of each canary, of length 1: [canaries, numbers]."""
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
    """At right angles, where there is room. Where lengths are sums of absolute values one number tells most."""
    if order == 1:
        return torch.nn.functional.one_hot(keys.permutation(key, numbers)[:many], numbers).float()
    drawn = keys.normal(key, many * numbers).reshape(numbers, many)
    if many <= numbers:
        drawn, _ = torch.linalg.qr(drawn)
    return torch.nn.functional.normalize(drawn, dim=0).T.float().contiguous()


@dataclass(frozen=True)
class CanaryExamples(Canaries):
    """Rows of many clients, whose gradients point where nobody else's do."""

    def unfit(self) -> str:
        if type(self.gates.read) is not NoisyGradient:
            return "canaries cannot be placed behind this reader"
        setup = self.simulation.setup
        zero = self.gates.zero(setup.task, self.gates.broadcast(self.gates.init(setup.task, setup.key)))
        if self.gates.change(zero) is None:
            return "what its clients send tells no change of the model"
        if not self.each and (self.gates.uplink.secure is not None or self.gates.uplink.robust):
            return "no single upload can be read, and their sum is no plain one"
        if not self.each and self.simulation.federation(":memory:", "audit").cohort.hidden:
            return "who takes part is hidden"
        return "" if self.owners else "no client has two rows"

    @cached_property
    def owners(self) -> list[int]:
        sizes, wanted = self.simulation.setup.public.sizes, min(self.wanted, ROOM // max(1, self.numbers))
        room = {k: min(size // SHARE, self.numbers) for k, size in enumerate(sizes) if size >= SHARE}
        found: list[int] = []
        while room and len(found) < wanted:  # one more at every client that has room
            here = list(room)[: wanted - len(found)]
            found += here
            room = {k: left - (k in here) for k, left in room.items() if left > (k in here)}
        return sorted(found)

    @property
    def numbers(self) -> int:
        return tree.size(self.simulation.setup.task.init(0))

    @property
    def _reader(self) -> NoisyGradient:
        reader = self.gates.read
        assert isinstance(reader, NoisyGradient)
        return reader

    @property
    def order(self) -> int:
        return self._reader.clip_order or 2

    @property
    def rate(self) -> float:
        return self._reader.sampled or 1.0

    def behind(self, planted: Mapping[int, Tensor], through: Through, sure: bool) -> AnyAlgorithm:
        return self.gates.behind(read=PlantedReader.of(self._reader, planted, through, sure))

    def seen(self, upload: Tree) -> Tensor | None:
        change = self.gates.change(upload)
        return None if change is None else tree.flat(change).double()

    def multiplier(self, terms: Terms) -> float:
        return self._reader.used(terms.multiplier)


@dataclass(frozen=True)
class CanaryClients(Canaries):
    """Clients that send a direction and nothing else: every second one."""

    def unfit(self) -> str:
        uplink = self.gates.uplink
        noise = uplink.noise()
        if noise is None or isinstance(noise, OneDirection) or uplink.as_published is not None:
            return "canaries cannot be placed behind this noise"
        if uplink.secure is not None or uplink.shared or uplink.robust or not (self.each or uplink.central):
            return "no single upload can be read, and their sum is no plain one"
        if self.simulation.federation(":memory:", "audit").cohort.personal:
            return "who takes part follows personal budgets"
        return "" if self.owners else "there is one client only"

    @cached_property
    def owners(self) -> list[int]:
        people = len(self.simulation.setup.public.sizes)
        order = keys.permutation(keys.fold(self.key, "clients"), people).tolist()
        return sorted(order[: min(self.wanted, people // SHARE, ROOM // max(1, self.numbers))])

    @cached_property
    def _zero(self) -> Tree:
        setup = self.simulation.setup
        return self.gates.zero(setup.task, self.gates.broadcast(self.gates.init(setup.task, setup.key)))

    @property
    def numbers(self) -> int:
        return tree.size(self._zero)

    @property
    def order(self) -> int:
        noise = self.gates.uplink.noise()
        assert noise is not None
        return noise.mechanism.order

    @property
    def rate(self) -> float:
        run = self.simulation.federation(":memory:", "audit")
        return run.cohort.expected(run.population) / run.population if run.cohort.hidden else 1.0

    @property
    def alone(self) -> bool:
        return True

    def behind(self, planted: Mapping[int, Tensor], through: Through, sure: bool) -> AnyAlgorithm:
        one = {k: rows[0] for k, rows in planted.items()}
        return self.gates.behind(uplink=PlantedUplink.of(self.gates.uplink, one, through))

    def seen(self, upload: Tree) -> Tensor | None:
        return tree.flat(upload).double()

    def multiplier(self, terms: Terms) -> float:
        noise = self.gates.uplink.noise()
        typed = None if noise is None else noise.multiplier
        return typed or terms.multiplier or 1.0


# a replay with them ---------------------------------------------------------------------------------------------------


@dataclass
class Beside(Clients):
    """Clients whose answers are overheard; and what some of them would have said without noise, once with no canary
    and once with all of theirs.
    """

    inner: Site
    without: tuple[Site, Site]
    asked: frozenset[int] | None  # of whom this is asked; None: of all
    down: Tree = None
    terms: Mapping[int, Terms] = field(default_factory=dict)
    heard: dict[int, Tree] = field(default_factory=dict)
    low: dict[int, Tree] = field(default_factory=dict)
    high: dict[int, Tree] = field(default_factory=dict)

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Iterator[tuple[int, Tree]]:
        self.down, self.terms, self.heard = down, terms, {}
        asked = {k: one for k, one in terms.items() if self.asked is None or k in self.asked}
        before = {k: self.inner.state(k) for k in asked}
        self.low, self.high = (self._said(site, t, asked, before) for site in self.without)
        for k, upload in self.inner(t, down, terms):
            self.heard[k] = upload
            yield k, upload

    def _said(self, site: Site, t: int, asked: Mapping[int, Terms], before: Mapping[int, Tree]) -> dict[int, Tree]:
        said = dict(site(t, self.down, asked)) if asked else {}
        for k, state in before.items():  # which the sites share
            self.inner.states[k] = state
        return said


class CanaryRounds(Replay):
    """The whole run with canaries in it; `weak`: behind noise that is so many times too small."""

    def __init__(self, canaries: Canaries, number: int, weak: float, start: PhaseStart) -> None:
        simulation, key = canaries.simulation, keys.fold(canaries.key, "replay", number)
        super().__init__(simulation, key=keys.word(key), start=start)
        many = len(canaries.owners)
        self.coins = keys.coin(keys.fold(key, "coins"), many, 0.5).bool()
        self._canaries, ones = canaries, torch.ones(many)
        absent = -ones if canaries.turns else 0 * ones
        chosen = torch.where(self.coins, ones, absent)
        self.algorithm = canaries.behind(canaries.planted(chosen), lambda source: Weak(source, weak), sure=False)
        self._low = canaries.behind(canaries.planted(0 * ones), Quiet, sure=False)
        self._high = canaries.behind(canaries.planted(ones), Quiet, sure=True)
        self.federation = replace(self.federation, algorithm=self.algorithm)
        self.site = self._with(self.algorithm)
        self._moved, self._weight = torch.zeros(many).double(), torch.zeros(many).double()

    def scores(self) -> Tensor:
        """Of each canary: about 0 if it was absent, or pointed away, and about 1 if it was there."""
        canaries = self._canaries
        asked = frozenset[int]() if canaries.alone else frozenset(canaries.owners) if canaries.each else None
        clients = Beside(self.site, (self._with(self._low), self._with(self._high)), asked)
        while self.t < self.simulation.setup.rounds:
            t = self.t
            outcome, _ = self.step(clients)
            if canaries.alone:
                clients.low, clients.high = (self._sent(t, gates, clients) for gates in (self._low, self._high))
            if canaries.each:
                self._singly(t, clients)
            elif outcome.received is not None and clients.terms:
                self._together(t, clients, outcome.received.mean)
        return self._moved / self._weight.clamp_min(1e-300)

    @property
    def exposed(self) -> Tensor:
        """Which canaries anybody could have seen."""
        return self._weight > 0

    def _with(self, algorithm: AnyAlgorithm) -> Site:
        return replace(self.site, algorithm=algorithm, executor="loop")

    def _sent(self, t: int, gates: AnyAlgorithm, clients: Beside) -> dict[int, Tree]:
        """What all clients send if all canaries do the same; everybody's, where who was drawn is hidden."""
        uplink, zero = gates.uplink.at(t, clients.down), gates.zero(self.simulation.setup.task, clients.down)
        owners, others = set(self._canaries.owners), clients.heard.items()
        here = owners if self._canaries.rate < 1 else owners & set(clients.terms)
        usual = next(iter(clients.terms.values()), Terms())
        grants = {k: clients.terms.get(k, usual).granted(k, self.federation.sizes[k], Counter(0)) for k in here}
        sent = {k: uplink.encode(zero, grant) for k, grant in grants.items()}
        return {k: upload for k, upload in others if k not in owners} | sent

    def _singly(self, t: int, clients: Beside) -> None:
        for k, part in self._canaries.by_client():
            if k in clients.heard:
                low, high, heard = (
                    self._opened(t, answers[k], clients.down, k)
                    for answers in (clients.low, clients.high, clients.heard)
                )
                self._count(part, low, high, heard, clients.terms[k])

    def _opened(self, t: int, upload: Tree, down: Tree, k: int) -> Tensor:
        zero = self.algorithm.zero(self.simulation.setup.task, down)
        return self._known(self.algorithm.uplink.at(t, down).opened(upload, zero, self.federation.weights[k]))

    def _together(self, t: int, clients: Beside, mean: Tree) -> None:
        low, high = (self._mean(t, answers, clients) for answers in (clients.low, clients.high))
        self._count(slice(None), low, high, self._known(mean), next(iter(clients.terms.values())))

    def _mean(self, t: int, answers: Mapping[int, Tree], clients: Beside) -> Tensor:
        """What the server would have made of these answers, without noise."""
        run, uplink = self.federation, self._low.uplink.at(t, clients.down)
        received: Any = uplink.receive(
            answers,
            self.algorithm.zero(self.simulation.setup.task, clients.down),
            run.weights,
            run.cohort.expected(run.population) * math.fsum(run.weights) / run.population,
            1.0,
            Quiet(Counter(0)),
            False,
            reach=lambda k: clients.terms[k].reach if k in clients.terms else 1.0,
        )
        return self._known(received.mean)

    def _known(self, upload: Tree) -> Tensor:
        seen = self._canaries.seen(upload)
        assert seen is not None, "asked before the run was played"
        return seen

    def _count(self, part: slice, low: Tensor, high: Tensor, heard: Tensor, terms: Terms) -> None:
        canaries, towards = self._canaries, self._canaries.towards[part].double()
        whole, moved = towards @ (high - low), towards @ (heard - low)
        if canaries.turns:  # from -whole to whole
            moved = (moved + whole) / 2
        loud = canaries.multiplier(terms) ** -2
        self._moved[part] += loud * whole * moved / canaries.rate
        self._weight[part] += loud * whole**2
