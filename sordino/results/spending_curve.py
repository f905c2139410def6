"""Epsilon over the rounds of a run: each finite guarantee, composed after some of the rounds."""

from __future__ import annotations

from collections.abc import Sequence

from sordino.accounting.claims import Adversary, Neighbours, Status, Unit
from sordino.accounting.facts import Fact
from sordino.accounting.statement import Key, epsilons

POINTS = 12  # of the epsilon curve: each is a full composition


Points = tuple[tuple[int, float], ...]  # (rounds, epsilon)


class Curve(Fact):
    """One finite epsilon after some of the rounds."""

    unit: Unit
    neighbours: Neighbours
    adversary: Adversary
    points: Points
    status: Status


def curve(notes: Sequence[str], population: int, delta: float) -> list[Curve]:
    """Epsilon of every finite row after some of the rounds."""
    points: dict[Key, list[tuple[int, float]]] = {}
    status: dict[Key, Status] = {}
    for stop in stops(len(notes)):
        for subject_, epsilon, how_far in epsilons(notes[:stop], population, delta):
            points.setdefault(subject_, []).append((stop, epsilon))
            status[subject_] = how_far
    return [
        Curve(unit=unit, neighbours=how, adversary=who, points=tuple(found), status=status[unit, how, who])
        for (unit, how, who), found in points.items()
    ]


def stops(rounds: int) -> list[int]:
    """Rounds after which epsilon is composed: a dozen, at even distances."""
    return sorted({max(1, round(rounds * i / POINTS)) for i in range(1, POINTS + 1)}) if rounds else []
