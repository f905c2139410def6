"""The statement of guarantees: one row per (unit, neighbours, adversary), never one lonely epsilon.

Each client's releases compose; clients hold disjoint data, so a row shows the client that lost most. The rows are computed from ledger entries
alone, never from the configuration: what was not recorded was not promised, and what was released raw is infinity.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sordino.ledger.accountants import best, bounds
from sordino.ledger.claims import ADVERSARIES, STATUSES, UNITS, Adversary, Claim, Neighbours, Status, Unit
from sordino.ledger.events import Event, compact, to_json
from sordino.ledger.histories import Histories

Key = tuple[Unit, Neighbours, Adversary]


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


def note(claims: Iterable[tuple[list[int] | str, list[Claim]]]) -> str:
    """What a ledger entry says about its release, as JSON text: who ('*' is every client), and which claims."""
    groups = [{"clients": clients, "claims": [claim.to_json() for claim in made]} for clients, made in claims]
    return json.dumps(groups, sort_keys=True, separators=(",", ":"))


def read_notes(notes: Iterable[str], population: int) -> dict[Key, dict[int, list[Claim]]]:
    """Claims by row and client, from the notes of a ledger's entries. Of all clients with one history only the first is in the result."""
    return {key: row.distinct() for key, row in _histories(notes, population).items()}


def _histories(notes: Iterable[str], population: int) -> dict[Key, Histories]:
    rows: dict[Key, Histories] = {}
    parsed: dict[str, dict[Key, list[Claim]]] = {}
    for text in notes:
        for group in json.loads(text):
            words = json.dumps(group["claims"], sort_keys=True)
            if words not in parsed:
                parsed[words] = _by_row(map(Claim.from_json, group["claims"]))
            clients = range(population) if group["clients"] == "*" else group["clients"]
            for key, claims in parsed[words].items() if clients else ():
                if key not in rows:
                    rows[key] = Histories(population)
                rows[key].add(clients, claims, words)
    return rows


def _by_row(claims: Iterable[Claim]) -> dict[Key, list[Claim]]:
    rows: dict[Key, list[Claim]] = {}
    for claim in claims:
        rows.setdefault((claim.unit, claim.neighbours, claim.adversary), []).append(claim)
    return rows


def statement(notes: Iterable[str], population: int, delta: float) -> list[Row]:
    rows = [_row(key, clients, delta) for key, clients in read_notes(notes, population).items()]
    return sorted(_implied(list(_void(rows)), delta), key=_order)


def of_groups(
    notes: Iterable[str], population: int, delta: float, subject: Key, groups: Sequence[Sequence[int]]
) -> list[Row | None]:
    """The row of one subject for each group of clients: that of the client in it that lost most, None where nobody took part."""
    histories = _histories(notes, population).get(subject)
    found = [histories.distinct(group) if histories is not None else {} for group in groups]
    return [_row(subject, clients, delta) if clients else None for clients in found]


def _order(row: Row) -> tuple[int, int]:
    return UNITS.index(row.unit), ADVERSARIES.index(row.adversary)


def _row(key: Key, clients: Mapping[int, list[Claim]], delta: float) -> Row:
    unit, neighbours, adversary = key
    distinct: dict[str, tuple[Event, int]] = {}
    for claims in clients.values():
        event = compact([claim.event for claim in claims])
        distinct.setdefault(json.dumps(to_json(event), sort_keys=True), (event, len(claims)))
    worst, (event, releases) = max(
        ((best(event, delta, neighbours).epsilon, (event, count)) for event, count in distinct.values()),
        key=lambda pair: pair[0],
    )
    listed = {bound.accountant: bound.epsilon for bound in bounds(event, delta, neighbours)}
    accountant = min(listed, key=lambda name: listed[name])
    made = [claim for claims in clients.values() for claim in claims]
    status = max((claim.status for claim in made), key=STATUSES.index)
    because = tuple(dict.fromkeys(reason for claim in made for reason in claim.because))
    return Row(unit, neighbours, adversary, worst, delta, accountant, listed, status, because, releases, event)


def _void(rows: list[Row]) -> Iterator[Row]:
    """What was released as it is tells everything, whichever change it is held against: beside it a noised release of the same subject promises nothing."""
    open_ = {(row.unit, row.adversary) for row in rows if math.isinf(row.epsilon)}
    for row in rows:
        if (row.unit, row.adversary) not in open_:
            yield row
        elif math.isinf(row.epsilon):
            beside = [
                r for r in rows if (r.unit, r.adversary) == (row.unit, row.adversary) and not math.isinf(r.epsilon)
            ]
            told = tuple(
                f"noised releases beside it: {r.epsilon:.4g} at delta {r.delta:g} ({r.neighbours})" for r in beside
            )
            yield replace(row, because=(*row.because, *told))


def _implied(rows: list[Row], delta: float) -> Iterator[Row]:
    """An example is part of a client, or of a cell: their finite rows also protect examples, where no noise covers these themselves."""
    finite = {(row.unit, row.adversary): row for row in rows if math.isfinite(row.epsilon)}
    for row in rows:
        covering = finite.get(("client", row.adversary)) or finite.get(("cell", row.adversary))
        if row.unit != "example" or math.isfinite(row.epsilon) or covering is None:
            yield row
        elif covering.neighbours == "replace":
            yield replace(covering, unit="example", because=(*covering.because, f"implied by the {covering.unit} row"))
        else:
            epsilon = two_steps(covering.event, delta, covering.neighbours)
            yield replace(
                covering,
                unit="example",
                neighbours="replace",
                epsilon=epsilon,
                accountant=f"{covering.accountant}, two steps of the {covering.unit} row",
                accountants={f"{covering.accountant}, two steps of the {covering.unit} row": epsilon},
                because=(*covering.because, f"implied by the {covering.unit} row (group privacy)"),
            )


@lru_cache(maxsize=64)
def two_steps(event: Event, delta: float, neighbours: Neighbours) -> float:
    """Take a client away, bring it back with one example changed: (2 epsilon, (1 + e^epsilon) delta) (Dwork and Roth 2014, 2.3)."""
    smaller = delta
    for _ in range(40):
        epsilon = best(event, smaller, neighbours).epsilon
        if not epsilon < 300:
            return math.inf
        if (1 + math.exp(epsilon)) * smaller <= delta:
            return 2 * epsilon
        smaller = delta / (1 + math.exp(epsilon * 1.01))
    return math.inf
