"""The statement of guarantees: one row per (unit, neighbours, adversary), never one lonely epsilon.

A row counts every release about a client, each in its own words or in those that cover it (`covering`); clients hold
disjoint data, so it shows the client
that lost most. A release that tells everything about a unit, or about anything that the unit lies in, leaves no finite
row about it. The rows are computed
from ledger entries alone, never from the configuration: what was not recorded was not promised, and what was released
raw is infinity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sordino.ledger.claims import ADVERSARIES, STATUSES, UNITS, Adversary, Claim, Neighbours, Status, Unit
from sordino.ledger.covering import TotalCost, bounded, cost, covered, subjects
from sordino.ledger.events import Event, NonPrivate, leaves, to_json
from sordino.ledger.notes import Release, histories, read_notes

Key = tuple[Unit, Neighbours, Adversary]
COARSE = "what the tables of the noise lack of the ideal law is more than this epsilon can bear"


@dataclass(frozen=True)
class Row:
    unit: Unit
    neighbours: Neighbours
    adversary: Adversary
    epsilon: float
    delta: float
    accountant: str
    accountants: Mapping[str, float]
    status: Status
    because: tuple[str, ...]
    releases: int  # of the client that lost most
    event: Event  # everything released about that client

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "epsilon": _number(self.epsilon),
            "accountants": {name: _number(value) for name, value in self.accountants.items()},
            "because": list(self.because),
            "event": to_json(self.event),
        }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"  # JSON has no infinity


def statement(texts: Iterable[str], population: int, delta: float) -> list[Row]:
    """From the notes of ledger entries, in the order of units and adversaries."""
    distinct = list(read_notes(texts, population).values())
    released = [release for releases in distinct for release in releases]
    rows: list[Row] = []
    for adversary in ADVERSARIES:
        asked = subjects(released, adversary)
        for unit in dict.fromkeys(unit for unit, _ in asked):
            found = [_row((unit, how, adversary), distinct, delta) for part, how in asked if part == unit]
            finite = [row for row in found if math.isfinite(row.epsilon)]
            rows += finite or [_void(found, distinct, delta)]
    return sorted(rows, key=_order)


def of_groups(
    texts: Iterable[str], population: int, delta: float, subject: Key, groups: Sequence[Sequence[int]]
) -> list[Row | None]:
    """The row of one subject for each group of clients: that of the client in it that lost most, None where nobody took
    part."""
    found = histories(texts, population)
    distinct = [list(found.distinct(group).values()) for group in groups]
    return [_row(subject, releases, delta) if releases else None for releases in distinct]


def _order(row: Row) -> tuple[int, int]:
    return UNITS.index(row.unit), ADVERSARIES.index(row.adversary)


def _row(key: Key, clients: Sequence[Sequence[Release]], delta: float) -> Row:
    """Of the client that lost most; clients hold data of their own, so their losses do not add up."""
    unit, neighbours, adversary = key
    costs = [(cost(releases, (unit, neighbours), adversary), len(releases)) for releases in clients]
    worst, count = max(costs, key=lambda one: _epsilon(one[0], delta, neighbours))
    because = tuple(dict.fromkeys(reason for each, _ in costs for reason in each.because))
    status = max((each.status for each, _ in costs), key=STATUSES.index)
    if not worst.parts:
        never = tuple(dict.fromkeys(reason for each, _ in costs if not each.parts for reason in each.because))
        return Row(
            *key, math.inf, delta, "none", {"none": math.inf}, status, never, count, NonPrivate("; ".join(never))
        )
    bound = bounded(worst.parts, delta, neighbours)
    # what the noise that was drawn lacks of the ideal law, on both sides
    lacking = (1 + math.exp(min(bound.epsilon, 700.0))) * worst.drift if worst.drift else 0.0
    if delta + lacking >= 1:
        return Row(*key, math.inf, delta, "none", {"none": math.inf}, "none", (COARSE,), count, NonPrivate(COARSE))
    return Row(
        *key, bound.epsilon, delta + lacking, bound.accountant, bound.accountants, status, because, count, worst.event
    )


def _epsilon(spent: TotalCost, delta: float, neighbours: Neighbours) -> float:
    return bounded(spent.parts, delta, neighbours).epsilon if spent.parts else math.inf


def _void(found: Sequence[Row], clients: Sequence[Sequence[Release]], delta: float) -> Row:
    """Nothing holds for this unit, under whichever relation: one release tells everything. What the noised ones beside
    it cost alone is a reason, no promise."""
    spoken = {claim for releases in clients for release in releases for claim in release}
    bare = [row for row in found if any(_open(claim) for claim in spoken if _subject(claim) == _subject(row))]
    row, beside = (bare or found)[0], []
    for other in found:
        unit, how, adversary = _subject(other)
        noised = [[r for r in releases if covered(r, (unit, how), adversary)] for releases in clients]
        alone = (
            _row((unit, how, adversary), [releases for releases in noised if releases], delta) if any(noised) else other
        )
        if math.isfinite(alone.epsilon):
            beside.append(f"noised releases beside it: {alone.epsilon:.4g} at delta {delta:g} ({how})")
    return replace(row, because=(*row.because, *beside))


def _subject(of: Row | Claim) -> Key:
    return of.unit, of.neighbours, of.adversary


def _open(claim: Claim) -> bool:
    return any(isinstance(leaf, NonPrivate) for leaf in leaves(claim.event))
