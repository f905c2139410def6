"""Run folder: paths and facts of its files, which any process may read while another one writes.

Reading takes no lock, loads no tensor, and asks only a copy of the ledger whether it knows the receipt.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TypeVar

from sordino import config
from sordino.accounting.facts import Fact, parsed, text_of
from sordino.config import Experiment, resolved
from sordino.errors import ConfigError, RunError, damaged
from sordino.ledger.files import lock
from sordino.metrics import PreparedRow, RoundCost, RoundRow
from sordino.receipts import Environment, LeftInRun, Receipt
from sordino.receipts.private import FOLDER

F = TypeVar("F", bound=Fact)
AboutRun = TypeVar("AboutRun", bound=LeftInRun)
FROM_A_COPY = "put the file back from a copy, or start the run again in another folder"
_CHECKPOINT = re.compile(r"round-[0-9]{6,}\.ckpt")
NO_RECEIPT = "no-receipt"
UNCOMPARED = "its ledger is not here: nothing was compared with what the run has spent"
LOCKS = Path("/proc/locks")  # of Linux: who holds what, readable without holding anything


class _Named:
    """Attribute of `RunFolder` that is the path of the file of this name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: RunFolder, of: type[RunFolder]) -> Path:
        return run.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """Files of one run: their paths, and what they hold, as typed values."""

    path: Path

    experiment_file = _Named("experiment.toml")  # resolved
    environment_file = _Named("environment.json")  # which run this is, and where it ran
    agreement_file = _Named("agreement.json")  # public numbers
    candidates_file = _Named("candidates.json")  # recipe of the server's own images
    tensors_file = _Named("public.safetensors")  # tensors sent to every client before the training
    metrics_file = _Named("metrics.jsonl")  # one object per round
    costs_file = _Named("costs.jsonl")  # seconds
    preparation_file = _Named("preparation.jsonl")  # one object per round of the phases before the training
    receipt_file = _Named("privacy.json")
    signature_file = _Named("privacy.sig")
    model_file = _Named("model.safetensors")
    description_file = _Named("model.json")  # shape, scale and classes: all that using the model takes
    events_file = _Named("events.jsonl")  # between sites: one object for each thing that happened
    sites_file = _Named("sites.json")  # between sites: the newest ledger head that each has signed
    log_file = _Named("log.txt")  # remarks for the user that no table shows
    attack_file = _Named("attack.json")  # results of attacks, with images of the training data
    audit_file = _Named("audit.json")  # results of an audit of the trained run
    page_file = _Named("report.html")
    evaluators_page = _Named("evaluator-only.html")  # in the private folder
    lock_file = _Named(".lock")
    own_ledger = _Named("ledger.sqlite")
    checkpoints = _Named("checkpoints")  # each is written whole or not at all
    preparation = _Named("preparation")  # a folder for each phase
    private = _Named(FOLDER)  # not to be shared (see `receipts.private`)

    def of_phase(self, phase: str) -> RunFolder:
        """The folder of a phase before the training; the run's own for the training."""
        return RunFolder(self.preparation / phase) if phase else self

    # facts ------------------------------------------------------------------------------------------------------------

    @cached_property
    def experiment(self) -> Experiment:
        return self.changed()

    def changed(self, changes: Sequence[str] = (), settings: Mapping[str, object] | None = None) -> Experiment:
        """Experiment of the run, with any `changes` and `settings` applied; relative paths start from the folder where
        the run began.
        """
        given = config.load(self.experiment_file, changes, settings)
        return resolved(given, self.path, self.environment.began) if self.environment_file.exists() else given

    @cached_property
    def environment(self) -> Environment:
        path = self.environment_file
        return parsed(path, text_of(path, FROM_A_COPY), Environment, FROM_A_COPY)

    @property
    def ledger(self) -> Path:
        """Path of the run's ledger: in its folder, or a ledger that several runs share."""
        shared = self.experiment.privacy.ledger
        return Path(os.path.abspath(shared)) if shared else self.own_ledger

    def metrics(self) -> list[RoundRow]:
        """Rows of all rounds, as far as this user may read them: with scores that an evaluator keeps in the private
        folder, and with the seconds that sums and rounds took, which are not part of the result.
        """
        own = RunFolder(self.private)
        evaluated = {row.round: row for row in rows_of(own.metrics_file, RoundRow)}
        took: dict[int, list[RoundCost]] = {}
        for cost in (*rows_of(self.costs_file, RoundCost), *rows_of(own.costs_file, RoundCost)):
            took.setdefault(cost.round, []).append(cost)
        rows, public = [], self.public_metrics()
        # a site in a hidden cohort keeps secret for which rounds it was drawn
        own_alone = [row for number, row in evaluated.items() if number not in {row.round for row in public}]
        for row in (*public, *own_alone):
            row = row.with_more(evaluated[row.round]) if row.round in evaluated else row
            costs = took.get(row.round, [])
            if row.secure is not None:
                cpu: Mapping[str, float] = {}
                cpu = next((cost.cpu_seconds for cost in reversed(costs) if cost.cpu_seconds is not None), cpu)
                row = row.beside(secure=row.secure.beside(cpu_seconds=cpu))
            seconds = next((c.seconds for c in reversed(costs) if c.seconds is not None), None)
            rows.append(row if row.seconds is seconds else row.beside(seconds=seconds))
        return rows

    def public_metrics(self) -> list[RoundRow]:
        """Rows that may be shown to every adversary of the receipt."""
        known = self._checkpoint  # before the rows: a run that goes on writes a row and then a checkpoint
        found = rows_of(self.metrics_file, RoundRow)
        if len(found) < known and self.environment.clients is None:  # a site has no row for a round that it missed
            why = f"it has {len(found)} rows, and there is a checkpoint of round {known}"
            raise damaged(self.metrics_file, why, FROM_A_COPY)
        return found

    @property
    def _checkpoint(self) -> int:
        """Round of the newest checkpoint, by its name; 0 where there is none, or where the folder cannot be read."""
        with contextlib.suppress(OSError):
            return max(
                (int(name[6:-5]) for name in os.listdir(self.checkpoints) if _CHECKPOINT.fullmatch(name)), default=0
            )
        return 0

    def prepared(self) -> list[PreparedRow]:
        return rows_of(self.preparation_file, PreparedRow)

    def found(self, path: Path, kind: type[AboutRun], fix: str) -> AboutRun | None:
        """Results that an attack or an audit left in this run's folder; None if there are none."""
        if not path.exists():
            return None
        document = parsed(path, text_of(path, FROM_A_COPY), kind, fix)
        if document.experiment != self.experiment.digest():
            raise damaged(path, "it is about another experiment than this run's", fix)
        return document

    def notes(self) -> list[str]:
        return text_of(self.log_file, FROM_A_COPY).splitlines() if self.log_file.exists() else []

    def receipt(self, sealed: bool = True) -> Receipt:
        """Receipt of the run. `sealed`: refuse it where the run's ledger has sealed another one, or knows of rounds
        since; where there is no ledger, it says so among its assumptions."""
        run, why = quote(str(self.path)), "it is written when a run ends"
        fix = f"`sordino privacy spent {run}` says what it spent; `sordino resume {run}` ends it and writes it again"
        if self.receipt_file.exists():
            found = parsed(self.receipt_file, text_of(self.receipt_file, fix), Receipt, fix)
            if sealed and not self.ledger.exists():
                return found.beside(assumptions=(*found.assumptions, UNCOMPARED))
            from sordino.receipts.newest import is_newest  # which knows the files that are named here

            if not sealed or is_newest(self):
                return found
            why = "the one that lies there is of an earlier stop: the run has gone on since"
        raise RunError(f"{self.path} has no receipt yet", why=why, fix=fix, code=NO_RECEIPT)

    # whether it is one, and whose -------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return self.experiment_file.is_file() and self.environment_file.is_file()

    @property
    def begun(self) -> bool:
        """True if the folder holds a file that only a run writes; the run may be damaged."""
        return any(os.path.lexists(file) for file in (self.experiment_file, self.environment_file))

    def check(self) -> None:
        if not self.exists:
            raise RunError(
                f"{self.path} is not a run folder",
                why=self._why_not(),
                fix=f"did you mean {near[0]}?"
                if (near := self._near())
                else "`sordino list` shows the runs in runs/; `sordino list FOLDER` shows the runs in another folder",
                code="not-a-run",
            )

    def _near(self) -> list[str]:
        """Nearest run name that a mistyped path may mean, among runs beside it or in runs/; at most one."""
        places = (*self.path.parent.glob("*/environment.json"), *Path("runs").glob("*/environment.json"))
        names = {file.parent.name.lower(): str(file.parent) for file in places}
        return [names[name] for name in difflib.get_close_matches(self.path.name.lower(), names, n=1)]

    def _why_not(self) -> str:
        if not self.path.is_dir():
            return no_folder(self.path)
        missing = [file.name for file in (self.experiment_file, self.environment_file) if not file.is_file()]
        return f"it has no {' and no '.join(missing)}"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run's lock, so that other processes cannot work on it."""
        with open(self.lock_file, "wb") as file:
            try:
                lock(file.fileno())
            except OSError:
                raise RunError(
                    f"the run folder {self.path} is in use",
                    why="another process works on this run",
                    fix="wait until it ends, or stop it",
                    code="run-in-use",
                ) from None
            yield

    @property
    def in_use(self) -> bool:
        """True while a process works on the run."""
        try:
            found = os.stat(self.lock_file)
        except FileNotFoundError:
            return False
        if LOCKS.exists():
            held = (line.split() for line in LOCKS.read_text(encoding="utf-8").splitlines())
            # by inode alone: layered file systems name another device here than stat does
            return any(words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(found.st_ino) for words in held)
        with open(self.lock_file, "rb") as file:
            # elsewhere there is no asking without trying, for an instant and, but on Windows, shared
            try:
                lock(file.fileno(), shared=True)
            except OSError:
                return True
            return False


