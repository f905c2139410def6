"""events.jsonl: log of a run between sites, with times. Lines are only appended.

With real noise the whole log lies in the private folder, as metrics do (see `runs.rounds`). The part that may be
shown has no free texts, which are sites' own words; and with a hidden cohort nothing that tells who was drawn, or who
answered.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sordino.errors import SordinoError
from sordino.ledger.files import append_line
from sordino.receipts.folder import RunFolder
from sordino.runs.setup import RunSetup
from sordino.sites.connecting import Says, Standing
from sordino.transport.message import Carrier
from sordino.transport.run_events import OF_NOBODY, OF_OTHERS, RunEvent, What

LOOK = 0.5  # seconds between two checks which sites are connected
LONGEST = 5000  # characters of a reason
FEW, REFILL = 20, 60.0  # log lines that others may cause in a burst; seconds until one more is allowed


@dataclass
class EventLog:
    """Event log, which also passes events on to a listener. `real`: the run has real noise; `hidden`: its cohort is
    hidden.
    """

    folder: Path
    real: bool
    hidden: bool
    hears: Callable[[RunEvent], None] = lambda event: None
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _lines: float = FEW
    _since: float = field(default_factory=lambda: time.monotonic())
    _more: int = 0

    @classmethod
    def of(cls, folder: Path, whole: RunSetup, hears: Callable[[RunEvent], None] = lambda event: None) -> EventLog:
        real = whole.phases[-1].experiment.privacy.real
        return cls(folder, real, whole.hides_cohorts, hears)

    def __call__(self, event: RunEvent) -> None:
        """Log an event, from any thread. A log that cannot be written does not end the run."""
        run = RunFolder(self.folder)
        with self._turn:
            found = self._bounded(event) if event.event in OF_OTHERS else event
            if found is None:
                return
            # others may have written the reason: a lone surrogate, which JSON can say, would make the log unreadable
            why = found.why[:LONGEST].encode(errors="replace").decode()
            event = found.beside(
                at=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"), why=why
            )
            with contextlib.suppress(OSError):
                if self.real:
                    append_line(RunFolder(run.private).events_file, json.dumps(event.to_json()), 0o600)
                if (public := shown(event, self.hidden) if self.real else event) is not None:
                    append_line(run.events_file, json.dumps(public.to_json()))
            self.hears(event)

    def _bounded(self, event: RunEvent) -> RunEvent | None:
        """Limit the log lines that other parties can cause: `FEW` at once, then one a minute. Returns the event with
        the number of those left out before it, or None at the limit."""
        now = time.monotonic()
        self._lines = min(FEW, self._lines + (now - self._since) / REFILL)
        self._since = now
        if self._lines < 1:
            self._more += 1
            return None
        self._lines -= 1
        more, self._more = self._more, 0
        return event.beside(more=more)

    @contextmanager
    def kept(self, sites: Iterable[str] = ()) -> Iterator[None]:
        """Log the start of a process, and the error that ends it. `sites`: sites that a server waits for."""
        self(RunEvent(event="started", sites=tuple(sites)))
        try:
            yield
        except SordinoError as error:
            self(RunEvent(event="stopped", why=error.what))
            raise

    @contextmanager
    def watching(self, carrier: Carrier) -> Iterator[None]:
        """Log sites that connect and disconnect, in a thread of its own."""
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(carrier, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def standing(self, says: Says) -> Says:
        """Callback that logs changes of a site's connection to its server, and then calls `says` with them."""
        last: tuple[What, str] = ("started", "")

        def say(standing: Standing, why: str) -> None:
            nonlocal last
            now: tuple[What, str]
            if standing == "waiting" or standing == "working":
                now = ("connected", "")
            else:
                now = (standing, why)
            if now != last:
                last = now
                self(RunEvent(event=now[0], why=now[1]))
            says(standing, why)

        return say

    def _watch(self, carrier: Carrier, done: threading.Event) -> None:
        there = frozenset[str]()
        while not done.is_set():
            now = carrier.peers()
            changes: tuple[tuple[What, frozenset[str]], ...] = ("connected", now - there), ("cut off", there - now)
            for what, sites in changes:
                for site in sorted(sites):
                    self(RunEvent(event=what, site=site))
            there = now
            done.wait(LOOK)


def shown(event: RunEvent, hidden: bool) -> RunEvent | None:
    """Part of an event that everybody may see; None where it would tell too much of a hidden cohort."""
    return None if hidden and event.event not in OF_NOBODY else event.beside(why="")
