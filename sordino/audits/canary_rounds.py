"""Replay of a whole run with canaries in it, and the score of each canary over all releases.

The attacker knows everything but the coins and the noise. So it subtracts the uploads of all other clients, and weights
every round by its noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sordino import keys
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.audits.canaries import CanaryDirections
from sordino.audits.noise_sources import NoiselessTwin, Weak
from sordino.audits.planted import ClearSum
from sordino.audits.replay import PhaseStart, Replay
from sordino.engine.executor import Answers, Clients, SecureSum
from sordino.engine.site import Site
from sordino.privacy.noise.sources import Counter
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.secure_stages import Encrypted
from sordino.tree import Tree
from sordino.types import Terms


@dataclass
class RecordedCanaryClients(Clients):
    """Clients whose uploads are recorded. For clients in `asked` it also computes what they would upload without noise,
    once with no canary and once with all canaries."""

    inner: Site
    without: tuple[Site, Site]
    asked: frozenset[int] | None  # clients of which this is computed; None: all
    down: Tree = None
    terms: Mapping[int, Terms] = field(default_factory=dict)
    heard: dict[int, Tree] = field(default_factory=dict)
    low: dict[int, Tree] = field(default_factory=dict)
    high: dict[int, Tree] = field(default_factory=dict)

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Answers:
        return Answers(self._overheard(t, down, terms))

    def _overheard(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Iterator[tuple[int, Tree]]:
        self.down, self.terms, self.heard = down, terms, {}
        asked = {k: one for k, one in terms.items() if self.asked is None or k in self.asked}
        before = {k: self.inner.state(k) for k in asked}
        self.low, self.high = (self._said(site, t, asked, before) for site in self.without)
        for k, upload in self.inner.each(t, down, terms):
            self.heard[k] = upload
            yield k, upload

    def _said(self, site: Site, t: int, asked: Mapping[int, Terms], before: Mapping[int, Tree]) -> dict[int, Tree]:
        answers = dict(site.each(t, self.down, asked)) if asked else {}
        for k, state in before.items():  # shared by the sites
            self.inner.states[k] = state
        return answers


class CanaryScores(NamedTuple):
    """Measured effect of each canary and its weight, summed over releases of one or several phases."""

    moved: Tensor
    weight: Tensor
    rounds: Tensor  # number of rounds in which it took part

    def beside(self, phases: Sequence[CanaryScores]) -> CanaryScores:
        """Scores of the same canaries, added up over this phase and others."""
        every = (self, *phases)
        return CanaryScores(*(torch.stack(alike).sum(0) for alike in zip(*every, strict=True)))

    @property
    def each(self) -> Tensor:
        """Score of each canary: about 0 if it was absent or pointed in the opposite direction, about 1 if it was
        present.
        """
        return self.moved / self.weight.clamp_min(1e-300)

    @property
    def exposed(self) -> Tensor:
        """True for canaries that took part in at least one release."""
        return self.weight > 0


class NoiselessUpload(NamedTuple):
    """A canary client's upload without noise, kept for rounds with the same uplink and terms."""

    uplink: Uplink
    terms: Terms
    upload: Tree


