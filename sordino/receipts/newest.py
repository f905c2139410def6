"""The newest state of a run: what has been spent since its receipt was sealed, and what has left since an older copy of
its ledger.

Operations that drew noise are noted in the user's state folder, too ($XDG_STATE_HOME/sordino, else
~/.local/state/sordino), by `runs.witness`. Where a ledger knows nothing of one of them, it is an older copy, and an
epsilon that is computed from it would be less than what was lost.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from shlex import quote

from sordino.errors import LedgerError, damaged
from sordino.ledger import storage
from sordino.planning import Agreement
from sordino.receipts import Receipt
from sordino.receipts.folder import FROM_A_COPY, RunFolder
from sordino.receipts.seal import claimed, digest

LATER = "SELECT 1 FROM record WHERE sequence > ? AND instr(body, ?) AND (instr(body, ?) OR instr(body, ?)) LIMIT 1"


def is_newest(run: RunFolder) -> bool:
    """True where a run has reserved nothing since its receipt was sealed. A receipt that its ledger has not sealed is
    refused, and so is an older copy of the ledger.
    """
    check_run(run)
    folder = run.path
    with storage.refusals(), closing(storage.read_database(run.ledger)) as copy:
        try:
            receipt = claimed(folder)
        except ValueError as error:
            raise damaged(run.receipt_file, error, FROM_A_COPY) from None
        text, run_of = f'"digest":"{digest(receipt).hex()}"'.encode(), f'"op":"{receipt.get("run")}'.encode()
        if sealed := copy.execute("SELECT sequence FROM record WHERE instr(body, ?) LIMIT 1", (text,)).fetchone():
            later = (*sealed, b'"kind":"reserved"', run_of + b"/", run_of + b".")
            return not copy.execute(LATER, later).fetchone()
    raise LedgerError(
        f"the receipt of {folder} does not hold",
        why="privacy.json is not what the run has written: its ledger has sealed another one",
        fix=f"put the file back from a copy; `sordino privacy verify {quote(str(folder))}` says what else differs, and "
        f"`sordino privacy spent {quote(str(folder))}` what the ledger itself tells",
        code="receipt-does-not-hold",
    )


def training_rounds(receipt: Receipt) -> int:
    """Number of rounds of training in a receipt; its `rounds` counts those of a preparation, too."""
    return receipt.phases[-1].releases if receipt.phases else receipt.rounds


RESERVED = "SELECT body FROM record WHERE instr(body, ?)"
_OP = re.compile(rb'"op":("(?:[^"\\]|\\.)*")')


def check_run(run: RunFolder) -> None:
    """Refuses the ledger of a run where it is an older copy, as this user's notes show."""
    run.check()
    _check(run.ledger, [place_of(run)])


def check_ledger(place: Path, dataset: str, runs: Iterable[str], site: str) -> bool:
    """Refuses a ledger by itself where it is an older copy: of one run, or of several that share it. `dataset`: the
    digest in its first record. True where this user's notes know each of its runs.
    """
    files = {run: (place_for(run, site), place_for(run, site, dataset)) for run in runs}
    shared = place_for("", "", dataset).parent.glob("*.jsonl")
    _check(place, [*shared, *(alone for alone, _ in files.values())])
    return all(alone.exists() or among.exists() for alone, among in files.values())


def _check(ledger: Path, notes: Iterable[Path]) -> None:
    left = {op for file in notes for op in noted(file)}
    if not left:
        return
    # after the notes: a run that goes on writes its ledger first
    with storage.refusals(), closing(storage.read_database(ledger)) as copy:
        known = {
            json.loads(found[1])
            for (body,) in copy.execute(RESERVED, (b'"kind":"reserved"',))
            if (found := _OP.search(body))
        }
    if behind := left - known:
        raise rolled_back(ledger, len(behind))


def noted(file: Path, begin: int = 0) -> Iterator[str]:
    """Names of the operations in a file of notes, from byte `begin` on. A line that a kill cut short does not count."""
    try:
        if file.exists():
            yield from (json.loads(line)["op"] for line in file.read_bytes()[begin:].split(b"\n")[:-1])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(file, str(error), "put it back") from None


def rolled_back(ledger: Path, many: int) -> LedgerError:
    """The error for a ledger that does not know of so many operations that have left."""
    return LedgerError(
        f"the ledger {ledger} is an older copy: it does not know of {many} rounds that have left since",
        why="its epsilon leaves out what they cost; continuing from it would draw their noise again, too",
        fix="take the newest folder and ledger, or put them back; where they are lost, continue with --moved: these "
        "rounds then count as lost, and stay paid for",
        code="ledger-rolled-back",
    )


def place_of(run: RunFolder) -> Path:
    """Path of the record of this run's releases, beside the records of other runs on its ledger. It stays where it is,
    whatever experiment.toml says of a ledger since.
    """
    places = places_of(run)
    return next(filter(os.path.exists, places), places[bool(run.experiment.privacy.ledger)])


def places_of(run: RunFolder) -> tuple[Path, Path]:
    """Paths of that record for a run with a ledger of its own, and for one on a ledger that several runs share."""
    about = run.environment.run, run.environment.site
    return place_for(*about), place_for(*about, Agreement.read(run.path).dataset)


def place_for(run: str, site: str, shared: str = "") -> Path:
    """Path of a run's record, by run and site; or by `shared`, the name of the data on a ledger of several runs."""
    name = f"{run} {site}"
    return state() / "ledgers" / _digest(f"shared {shared}" if shared else name) / f"{_digest(name)}.jsonl"


def state() -> Path:
    """The user's state folder."""
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "sordino"
    except RuntimeError:  # the user has no home folder
        return Path("/nonexistent")


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]
