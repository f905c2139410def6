"""Canary scores for each guarantee: which kind of canary attacks it, and its scores over all replays and phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from sordino import keys
from sordino.accounting.claims import Subject
from sordino.audits.canaries import Canaries, CanaryClients, CanaryDirections, CanaryExamples, CanaryRowsOfSums
from sordino.audits.canary_images import CanaryImageRounds, CanaryImages
from sordino.audits.canary_rounds import CanaryRounds, CanaryScores
from sordino.audits.replay import BEGINNING, PhaseStart
from sordino.privacy.readers.class_sums import ClassSums
from sordino.privacy.readers.responses import Responses
from sordino.runs.simulation import Simulation

ROWS = ("example", "cell", "image", "pixel")  # units that a client holds several of


def placed(simulation: Simulation, subject: Subject, wanted: int, key: keys.Key) -> Canaries:
    kind: type[Canaries] = CanaryClients
    if subject.unit in ROWS:
        answered = isinstance(simulation.setup.algorithm.read, Responses)
        kind = CanaryImages if answered else CanaryExamples
    return kind(simulation, subject, wanted, key)


class ScoredCanaries(NamedTuple):
    """Canaries of all replays that took part in any release: their scores, and for each one its total
    weight in the releases.
    """

    scores: Tensor
    there: Tensor  # was it present?
    weight: Tensor
    rounds: Tensor  # number of those in which it took part
    owners: Tensor  # the client that each is, or that holds it

    def of(self, chosen: Tensor) -> ScoredCanaries:
        """The chosen canaries alone."""
        return ScoredCanaries(*(each[chosen] for each in self))


def scores(
    canaries: Canaries, weak: float, early: Sequence[CanaryDirections] = (), start: PhaseStart = BEGINNING
) -> ScoredCanaries:
    """Score of each canary of all replays over all phases. `start`: the start of the training if the phases before it
    have no canaries.
    """
    found = []
    for number in range(canaries.replays):
        seen, coins = replayed(canaries, number, weak, early, start)
        every = ScoredCanaries(seen.each, coins, seen.weight, seen.rounds, torch.tensor(canaries.owners))
        found.append(every.of(seen.exposed))
    return ScoredCanaries(*map(torch.cat, zip(*found, strict=True)))


def replayed(
    canaries: Canaries, number: int, weak: float, early: Sequence[CanaryDirections], start: PhaseStart
) -> tuple[CanaryScores, Tensor]:
    """Scores of the canaries in a replay, and their coins."""
    if isinstance(canaries, CanaryImages):
        images = CanaryImageRounds(canaries, number, weak, start)
        return images.scores(), images.coins
    assert isinstance(canaries, CanaryDirections)
    phases = list[CanaryScores]()
    for here in early:
        phase = CanaryRounds(here, number, weak, start)
        phases.append(phase.scores())
        start = phase.end
    rounds = CanaryRounds(canaries, number, weak, start)
    return rounds.scores().beside(phases), rounds.coins


def earlier(canaries: Canaries) -> list[CanaryDirections]:
    """The same canaries in the phases before the training; empty if any of these phases cannot hold them."""
    found = list[CanaryDirections]()
    if not isinstance(canaries, CanaryDirections):
        return found
    for phase in canaries.simulation.preparation:
        here = replace(canaries, simulation=phase)
        if isinstance(canaries, CanaryExamples) and isinstance(phase.setup.algorithm.read, ClassSums):
            here = CanaryRowsOfSums(phase, canaries.subject, canaries.wanted, canaries.key)
        found.append(here)
    return [] if any(here.unfit() for here in found) else found


class Replays:
    """Replays of the run with canaries at all clients, run once for each factor by which noise is made too small."""

    def __init__(self, canaries: Canaries, start: PhaseStart) -> None:
        self.canaries, self._start, self.unfit = canaries, start, canaries.unfit()
        self._played: dict[float, ScoredCanaries] = {}

    def room(self, members: Sequence[int] | None) -> int:
        """Number of canaries at these clients, over all replays; None: at all clients."""
        owners, chosen = self.canaries.owners, None if members is None else set(members)
        return self.canaries.replays * sum(chosen is None or k in chosen for k in owners)

    @cached_property
    def early(self) -> list[CanaryDirections]:
        return [] if self.unfit else earlier(self.canaries)

    def told(self, weak: float, members: Sequence[int] | None) -> ScoredCanaries:
        if weak not in self._played:
            self._played[weak] = scores(self.canaries, weak, self.early, self._start)
        found = self._played[weak]
        return found if members is None else found.of(torch.isin(found.owners, torch.tensor(members)))
