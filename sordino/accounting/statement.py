"""The statement of guarantees: one row per (unit, neighbours, adversary), never a single epsilon.

A row composes every release about a client, by claims about its subject or claims that cover it (`composition`).
Clients hold disjoint data, so it shows the client with the largest privacy loss. A unit has no finite row if a release
reveals it, or anything it lies in, without protection. The rows are computed from ledger entries alone, never from the
configuration: what was not recorded was not guaranteed, and what was released raw costs infinity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from pydantic import Field

from sordino.accounting.accountants import of_one_change
from sordino.accounting.claims import ADVERSARIES, STATUSES, UNITS, Neighbours, Status, Subject, Written
from sordino.accounting.composition import (
    Release,
    TotalCost,
    bounded,
    cost,
    covered,
    histories,
    least,
    read_notes,
    subjects,
)
from sordino.accounting.events import NonPrivate
from sordino.accounting.facts import Epsilon, Fact, delta_text, epsilon_text

SCORES = "the server gets this site's exact test scores, as often as it asks"
SEVERAL = "{} examples of one person in one table (group privacy of the example row); more of them elsewhere add to it"
LOUD = "the epsilon of one example is too large for a finite one of {}"
TEST_EXAMPLES = Subject(unit="test example", neighbours="replace", adversary="server")
COMPUTED_FROM = ("accountant", "accountants", "releases", "event")
COARSE = "the sampling tables of the noise are too coarse for this epsilon"


class Guarantee(Subject):
    """Upper bound on what all releases together reveal about one subject: one row of the statement."""

    epsilon: Epsilon = Field(
        description="Everything the adversary sees is at most e^epsilon times as likely with one data set as with its "
        'neighbour. "inf": no guarantee.'
    )
    delta: float = Field(
        ge=0, description="The probability added to that, with the difference between sampled noise and its ideal law."
    )
    accountant: str = Field(
        description="The accountant whose composition of all releases is the smallest: gdp, pure, rdp, pld, or a sum "
        "of several kinds."
    )
    accountants: Mapping[str, Epsilon] = Field(
        description="Epsilon by each accountant that was asked, each an upper bound. Beside gdp, which is exact, the "
        "others are not asked."
    )
    status: Status = Field(
        description="Strength of the proof: `proved`, `conditional` (if `because` is true), `nominal` (a formula "
        "prints it, and it proves nothing), `none`."
    )
    because: tuple[str, ...] = Field(description="Conditions of the guarantee, or reasons why there is none.")
    releases: int = Field(description="Number of releases about the client with the largest privacy loss.")
    event: Written | None = Field(
        description="All that was released about that client: which noise, how often, behind which sampler."
    )
    nominal_epsilon: Epsilon | None = Field(
        default=None,
        description="The number that a publication's formula prints. It proves nothing; `epsilon` is what holds.",
    )
    nominal_composed: Epsilon | None = Field(
        default=None, description="The same formula with all rounds added up, where that is another number."
    )

    @property
    def finite(self) -> bool:
        return math.isfinite(self.epsilon)


class Promised(Guarantee):
    """A guarantee without the events and accountants from which it was computed."""

    accountant: str = ""
    accountants: Mapping[str, Epsilon] = {}
    releases: int = 0
    event: Written | None = None

    @classmethod
    def of(cls, row: Guarantee, **known: object) -> Self:
        kept = {name: value for name, value in row if name not in COMPUTED_FROM}
        return cls.model_validate(kept | known)


class OfPhase(Fact):
    """Privacy guarantees of one phase of a run by itself, with its number of rounds in the ledger."""

    phase: str = Field(description="Name of the phase.")
    releases: int = Field(description="Number of its rounds that the ledger knows.")
    guarantees: tuple[Promised, ...] = Field(description="Guarantees of the phase by itself.")


def statement(
    texts: Iterable[str], population: int, delta: float, check: bool = False, rows_per_key: int = 1
) -> list[Guarantee]:
    """The guarantees that follow from the notes of ledger entries, in the order of units and adversaries. `check`: also
    compute a lower and an upper limit of each exact epsilon, by numerical integration. `rows_per_key`: the declared
    largest number of examples of one person.
    """
    distinct = list(read_notes(texts, population).values())
    released = [release for releases in distinct for release in releases]
    rows: list[Guarantee] = []
    for adversary in ADVERSARIES:
        asked = subjects(released, adversary)
        for unit in dict.fromkeys(subject.unit for subject in asked):
            found = [_row(subject, distinct, delta, check) for subject in asked if subject.unit == unit]
            finite = [row for row in found if row.finite]
            rows += finite or [_void(found, distinct, delta)]
            if unit == "example" and rows_per_key > 1:
                rows += [_person(row.subject, distinct, delta, rows_per_key) for row in finite]
    return sorted(rows, key=_place)


def epsilons(texts: Iterable[str], population: int, delta: float) -> list[tuple[Subject, float, Status]]:
    """The finite epsilons of `statement` that hold at `delta` itself, each with its subject and the status of its
    proof, without the bounds of single accountants.
    """
    clients, found = list(read_notes(texts, population).values()), list[tuple[Subject, float, Status]]()
    released = [release for releases in clients for release in releases]
    for adversary in ADVERSARIES:
        for subject in subjects(released, adversary):
            costs = [cost(releases, subject) for releases in clients]
            worst, ideal, whole = _worst(costs, delta, subject.neighbours)
            epsilon = _epsilon(costs[worst], ideal, subject.neighbours)
            if whole <= delta and math.isfinite(epsilon):
                status = max((each.status for each in costs), key=STATUSES.index)
                found.append((subject, epsilon, status))
    return sorted(found, key=lambda one: _place(one[0]))


def of_groups(
    texts: Iterable[str], population: int, delta: float, subject: Subject, groups: Sequence[Sequence[int]]
) -> list[Guarantee | None]:
    """Guarantee for one subject in each group of clients: that of the client in the group with the largest privacy
    loss. None for a group in which nobody took part.
    """
    found = histories(texts, population)
    distinct = [list(found.distinct(group).values()) for group in groups]
    return [_row(subject, releases, delta) if releases else None for releases in distinct]


def _place(subject: Subject) -> tuple[int, int]:
    return UNITS.index(subject.unit), ADVERSARIES.index(subject.adversary)


def _row(asked: Subject, clients: Sequence[Sequence[Release]], delta: float, check: bool = False) -> Guarantee:
    """Guarantee for one subject, at the client with the largest privacy loss: clients hold disjoint data, so their
    losses do not add up.
    """
    costs = [cost(releases, asked) for releases in clients]
    place, ideal, whole = _worst(costs, delta, asked.neighbours)
    worst, count = costs[place], len(clients[place])
    because = tuple(dict.fromkeys(reason for each in costs for reason in each.because))
    status = max((each.status for each in costs), key=STATUSES.index)
    if not worst.parts:
        never = tuple(dict.fromkeys(reason for each in costs if not each.parts for reason in each.because))
        return _nothing(asked, delta, status, never, count)
    if whole >= 1:
        return _nothing(asked, delta, "none", (COARSE,), count)
    bound = bounded(worst.parts, ideal, asked.neighbours, check)
    return Guarantee(
        **dict(asked),
        epsilon=bound.epsilon,
        delta=whole,
        accountant=bound.accountant,
        accountants=bound.accountants,
        status=status,
        because=because,
        releases=count,
        event=worst.event,
    )


def _person(example: Subject, clients: Sequence[Sequence[Release]], delta: float, rows: int) -> Guarantee:
    """Guarantee for all examples of one person, whichever clients hold them, by group privacy: the examples change one
    after another, each at most at the cost of one example at the client with the largest privacy loss (Dwork and Roth
    2014, theorem 2.2).
    """
    found: dict[float, Guarantee] = {}

    def promise(at: float) -> tuple[float, float]:
        found[at] = _row(example, clients, at)
        return found[at].epsilon, found[at].delta

    epsilon, at = of_one_change(promise, delta, rows)
    one = found[at]
    if not math.isfinite(epsilon):
        return _nothing(example.beside(unit="person"), delta, "none", (LOUD.format(rows),), one.releases)
    name = f"{one.accountant}, {rows} steps of the example row"
    return one.beside(
        unit="person",
        epsilon=rows * epsilon,
        delta=delta,
        accountant=name,
        accountants={name: rows * epsilon},
        because=(*one.because, SEVERAL.format(rows)),
    )


def lacking(epsilon: float, drift: float) -> float:
    """The part of delta that imperfect noise uses up: (1 + e^epsilon) drift, if the noise drawn differs from its ideal
    law by `drift` in total variation.
    """
    return (1 + math.exp(min(epsilon, 700.0))) * drift if drift else 0.0


def _worst(costs: Sequence[TotalCost], delta: float, neighbours: Neighbours) -> tuple[int, float, float]:
    """The index of the client with the largest privacy loss, the delta at which its noise is priced, and the delta of
    the guarantee. Real noise differs a little from its ideal law and so uses up a part of delta (`lacking`); noise is
    priced at the rest. Where no rest remains, the delta of the guarantee is larger than the one asked for.
    """

    def most(at: float) -> tuple[int, float]:
        found = [_epsilon(each, at, neighbours) for each in costs]
        epsilon = max(found)
        return found.index(epsilon), epsilon

    drift, ideal = max(each.drift for each in costs), delta
    place, epsilon = most(delta)
    for _ in range(8):
        if ideal + lacking(epsilon, drift) <= delta:
            return place, ideal, delta
        ideal = delta - lacking(epsilon, drift) * (1 + 1e-6)  # a little less: its epsilon is a little larger
        if not ideal > 0:
            break
        place, epsilon = most(ideal)
    place, epsilon = most(delta)
    return place, delta, delta + lacking(epsilon, drift)


def unspent(asked: Subject, accountant: str) -> Guarantee:
    """Guarantee for a subject about which nothing was released: epsilon 0."""
    return _nothing(asked, 0.0, "proved", (), 0).beside(epsilon=0.0, accountant=accountant, accountants={}, event=None)


def beside_scores(rows: Sequence[Guarantee], delta: float) -> list[Guarantee]:
    """Guarantees of a run in which clients also send the server scores of models on their test examples, without noise:
    none for these, none against the server for a client or a person, whose examples they may be, all others unchanged.
    """
    guarantees = [
        _nothing(row.subject, delta, "none", (SCORES,), row.releases)
        if row.unit in ("client", "person") and row.adversary == "server"
        else row
        for row in rows
    ]
    return [*guarantees, _nothing(TEST_EXAMPLES, delta, "none", (SCORES,), 0)]


def _nothing(asked: Subject, delta: float, status: Status, because: tuple[str, ...], releases: int) -> Guarantee:
    """A guarantee with infinite epsilon, so none at all, and the reasons for that."""
    return Guarantee(
        **dict(asked),
        epsilon=math.inf,
        delta=delta,
        accountant="none",
        accountants={"none": math.inf},
        status=status,
        because=because,
        releases=releases,
        event=NonPrivate("; ".join(because)),
    )


def _epsilon(spent: TotalCost, delta: float, neighbours: Neighbours) -> float:
    return least(spent.parts, delta, neighbours) if spent.parts else math.inf


def _void(found: Sequence[Guarantee], clients: Sequence[Sequence[Release]], delta: float) -> Guarantee:
    """The row of a unit without any guarantee, because one release reveals it. The epsilon of its other, noised
    releases is mentioned among the reasons; it is no guarantee."""
    spoken = {claim for releases in clients for release in releases for claim in release}
    open_ = {claim.subject for claim in spoken if not claim.finite}
    bare = [row for row in found if row.subject in open_]
    row, beside = (bare or found)[0], []
    for other in found:
        asked = other.subject
        noised = [[release for release in releases if covered(release, asked)] for releases in clients]
        alone = _row(asked, [releases for releases in noised if releases], delta) if any(noised) else other
        if alone.finite:
            held = f"{epsilon_text(alone.epsilon)} at delta {delta_text(delta)} ({asked.neighbours})"
            beside.append(f"noised releases beside it: {held}")
    return row.beside(because=(*row.because, *beside))


def strongest(rows: Sequence[Guarantee]) -> Guarantee | None:
    """The finite guarantee with the largest unit, and among these with the strongest adversary; None where none is
    finite.
    """
    finite = [row for row in rows if row.finite]
    return min(finite, key=lambda r: (-UNITS.index(r.unit), ADVERSARIES.index(r.adversary)), default=None)
