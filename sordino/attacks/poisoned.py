"""Replay of a whole run with malicious clients.

The attackers know the model and the protocol, hold rows of their own and do not communicate. An upload beyond the
uplink's bound would count as zeros, so they stay within it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from sordino import tree
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.algorithms.optional import Estimates
from sordino.audits.replay import BEGINNING, Change, PhaseStart, Replay
from sordino.engine.executor import Answers, Clients
from sordino.engine.site import Site
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.stages import SLACK, private
from sordino.runs.simulation import Simulation
from sordino.tree import Tree
from sordino.types import Params, Terms


class MaliciousView(NamedTuple):
    """Knowledge of a malicious client when it makes its upload."""

    model: Params  # the broadcast one
    change: Callable[[Tree], Params | None]  # the part of an upload that is the change of the model
    boost: float  # factor by which the attackers of a round become the plain mean, if all others sent zeros
    weight: float  # of the attacker's upload


class Manipulations(NamedTuple):
    """Manipulations by malicious clients: of their rows before training, and of their uploads."""

    rows: Change
    sent: Callable[[Tree, MaliciousView], Tree]


class Poisoned(Replay):
    """The whole run with malicious clients `who`. `plain`: with the plain mean instead of its robust aggregation."""

    def __init__(
        self,
        simulation: Simulation,
        lies: Manipulations,
        who: frozenset[int],
        plain: bool,
        start: PhaseStart = BEGINNING,
    ) -> None:
        change: Change | None = (lambda k, own: lies.rows(k, own) if k in who else own) if who else None
        super().__init__(simulation, change, start=start)
        if plain:
            self.algorithm = plainly(self.algorithm)
            self.site = replace(self.site, algorithm=self.algorithm)
            self.federation = replace(self.federation, algorithm=self.algorithm)
        self._lies, self._who = lies, who

    def played(self) -> Params:
        """The final model of the run, replayed to its end."""
        while self.t < self.simulation.setup.rounds:
            self.step(ManipulatedClients(self.site, self._who, self._falsified))
        return self.model()

    def _falsified(self, t: int, client: int, upload: Tree, down: Tree, here: Mapping[int, Terms]) -> Tree:
        weights, uplink = self.federation.weights, self.algorithm.uplink.at(t, down)
        boost = math.fsum(weights[k] for k in here) / math.fsum(weights[k] for k in here if k in self._who)
        moment = MaliciousView(self.model(), Estimates.of(self.algorithm).change, boost, weights[client])
        return _within(uplink, self._lies.sent(tree.formed(upload), moment))


@dataclass
class ManipulatedClients(Clients):
    """Clients, of which those in `who` send manipulated uploads."""

    inner: Site
    who: frozenset[int]
    falsify: Callable[[int, int, Tree, Tree, Mapping[int, Terms]], Tree]

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Answers:
        return Answers(
            (k, self.falsify(t, k, upload, down, terms) if k in self.who else upload)
            for k, upload in self.inner.each(t, down, terms)
        )


def plainly(algorithm: AnyAlgorithm) -> AnyAlgorithm:
    """The same method with the plain mean instead of robust aggregation."""
    uplink = algorithm.uplink
    if not uplink.robust:
        return algorithm
    return algorithm.behind(uplink=replace(uplink, server=tuple(s for s in uplink.server if s not in uplink.robust)))


def _within(uplink: Uplink, upload: Tree) -> Tree:
    """The upload, scaled down to the largest norm that the uplink admits."""
    bound = uplink.bound(tree.size(upload))
    if not math.isfinite(bound.l2) or private(uplink.client):
        return upload
    order = 1 if bound.l1 <= bound.l2 else 2
    length = float(tree.norm(upload, order))
    return upload if length <= bound.of(order) else tree.scale(bound.of(order) / (length * SLACK), upload)