class CanaryRounds(Replay):
    """Replayed rounds of the training, or of a phase before it, with canaries. `weak`: factor by which the noise is too
    small. All phases of a replay share the coins (which canaries are present); each phase has its own noise.
    """

    def __init__(self, canaries: CanaryDirections, number: int, weak: float, start: PhaseStart) -> None:
        simulation, key = canaries.simulation, keys.fold(canaries.key, "replay", number)
        phase = simulation.setup.phase
        super().__init__(simulation, key=keys.word(keys.fold(key, phase) if phase else key), start=start)
        many = len(canaries.owners)
        self.coins = keys.coin(keys.fold(key, "coins"), many, 0.5).bool()
        self._canaries, ones = canaries, torch.ones(many)
        absent = -ones if canaries.turns else 0 * ones
        chosen = torch.where(self.coins, ones, absent)
        self.algorithm = canaries.behind(canaries.planted(chosen), lambda source: Weak(source, weak), sure=False)
        self._low = canaries.behind(canaries.planted(0 * ones), NoiselessTwin, sure=False)
        self._high = canaries.behind(canaries.planted(ones), NoiselessTwin, sure=True)
        self.federation = replace(self.federation, algorithm=self.algorithm)
        uplink = self.algorithm.uplink
        if isinstance(uplink.secure, Encrypted):
            self.federation.secure_sum = SecureSum(uplink, self.federation.run, ClearSum(uplink.secure))
        # a planted upload takes the place of a trained one, so clients may train together; a planted row may not
        self.site = replace(self.site, algorithm=self.algorithm) if canaries.alone else self._with(self.algorithm)
        self._usual = Terms()  # of a participant of the last round that had any
        self._quiet: dict[tuple[bool, int], NoiselessUpload] = {}
        self._moved, self._weight, self._rates, self._rounds = (torch.zeros(many).double() for _ in range(4))

    def scores(self) -> CanaryScores:
        """Scores of all canaries over all releases."""
        canaries = self._canaries
        asked = frozenset[int]() if canaries.alone else frozenset(canaries.owners) if canaries.each else None
        clients = RecordedCanaryClients(self.site, (self._with(self._low), self._with(self._high)), asked)
        while not self.over:
            t, self._rates = self.t, canaries.rates(self.federation.open(self.t).rates)
            outcome, _ = self.step(clients)
            self._usual = next(iter(clients.terms.values()), self._usual)
            if canaries.alone:
                clients.low, clients.high = (self._sent(t, gates, clients) for gates in (self._low, self._high))
            if canaries.each:
                self._singly(t, clients)
            elif outcome.received is not None and (clients.terms or canaries.hidden):
                self._together(t, clients, outcome.received.mean)
        return CanaryScores(self._moved, self._weight, self._rounds)

    def _with(self, algorithm: AnyAlgorithm) -> Site:
        return replace(self.site, algorithm=algorithm, sharing="loop")

    def _sent(self, t: int, gates: AnyAlgorithm, clients: RecordedCanaryClients) -> dict[int, Tree]:
        """Uploads of all clients, where canary clients send theirs without noise by the method `gates`, with all
        canaries present, or all absent. In a hidden cohort this includes canary clients that were not sampled."""
        uplink, zero = gates.uplink.at(t, clients.down), gates.zero(self.simulation.setup.task, clients.down)
        owners, others = set(self._canaries.owners), clients.heard.items()
        here = owners if self._canaries.hidden else owners & set(clients.terms)
        sent = {}
        for k in here:
            terms = clients.terms.get(k, self._usual)
            known = self._quiet.get((gates is self._high, k))
            if known is None or known.uplink is not uplink or known.terms != terms:
                upload = uplink.encode(zero, terms.granted(k, self.federation.sizes[k], Counter(0)))
                known = self._quiet[gates is self._high, k] = NoiselessUpload(uplink, terms, upload)
            sent[k] = known.upload
        return {k: upload for k, upload in others if k not in owners} | sent

    def _singly(self, t: int, clients: RecordedCanaryClients) -> None:
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

    def _together(self, t: int, clients: RecordedCanaryClients, mean: Tree) -> None:
        low, high = (self._mean(t, answers, clients) for answers in (clients.low, clients.high))
        self._count(slice(None), low, high, self._known(mean), self._usual)

    def _mean(self, t: int, answers: Mapping[int, Tree], clients: RecordedCanaryClients) -> Tensor:
        """The mean that the server would compute from these uploads without noise."""
        run, uplink = self.federation, self._low.uplink.at(t, clients.down)
        received: Any = uplink.receive(
            answers,
            self.algorithm.zero(self.simulation.setup.task, clients.down),
            run.weights,
            run.cohort.expected(run.population) * math.fsum(run.weights) / run.population,
            1.0,
            NoiselessTwin(Counter(0)),
            each=False,
            reach=lambda k: clients.terms[k].reach if k in clients.terms else 1.0,
        )
        return self._known(received.mean)

    def _known(self, upload: Tree) -> Tensor:
        seen = self._canaries.seen(upload)
        assert seen is not None, "`unfit` has to be asked before"
        return seen

    def _count(self, part: slice, low: Tensor, high: Tensor, heard: Tensor, terms: Terms) -> None:
        canaries, towards, rates = self._canaries, self._canaries.towards[part].double(), self._rates[part]
        whole, moved = towards @ (high - low), towards @ (heard - low)
        if canaries.turns:  # from the opposite direction to the direction
            moved = (moved + whole) / 2
        # under the same noise, a canary with half the effect has a quarter of the weight
        share = (whole / whole.abs().max().clamp_min(1e-300)).square()
        seen = share > 1e-18  # where it has any effect
        worth = canaries.worth(terms) * rates.square() * share * seen
        self._moved[part] += worth * moved / whole.where(seen, torch.ones_like(whole)) / rates
        self._weight[part] += worth
        self._rounds[part] += seen.double()