def absolute_folder(folder: str | Path) -> Path:
    """Absolute path of a folder in which another program keeps a budget; a relative path is refused."""
    place = Path(folder).expanduser()
    if not place.is_absolute():
        raise ConfigError(
            f"the folder {str(folder)!r} of a budget is a relative path",
            why="the other program may start elsewhere the next time, and would find an empty budget there",
            fix="give a path from the root, such as /var/lib/budgets/site, on a local disk",
            code="budget-needs-absolute-path",
        )
    return place


def no_receipt(folder: Path, error: Exception) -> RunError:
    """The error for a receipt that is missing, or that cannot be read."""
    return RunError(
        f"{folder} has no readable receipt",
        why=getattr(error, "strerror", None) or str(error),
        fix="finish or resume the run first" if folder.is_dir() else "give the folder of a run",
        code=NO_RECEIPT,
    )


def no_folder(path: Path) -> str:
    """Reason why a path is not a folder."""
    if path.is_symlink() and not path.exists():
        return f"it is a link that leads nowhere: to {os.readlink(path)}"
    return "it is a file" if path.exists() else "there is nothing of that name"


def rows_of(path: Path, kind: type[F]) -> list[F]:
    """Parse each line of a file; an empty list where the file is absent."""
    if not path.exists():
        return []
    *lines, cut = text_of(path, FROM_A_COPY).split("\n")  # a kill may have cut the last row short
    if cut.startswith("\0") and not lines:
        raise damaged(path, "it is full of zeros, as a power cut may leave a file", FROM_A_COPY)
    return [parsed(path, line, kind, FROM_A_COPY) for line in lines]


def numbers(row: Mapping[str, object], prefix: str = "") -> dict[str, float]:
    """Numbers of one round under flat names (`clients_mean`), without lists, which would name single clients."""
    found: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= numbers(value, f"{prefix}{name}_")
        elif isinstance(value, int | float):
            found[f"{prefix}{name}"] = value
    return found
