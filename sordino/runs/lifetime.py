"""Lifetime privacy cost: the guarantee for a person who is in every run on one ledger."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from sordino.accounting.currency import UNIT
from sordino.accounting.notes import named, of_a_run, simulated
from sordino.accounting.statement import statement
from sordino.errors import LedgerError, RunError
from sordino.ledger.books import Op
from sordino.ledger.ledger import Ledger
from sordino.receipts.run_files import Lifetime, OfClient, OfRun

SQLITE = b"SQLite format 3\0"
ONE_ROW = (
    "a person with several examples is not protected as a whole by a row about one: the receipts of the runs say what "
    "such a person loses in each of them, where the schema declares how many rows one can have"
)
SIMULATED = "at least one of the runs drew its noise from a seed: no guarantee for real data"


def lifetime(place: Path) -> Lifetime:
    """Guarantees and spending over every release on a ledger."""
    with open(place, "rb") as file:
        if file.read(len(SQLITE)) != SQLITE:
            raise RunError(
                f"{place} is neither a run folder nor a ledger",
                why="it is a file of another kind",
                fix="give a run folder (`sordino list` shows those in runs/), or the file that privacy.ledger names",
                code="not-a-run",
            )
    with Ledger.as_founded(place) as ledger:
        entries, delta, currency = list(ledger.entries()), ledger.scope.delta, ledger.scope.currency
        names, balances = ledger.scope.names, ledger.balances()
    by_client = tuple(
        OfClient(
            client=client,
            name=names[client] if client < len(names) else "",
            examples=None,
            participations=None,
            planned=None,
            spent=tuple(part / UNIT for part in balances[str(client)][0]),
            granted=None if (cap := balances[str(client)][1]) is None else tuple(part / UNIT for part in cap),
            epsilon=None,
        )
        for client in sorted(int(name) for name in balances if name.isdecimal())
    )
    if delta is None:
        raise LedgerError(
            f"the ledger {place} has no delta",
            why="a statement needs the delta that the ledger was created with, and this ledger was created without one",
            fix="give a run folder, or a ledger that a private run of sordino created",
            code="ledger-without-delta",
        )
    # answers drawn once are drawn once per run; another run's are other ones, so each carries its run's name
    notes = [of_a_run(entry.note, Op.of(entry.op).run) for entry in entries]
    people = max((k + 1 for note in notes for k in named(note)), default=1)
    people = max(people, len(by_client), 1)
    runs = Counter(Op.of(entry.op).run for entry in entries)
    drawn = simulated(notes)
    rows = statement(notes, people, delta)
    one_row = any(row.unit == "example" and row.finite for row in rows)
    return Lifetime(
        guarantees=tuple(rows),
        simulated=drawn,
        assumptions=(*[SIMULATED] * drawn, *[ONE_ROW] * one_row),
        budget=None,
        runs=tuple(OfRun(run=run, releases=count) for run, count in runs.items()),
        by_client=by_client,
        currency=currency.name,
    )
