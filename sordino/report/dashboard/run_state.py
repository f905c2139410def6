"""State of a watched run, as far as whoever looks may see it, from files alone; and its metrics for Prometheus, at
`/metrics` of the dashboard.

Spending is computed in a thread of its own from a copy of the ledger: the run may go on writing there, and this program
never does.

A monitoring system keeps numbers for long and shows them to many, so these are fewer than the page has: no score, no
number of a single client, and with real noise only what everybody may see, whoever asks. Where a number would tell too
much it is left out, and never 0.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, Protocol

from sordino.accounting.claims import Subject, standing
from sordino.accounting.facts import delta_text
from sordino.branches import part
from sordino.errors import SordinoError
from sordino.metrics import PreparedRow, RoundRow
from sordino.planning import Agreement
from sordino.receipts import Spending
from sordino.receipts.folder import RunFolder
from sordino.receipts.newest import training_rounds
from sordino.receipts.receipt import spending
from sordino.runs.listing import SiteNow, events, newest, public_events, sites, state
from sordino.runs.setup import RunSetup
from sordino.transport.run_events import RunEvent

EVERY = 0.5  # seconds between two looks at the files, and ten times what a look takes
SPENT_EVERY = 2.0  # seconds between two looks at the ledger, at least
SHARE = 0.05  # of the time of a processor that spending may take
LISTED = 200  # clients; of more, so many at even distances


class SiteClient(Protocol):
    """A client of a run between sites: its name, and the site that holds its data."""

    @property
    def site(self) -> str: ...
    @property
    def name(self) -> str: ...


class RunMoment(NamedTuple):
    """State of a run at one moment, as far as whoever looks may see it."""

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
class StatementCache:
    """The newest privacy statement, computed again where the ledger has changed."""

    folder: Path
    trouble: str = ""  # why there is no statement, or an old one
    _found: Spending | None = None
    _stamp: object = None
    _next: float = 0.0
    _busy: threading.Thread | None = field(default=None, repr=False)

    @property
    def ledger(self) -> Path:
        return RunFolder(self.folder).ledger

    def look(self) -> Spending | None:
        """The newest statement that is ready; a later call may return a newer one."""
        if self._busy is not None and not self._busy.is_alive():
            self._busy = None
        if self._busy is None and time.monotonic() >= self._next and (stamp := self._stand()) != self._stamp:
            self._stamp = stamp
            self._busy = threading.Thread(target=self._compute, daemon=True)
            self._busy.start()
        return self._found

    def _stand(self) -> object:
        return _stamp(self.ledger), _stamp(Path(f"{self.ledger}-wal"))

    def _compute(self) -> None:
        begun = time.monotonic()
        try:
            self._found, self.trouble = spending(self.folder, LISTED), ""
        except (SordinoError, OSError) as error:
            self.trouble = f"spending cannot be read now: {error}"
            self._stamp = None  # so that the next look tries again
        now = time.monotonic()
        self._next = now + max(SPENT_EVERY, (now - begun) / SHARE)


@dataclass
class WatchedRun:
    """A run folder, read again whenever its files have changed. `evaluator`: include its private folder."""

    folder: Path
    evaluator: bool = False
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _stamp: object = None
    _now: RunMoment = RunMoment("")
    _next: float = 0.0

    @cached_property
    def run(self) -> RunFolder:
        return RunFolder(self.folder)

    @cached_property
    def whole(self) -> RunSetup:
        agreed = Agreement.read(self.folder)
        return RunSetup(self.run.experiment, agreed.public, agreed.coordinates)

    @cached_property
    def real(self) -> bool:
        """True where the run draws real noise: then some files are for the evaluator alone."""
        return self.run.experiment.privacy.real

    @cached_property
    def sees_all(self) -> bool:
        return self.evaluator or not self.real

    @cached_property
    def hides(self) -> bool:
        """True where whoever reads the page must not learn which clients take part in which round."""
        return not self.sees_all and self.whole.hides_cohorts

    @cached_property
    def of_site(self) -> bool:
        """True for the folder of one site."""
        return self.run.environment.clients is not None

    @cached_property
    def clients(self) -> Sequence[SiteClient]:
        """Clients of a run between sites, from the agreement file of its folder; empty in a simulation."""
        return part("sites", "agreed_clients")(self.folder) if self.run.environment.site else ()

    @cached_property
    def spent(self) -> StatementCache:
        return StatementCache(self.folder)

    def look(self) -> RunMoment:
        """The state of the run. Calls in quick succession get the same one."""
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

    def _read(self, alive: bool, spending: Spending | None) -> RunMoment:
        """The present state; where a file cannot be read, the last one with the reason."""
        try:
            return self._seen(alive, spending)
        except SordinoError as error:
            return self._now._replace(trouble=f"{error.what}: {error.why}" if error.why else error.what)

    def _seen(self, alive: bool, spending: Spending | None) -> RunMoment:
        run = self.run
        all_rows, all_events = run.public_metrics(), (events if self.sees_all else public_events)(run)
        receipt = None if alive else newest(run, all_rows)
        rows = run.metrics() if self.sees_all else all_rows
        if self.hides and self.of_site:
            rows = []  # it has a row for each round that it was drawn for
        return RunMoment(
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


MEANINGS = {
    "sordino_running": "1 while a process works on the run",
    "sordino_readable": "0 where a file of the run cannot be read: all other numbers may then be old",
    "sordino_rounds_planned": "Rounds of the experiment",
    "sordino_rounds_done": "Rounds that are over",
    "sordino_round_waiting": "1 while a round waits because too few clients have answered",
    "sordino_sites_agreed": "Sites of the agreement",
    "sordino_sites_connected": "Sites that are connected to the server",
    "sordino_server_connected": "1 while this site is connected to the server",
    "sordino_rounds_counted": "Rounds that epsilon and budget are about: the ledger is read less often than the rest",
    "sordino_epsilon": "Epsilon of all releases in these rounds; +Inf: nothing is promised",
    "sordino_budget_left_ratio": "Part of its budget that is left to the client that has spent most; with the status "
    "nominal it is a publication's own count, which proves nothing",
}


def metrics(run: WatchedRun, now: RunMoment) -> str:
    """The metrics of a run in the text format of Prometheus. All of them are gauges."""
    lines = list[str]()
    for name, rows in groupby(_found(run, now), key=itemgetter(0)):
        lines += [f"# HELP {name} {MEANINGS[name]}", f"# TYPE {name} gauge"]
        for _, labels, value in rows:
            label_text = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            lines.append(f"{name}{{{label_text}}} {_number(value)}" if label_text else f"{name} {_number(value)}")
    return "\n".join(lines) + "\n"


def _found(run: WatchedRun, now: RunMoment) -> Iterator[tuple[str, dict[str, str], float]]:
    yield "sordino_running", {}, now.state == "running"
    yield "sordino_readable", {}, not now.trouble
    yield "sordino_rounds_planned", {}, run.run.experiment.rounds
    if not (run.hides and run.of_site):
        yield "sordino_rounds_done", {}, now.round
    if now.sites is not None and run.of_site:
        yield "sordino_server_connected", {}, any(site.connected for site in now.sites.values())
    elif now.sites is not None:
        yield "sordino_round_waiting", {}, now.state == "running" and _waits(now.events)
        yield "sordino_sites_agreed", {}, len({client.site for client in run.clients} | now.sites.keys())
        yield "sordino_sites_connected", {}, sum(site.connected for site in now.sites.values())
    if now.spending is None:
        return
    yield "sordino_rounds_counted", {}, training_rounds(now.spending)
    for row in now.spending.guarantees:
        labels = {
            **row.model_dump(include=set(Subject.model_fields)),
            "delta": delta_text(row.delta),
            "status": standing(row.status, now.spending.simulated),
        }
        yield "sordino_epsilon", labels, row.epsilon
    if (budget := now.spending.budget) is not None:
        labels = {"status": "nominal"} if budget.nominal(now.spending.guarantees) else {}
        yield "sordino_budget_left_ratio", labels, 1 - budget.spent_share.max


def _waits(events: Sequence[RunEvent]) -> bool:
    """True where the newest round waits for more answers."""
    waiting = None
    for event in events:
        place = event.phase, event.round
        if event.event == "waiting":
            waiting = place
        elif event.event in ("started", "deadline", "closing") or (event.event == "asked" and place != waiting):
            waiting = None
    return waiting is not None


def _number(value: float) -> str:
    """All digits of a number: an epsilon that was rounded down would say too little."""
    return {"inf": "+Inf", "nan": "NaN"}.get(text := repr(float(value)).removesuffix(".0"), text)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
