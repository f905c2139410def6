"""A ledger that several runs share (`privacy.ledger`), and the key of their data beside it, as private as the ledger.

Runs on one ledger identify their data by digests under one key. While a ledger is being created its key is a draft,
locked by the creating process, and renamed once the ledger exists. So a key without a ledger says that the ledger is
lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sordino.errors import LedgerError
from sordino.ledger import storage
from sordino.ledger.files import sync
from sordino.receipts import private
from sordino.runs.population import Population
from sordino.runs.simulation import Simulation

FIX = (
    "put the file back from a copy: every run on the ledger keeps the key as data.key in its folder. Where there is "
    "none, begin a ledger under another name; what was spent on this one counts beside it"
)


def joined(simulation: Simulation, place: Path, dry: bool) -> Simulation:
    """The simulation under the key of its shared ledger, which is created where it is new, and refused where it is of
    other data or other clients. `dry`: nothing is touched.
    """
    if dry and not place.exists():
        storage.check_never_there(place)
        return simulation
    with key_of(place) as key:
        known = simulation.population
        joint = replace(simulation, population=Population.like(known, known.experiment, key))
        joint.setup.federation(joint.home, joint.dataset, place, "before", reading=dry).ledger.close()
    return joint


@contextmanager
def key_of(ledger: Path) -> Iterator[bytes]:
    """Context with the key of the data on a shared ledger. Where there is no ledger yet, the key is locked, so that one
    process alone creates the ledger.
    """
    key, draft = Path(f"{ledger}.key"), Path(f"{ledger}.key-new")
    if ledger.exists() and key.exists():
        yield private.kept(key, private.KEY, FIX)
        return
    storage.check_directory(ledger)
    with storage.refusals(), _held(draft) as file:
        try:
            if not ledger.exists():
                storage.check_never_there(ledger)
                os.truncate(file, 0)
                os.write(file, private.new_key())
                os.fsync(file)
            elif not key.exists() and not os.fstat(file).st_size:
                why = "the ledger names its data under this key: no run could show that its data are the same"
                raise LedgerError(f"there is no {key}", why=why, fix=FIX, code="ledger-without-key")
            yield private.kept(key if key.exists() else draft, private.KEY, FIX)
            if not key.exists():
                os.rename(draft, key)
                sync(key.parent)
        finally:
            if key.exists() or not (ledger.exists() and os.fstat(file).st_size):  # else it will get its name later
                draft.unlink(missing_ok=True)


@contextmanager
def _held(draft: Path) -> Iterator[int]:
    """The draft of a key, locked for this process; opened again where another process has renamed or removed it
    meanwhile.
    """
    while True:
        file = os.open(draft, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            storage.wait_for(file)
            if storage.identity(draft) == (os.fstat(file).st_dev, os.fstat(file).st_ino):
                yield file
                return
        finally:
            os.close(file)
