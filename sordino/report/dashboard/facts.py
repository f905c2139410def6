"""How a run stands, as far as its reader may see it: from files alone, however often somebody asks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

from sordino.branches import part
from sordino.errors import SordinoError
from sordino.metrics.rows import PreparedRow, RoundRow
from sordino.planning.agreement import Agreement
from sordino.receipts.folder import RunFolder
from sordino.receipts.run_files import Spending
from sordino.report.dashboard.spent import Spent
from sordino.runs.setup import Whole
from sordino.runs.watched import SiteNow, events, public_events, sites, state
from sordino.transport.events import RunEvent

EVERY = 0.5  # seconds between two looks, and ten times what a look takes


class SiteClient(Protocol):
    """A client that sites have agreed on."""

    @property
    def site(self) -> str: ...
    @property
    def name(self) -> str: ...


class Now(NamedTuple):
    """A run at one moment."""

    state: str
    rows: Sequence[RoundRow] = ()
    events: Sequence[RunEvent] = ()
    sites: Mapping[str, SiteNow] | None = None  # None: there are none, or nothing that this reader may know
    before: PreparedRow | None = None  # the last round of a preparation
    spending: Spending | None = None
    trouble: str = ""  # why something is not shown

    @property
    def round(self) -> int:
        return self.rows[-1].round if self.rows else 0


@dataclass
class Watched:
    """A run folder that is looked at. `evaluator`: with what lies in its private folder."""

    folder: Path
    evaluator: bool = False
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _stamp: object = None
    _now: Now = Now("")
    _next: float = 0.0

    @cached_property
    def run(self) -> RunFolder:
        return RunFolder(self.folder)

    @cached_property
    def whole(self) -> Whole:
        agreed = Agreement.read(self.folder)
        return Whole(self.run.experiment, agreed.public, agreed.coordinates)

    @cached_property
    def real(self) -> bool:
        """Is there something that only the evaluator may see?"""
        return self.run.experiment.privacy.real

    @cached_property
    def sees_all(self) -> bool:
        return self.evaluator or not self.real

    @cached_property
    def hides(self) -> bool:
        """Must this reader not learn who takes part in which round?"""
        return not self.sees_all and self.whole.hides_cohorts

    @cached_property
    def of_site(self) -> bool:
        """Is it the folder of one site?"""
        return self.run.environment.clients is not None

    @cached_property
    def clients(self) -> Sequence[SiteClient]:
        """Those that sites have agreed on; none in a simulation."""
        found: Sequence[SiteClient] = part("sites", "agreed_clients")(self.folder) if self.run.environment.site else ()
        return found

    @cached_property
    def spent(self) -> Spent:
        return Spent(self.folder)

    def look(self) -> Now:
        """How it stands. Whoever asks again at once gets the same answer."""
        with self._turn:
            if (begun := time.monotonic()) >= self._next:
                alive, spending = self.run.in_use, self.spent.look()
                stamp = (alive, spending, *map(_stamp, self._files))
                if stamp != self._stamp:
                    self._now, self._stamp = self._read(alive, spending), stamp
                now = time.monotonic()
                self._next = now + max(EVERY, 10 * (now - begun))
            return self._now

    @property
    def _files(self) -> Sequence[Path]:
        run, own = self.run, RunFolder(self.run.private)
        public = run.metrics_file, run.events_file, run.preparation_file, run.receipt_file, run.log_file
        return (*public, own.metrics_file, own.events_file) if self.sees_all else public

    def _read(self, alive: bool, spending: Spending | None) -> Now:
        """Where a file cannot be read, what was seen before stays, with a word on why."""
        try:
            return self._seen(alive, spending)
        except SordinoError as error:
            return self._now._replace(trouble=f"{error.what}: {error.why}" if error.why else error.what)

    def _seen(self, alive: bool, spending: Spending | None) -> Now:
        run = self.run
        all_rows, all_events = run.public_metrics(), (events if self.sees_all else public_events)(run)
        receipt = None
        if not alive and run.receipt_file.exists():
            receipt = run.receipt()
            receipt = None if receipt.rounds < len(all_rows) else receipt
        rows = run.metrics() if self.sees_all else all_rows
        if self.hides and self.of_site:
            rows = []  # it has a row for each round that it was drawn for
        return Now(
            state(run, alive, all_rows, all_events, receipt),
            rows,
            all_events,
            None if self.hides or not run.environment.site else sites(all_events, alive),
            next(reversed(run.prepared()), None) if not self.hides else None,
            spending,
            self.spent.trouble,
        )


def _stamp(path: Path) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_mtime_ns, found.st_size
    return None
