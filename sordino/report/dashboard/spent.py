"""What a run has spent, worked out from a copy of its ledger while the run goes on: nobody is kept from writing there,
and nothing is written.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from sordino.errors import SordinoError
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import spending
from sordino.receipts.run_files import Spending

SHARE = 0.05  # of the time of a processor
EVERY = 2.0  # seconds, at least
LISTED = 200  # clients; of more, so many at even distances


@dataclass
class Spent:
    """The newest statement, made anew in a thread of its own where the ledger has changed."""

    folder: Path
    trouble: str = ""  # why there is none, or an old one
    _found: Spending | None = None
    _stamp: object = None
    _next: float = 0.0
    _busy: threading.Thread | None = field(default=None, repr=False)

    @property
    def ledger(self) -> Path:
        return RunFolder(self.folder).ledger

    def look(self) -> Spending | None:
        """What is known by now; the next who asks may know more."""
        if self._busy is not None and not self._busy.is_alive():
            self._busy = None
        if self._busy is None and time.monotonic() >= self._next and (stamp := self._stand()) != self._stamp:
            self._stamp = stamp
            self._busy = threading.Thread(target=self._work_out, daemon=True)
            self._busy.start()
        return self._found

    def _stand(self) -> object:
        found: list[tuple[int, int]] = []
        for path in (self.ledger, _journal(self.ledger)):
            with contextlib.suppress(OSError):
                found.append((path.stat().st_mtime_ns, path.stat().st_size))
        return found

    def _work_out(self) -> None:
        begun = time.monotonic()
        try:
            self._found, self.trouble = spending(self.folder, LISTED), ""
        except (SordinoError, OSError) as error:
            self.trouble = f"what was spent cannot be told now: {error}"
            self._stamp = None  # it is tried again
        now = time.monotonic()
        self._next = now + max(EVERY, (now - begun) / SHARE)


def _journal(ledger: Path) -> Path:
    return Path(f"{ledger}-wal")
