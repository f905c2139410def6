"""Record, outside the run's folder, of every release that has left a run: it reveals an older copy of the ledger that
was put back.

No ledger can see from inside that it is an older copy, and a folder that is restored in place (by a snapshot, by
`rsync`, by `cp -a`) looks as it did. So every operation that drew noise is noted in the user's state folder, too
($XDG_STATE_HOME/sordino, else ~/.local/state/sordino), after it is in the ledger and before anything leaves: a kill
between the two loses a round, and never hides one. Where the ledger is behind the record, the run stops. With `moved`,
the missing operations are written into the ledger again, as spent, and their rounds count as lost.

Each run has a file there from its beginning on, one line per operation, in a folder for its ledger. A snapshot of a
whole machine puts both ledger and record back, which nothing on that machine can notice. Noise from a seed needs no
witness, since the same noise is drawn again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sordino.accounting.claims import Amount
from sordino.accounting.events import draws_afresh
from sordino.accounting.facts import Fact, parsed
from sordino.errors import LedgerError, damaged
from sordino.ledger.books import grouped
from sordino.ledger.files import append_line, atomic_write, sync
from sordino.ledger.ledger import Ledger, LedgerPosition, State, of_run
from sordino.planning.phase import PlannedPhase
from sordino.receipts.folder import RunFolder
from sordino.receipts.newest import noted, place_of, rolled_back

WITHOUT_IT = "put it back; without it the run goes on, and its receipt says that an older copy would not be noticed"
MISSING = (
    "when this run continued, the user's state folder had no notes about it: an older copy of its ledger, restored "
    "before that, would not have been noticed"
)
UNWRITABLE = (
    "the releases of this run could not be noted in the user's state folder: if an older copy of its ledger is "
    "restored, nobody notices"
)


class ReleasedOperation(Fact):
    """One ledger operation as it stood when its release left the run: enough to write it into an older ledger again."""

    op: str
    state: State
    charges: tuple[tuple[Amount, tuple[str, ...]], ...]
    plan: str
    note: str
    place: LedgerPosition  # of the ledger

    @classmethod
    def of(cls, ledger: Ledger, op: str) -> ReleasedOperation:
        entry = ledger.entry(op)
        charges = tuple((tuple(charge), tuple(names)) for charge, names in grouped(entry.charges))
        return cls(op=op, state=entry.state, charges=charges, plan=entry.plan, note=entry.note, place=ledger.place())

    def spend(self, ledger: Ledger) -> bool:
        """Write the operation into an older ledger, as spent; False where the ledger refuses some of its charges."""
        charges = {name: charge for charge, names in self.charges for name in names}
        granted = ledger.reserve(self.op, charges, bytes.fromhex(self.plan), self.note)
        if self.state is not State.RESERVED:
            ledger.drawn(self.op)
        return granted == charges.keys()


def _drew(ledger: Ledger, op: str) -> bool:
    return ledger.state(op) not in (None, State.RESERVED)


@dataclass
class Witness:
    """Record, outside the run's folder, of all releases of a run (or of all runs on a shared ledger), so that an older
    copy of the ledger, put back, is noticed and does not spend the same budget twice.
    """

    folder: Path  # of the run
    place: Path  # where it is noted
    knows: Callable[[Ledger, str], bool] = _drew  # does a ledger know that this operation has left?
    noted: dict[str, LedgerPosition] = field(default_factory=dict)  # where the ledger stood when an operation left
    _length: int = 0  # of the whole lines of this run
    _others: dict[Path, int] = field(default_factory=dict)  # and of those of other runs, as far as they were read

    @classmethod
    def of(cls, folder: Path, knows: Callable[[Ledger, str], bool] = _drew) -> Witness:
        found = cls(folder, place_of(RunFolder(folder)), knows)
        found._others = {file: _whole(file) for file in found.place.parent.glob("*.jsonl")}  # before they are read
        found.noted = {line.op: line.place for line in found._lines()}
        found._length = _whole(found.place)
        return found

    def __call__(self, ledger: Ledger, op: str) -> None:
        """Record an operation just before its release leaves the run; refused where a copy of this run is releasing
        too, or another run from a copy of the ledger."""
        if op in self.noted:
            return
        self._check_others(ledger)
        if not self._note([ReleasedOperation.of(ledger, op)]):
            raise LedgerError(
                f"{self.folder} is running at the same time as a copy of it",
                why="both would release the same rounds, each with noise of its own",
                fix="stop both, and continue in the newest folder alone",
                code="released-elsewhere",
            )
        self._check_others(ledger)  # and again: of two runs that have noted at once, one at least sees the other

    def check(self, ledger: Ledger, moved: bool) -> set[str]:
        """Operations that were released and are missing from the ledger, which is then an older copy. They are refused
        or, where this folder replaces the newest one (`moved`), written into the ledger as spent."""
        behind = {op for op in self.noted if not self.knows(ledger, op)}
        if behind and not moved:
            raise rolled_back(RunFolder(self.folder).ledger, len(behind))
        for line in self._lines() if behind else ():
            if line.op in behind and not line.spend(ledger):
                raise rolled_back(RunFolder(self.folder).ledger, len(behind))
        return behind

    def _check_others(self, ledger: Ledger) -> None:
        """Refuses a shared ledger that knows nothing of what other runs have released meanwhile: they pay from another
        copy of it, and the same budget would be spent twice.
        """
        for file in self.place.parent.glob("*.jsonl"):
            if file == self.place or (end := _whole(file)) <= (begin := self._others.get(file, 0)):
                continue
            if behind := [op for op in noted(file, begin) if not self.knows(ledger, op)]:
                raise rolled_back(RunFolder(self.folder).ledger, len(behind))
            self._others[file] = end

    def create(self) -> None:
        """Creates an empty record of releases for a new run. Where a run has none, its record was lost, or its folder
        was copied from elsewhere.
        """
        if not os.path.exists(self.place):
            self._note([])

    def begin(self, ledger: Ledger) -> None:
        """Creates a missing record of releases from the operations in the ledger. It may be incomplete: a folder backed
        up before its first release lists none.
        """
        if not os.path.exists(self.place):
            before = of_run(ledger, RunFolder(self.folder).environment.run)
            _tell(self.folder, MISSING)
            self._note([ReleasedOperation.of(ledger, entry.op) for entry in before if self.knows(ledger, entry.op)])

    @property
    def newest(self) -> LedgerPosition | None:
        """The ledger's position at the last release; None where there was no release."""
        return next(reversed(self.noted.values()), None)

    def has_seen(self, head: str) -> bool:
        """True where a release left the run while the ledger's newest hash was `head`."""
        return any(place.head == head for place in self.noted.values())

    def _note(self, lines: Sequence[ReleasedOperation]) -> bool:
        """Append releases to the record; False where another process is writing to it for the same run."""
        texts = [json.dumps(line.to_json()) for line in lines]
        self.noted |= {line.op: line.place for line in lines}
        try:
            if new := not os.path.exists(self.place):
                if self._length:  # somebody has taken it away
                    _tell(self.folder, MISSING)
                self._length = 0
                self.place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.place.touch(0o600)
            for line in texts:
                append_line(self.place, line, 0o600)
            sync(self.place)
            for above in list(self.place.parents)[:3] if new else ():
                sync(above)
            self._length += sum(len(line) + 1 for line in texts)  # JSON as it is written here is ASCII
            return self.place.stat().st_size == self._length
        except OSError:
            _tell(self.folder, UNWRITABLE)
            self._length = _whole(self.place)
            return True

    def _lines(self) -> Iterator[ReleasedOperation]:
        """Releases of all runs on this ledger, as recorded. A line that a kill cut short does not count: nothing left
        with it."""
        for file in sorted(self.place.parent.glob("*.jsonl")):
            try:
                with open(file, encoding="utf-8") as text:
                    yield from (
                        parsed(file, line, ReleasedOperation, WITHOUT_IT) for line in text if line.endswith("\n")
                    )
            except (OSError, UnicodeDecodeError) as error:
                raise damaged(file, str(error), WITHOUT_IT) from None


def _whole(file: Path) -> int:
    """Length of the file up to its last complete line, in bytes."""
    with contextlib.suppress(OSError):
        return file.read_bytes().rfind(b"\n") + 1
    return 0


def needed(setup: PlannedPhase) -> bool:
    """True for a run with real noise: its noise must not be drawn twice, so its releases are recorded."""
    promises = (claim for phase in setup.whole.phases for claim in phase.priced.promises)
    return setup.policy.real and (
        setup.promising.offer is not None or any(draws_afresh(claim.event) for claim in promises)
    )


def _tell(folder: Path, why: str) -> None:
    """Records for the receipt why a run has no witness (a record of its releases outside the folder)."""
    files = RunFolder(folder)
    if files.environment.unwitnessed != why:
        environment = files.environment.beside(unwitnessed=why)
        atomic_write(files.environment_file, json.dumps(environment.to_json(), indent=2).encode())
