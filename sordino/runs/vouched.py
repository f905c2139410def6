"""A receipt that the ledger knows, read without making it again: no model is loaded, nothing is computed."""

from __future__ import annotations

from pathlib import Path

from sordino.errors import RunError
from sordino.ledger.ledger import Ledger
from sordino.receipts import seal
from sordino.receipts.folder import RunFolder
from sordino.receipts.run_files import Receipt


def vouched(folder: Path) -> Receipt | None:
    """The receipt of a run, if its ledger has sealed every word of it and nothing was written there since."""
    mine = RunFolder(folder)
    mine.check()
    try:
        said, made = seal.claimed(folder), mine.receipt()
    except (OSError, ValueError, RunError):
        return None
    if not mine.ledger.exists():
        return None
    with Ledger.as_founded(mine.ledger) as ledger:
        current = ledger.sealed(seal.digest(said)) and ledger.head() == made.ledger_head
    return made if current else None
