"""Composition of releases: from the claims of single releases to the cost of all of them to one subject.

A subject is a unit under a relation: an example that is replaced, a client whose contribution is counted or not. A
release may have claims about several. Its cost to a subject follows from a claim about that subject, or from a claim
that covers it:

    a larger unit     an example lies in a cell, a cell in a client; any change within a unit is a change of the unit,
                      whether an example is replaced or left out
    another relation  a replacement is two steps: leave the unit out, then put in another (Dwork and Roth 2014, 2.3)

Never from a smaller unit (a client is many examples), and never from `replace` to `zero_out` of the same unit, or of a
part of anything but a client: "nothing" is not a value that replaces it. A release without a claim about a subject, and
without one that covers it, has an infinite cost to it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from sordino.accounting.accountants import EXACT, EpsilonBound, best, checked, needed
from sordino.accounting.claims import STATUSES, UNITS, Adversary, Claim, Neighbours, Status, Subject, Unit
from sordino.accounting.events import Event, Repeat, Together, compact
from sordino.accounting.notes import Release


class CountedPart(NamedTuple):
    """Releases with claims about one unit and relation, composed into one event. `steps`: how many changes of that unit
    make one change of the subject asked about.
    """

    unit: Unit
    neighbours: Neighbours
    steps: int
    event: Event


class TotalCost(NamedTuple):
    """Total privacy cost to one subject of all releases about one client. `parts` is empty if that cost is infinite."""

    parts: tuple[CountedPart, ...]
    status: Status
    because: tuple[str, ...]
    drift: float = 0.0

    @property
    def event(self) -> Event:
        return self.parts[0].event if len(self.parts) == 1 else Together(tuple(part.event for part in self.parts))


class Bounded(NamedTuple):
    epsilon: float
    accountant: str
    accountants: dict[str, float]


def steps(claimed: Subject, asked: Subject) -> int | None:
    """Number of changes of the claimed subject that make up one change of the asked one: 1, or 2 by group privacy. None
    where the claim says nothing about the asked subject.
    """
    unit, how, part, change = claimed.unit, claimed.neighbours, asked.unit, asked.neighbours
    if (unit, how) == (part, change):
        return 1
    if "person" in (unit, part):  # several clients may hold its examples, and how many they are, no release says
        return None
    if unit == part:
        return 2 if how == "zero_out" else None
    if UNITS.index(unit) < UNITS.index(part) or ((how, change) == ("replace", "zero_out") and unit != "client"):
        return None
    return 1 if how == "replace" else 2


def subjects(releases: Iterable[Release], adversary: Adversary) -> list[Subject]:
    """All subjects that the releases have claims about, in the order in which they first appear."""
    spoken = (claim.subject for release in releases for claim in release if claim.adversary == adversary)
    return list(dict.fromkeys(spoken))


def cost(releases: Sequence[Release], asked: Subject) -> TotalCost:
    """Total privacy cost to one subject of all releases about one client."""
    parts: dict[tuple[Unit, Neighbours, int], list[Event]] = {}
    open_: list[Claim] = []
    status: Status = STATUSES[0]
    because: dict[str, None] = {}
    drift, silent = 0.0, False
    for release, count in Counter(releases).items():
        chosen = _cheapest(release, asked)
        if chosen is None:
            larger = [
                claim
                for claim in _claims(release, asked.adversary)
                if UNITS.index(claim.unit) >= UNITS.index(asked.unit) and not claim.finite
            ]
            silent = silent or not larger
            open_ += larger
            continue
        subject, number, claims = chosen
        together = claims[0].event if len(claims) == 1 else Together(tuple(claim.event for claim in claims))
        spent = parts.setdefault((subject.unit, subject.neighbours, number), [])
        spent.append(Repeat(together, count) if count > 1 else together)
        status = max((status, *(claim.status for claim in claims)), key=STATUSES.index)
        drift += count * math.fsum(claim.drift for claim in claims)
        because |= dict.fromkeys(reason for claim in claims for reason in claim.because)
        if number > 1 or subject.unit != asked.unit:
            said = " (group privacy)" if number > 1 else ""
            because |= {f"implied by the {subject.unit} row{said}": None}
    if open_ or silent:
        reasons = dict.fromkeys(reason for claim in open_ for reason in claim.because)
        if silent:
            reasons[f"a release promises nothing about the {asked.unit} under {asked.neighbours}"] = None
        weakest = [claim.status for claim in open_ if claim.subject == asked] or ["none"]
        return TotalCost((), max(weakest, key=STATUSES.index), tuple(reasons))
    made = tuple(CountedPart(*key, compact(events)) for key, events in parts.items())
    return TotalCost(made, status, tuple(because), drift)


def covered(release: Release, asked: Subject) -> bool:
    """True where the release, taken alone, guarantees something about the subject."""
    return _cheapest(release, asked) is not None


def _claims(release: Release, adversary: Adversary) -> list[Claim]:
    return [claim for claim in release if claim.adversary == adversary]


def _cheapest(release: Release, asked: Subject) -> tuple[Subject, int, list[Claim]] | None:
    """The claims of a release that bound its cost to the asked subject: all about one subject, the one with the fewest
    `steps` to the asked one. Returns that subject, the number of steps and the claims; None if no claim covers the
    asked subject.
    """
    by: dict[Subject, list[Claim]] = {}
    for claim in _claims(release, asked.adversary):
        by.setdefault(claim.subject, []).append(claim)
    found = [
        (number, UNITS.index(subject.unit), subject, claims)
        for subject, claims in by.items()
        if (number := steps(subject, asked)) is not None and all(claim.finite for claim in claims)
    ]
    if not found:
        return None
    number, _, subject, claims = min(found, key=lambda one: (one[2] != asked, *one[:2]))
    return subject, number, claims


@lru_cache(maxsize=4096)
def bounded(parts: tuple[CountedPart, ...], delta: float, neighbours: Neighbours, check: bool = False) -> Bounded:
    """Epsilon of all `parts` (composed releases) together, and the bound by each accountant. `check`: also a lower and
    an upper limit of an exact one, by numerical integration.
    """
    if len(parts) == 1:
        return _alone(parts[0], delta, check)
    summed = math.fsum(_alone(part, delta / len(parts), check).epsilon for part in parts)
    listed = {f"sum of {len(parts)} kinds of claims": summed}
    stretched = [part.event if part.steps == 1 else part.event.stretched(part.steps) for part in parts]
    if all(event is not None for event in stretched):
        together = compact([event for event in stretched if event is not None])
        listed |= _by_accountant(together, delta, neighbours, check)
    accountant = _tightest(listed)
    return Bounded(listed[accountant], accountant, listed)


@lru_cache(maxsize=4096)
def least(parts: tuple[CountedPart, ...], delta: float, neighbours: Neighbours) -> float:
    """Epsilon of all `parts` (composed releases) together, without the list of each accountant's bound that `bounded`
    adds: for a single part this is faster.
    """
    if len(parts) == 1 and parts[0].steps == 1:
        return best(parts[0].event, delta, parts[0].neighbours).epsilon
    return bounded(parts, delta, neighbours).epsilon


def _by_accountant(event: Event, delta: float, neighbours: Neighbours, check: bool) -> dict[str, float]:
    """Epsilon of an event by each accountant that applies. `check`: also a lower and an upper limit of an exact one, by
    numerical integration."""
    asked: list[EpsilonBound] = (checked if check else needed)(event, delta, neighbours)
    return {bound.accountant: bound.epsilon for bound in asked}


def _tightest(listed: dict[str, float]) -> str:
    """Name of the accountant whose bound is used: the exact one if there is one, else that of the smallest bound."""
    return EXACT if EXACT in listed else min(listed, key=lambda name: listed[name])


def _alone(part: CountedPart, delta: float, check: bool) -> Bounded:
    unit, neighbours, number, event = part
    listed = _by_accountant(event, delta, neighbours, check)
    accountant = _tightest(listed)
    if number == 1:
        return Bounded(listed[accountant], accountant, listed)
    name = f"{accountant}, two steps of the {unit} row"
    epsilon = two_steps(event, delta, neighbours)
    return Bounded(epsilon, name, {name: epsilon})


@lru_cache(maxsize=64)
def two_steps(event: Event, delta: float, neighbours: Neighbours) -> float:
    """The epsilon of group privacy for two changes in a row, such as removing a client and adding it again with one
    example changed: (2 epsilon, (1 + e^epsilon) delta) (Dwork and Roth 2014, 2.3).
    """
    return 2 * of_one_change(lambda smaller: (best(event, smaller, neighbours).epsilon, smaller), delta, 2)[0]


def of_one_change(promise: Callable[[float], tuple[float, float]], delta: float, number: int) -> tuple[float, float]:
    """Group privacy, inverted: the (epsilon, delta) that one change must have, so that `number` changes in a row are
    (number epsilon, `delta`)-private. Deltas grow: each later change multiplies the earlier ones by e^epsilon.
    `promise` maps a wanted delta to the epsilon of one change and the delta at which it holds. Epsilon is infinite if
    no delta suffices."""
    smaller = delta
    for _ in range(40):
        epsilon, held = promise(smaller)
        if not epsilon * (number - 1) < 300:
            break
        if math.fsum(math.exp(i * epsilon) for i in range(number)) * held <= delta:
            return epsilon, smaller
        smaller = delta / math.fsum(math.exp(i * epsilon * 1.01) for i in range(number))
    return math.inf, delta
