"""Rounds of a phase one after another, from a checkpoint on: of the training, or of a phase before it, which is paid
from the same ledger. The first Ctrl-C or SIGTERM waits for the end of the round, so nothing is lost.

Each round is a line of metrics.jsonl, one object. With real noise it holds only what may be published under the
guarantees; the rest, such as test results, goes to the private folder, for the evaluator.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple

from sordino import tree
from sordino.accounting.events import Json
from sordino.algorithms.optional import Estimates
from sordino.engine import checkpoint
from sordino.engine.executor import Answers, Clients, Executor
from sordino.engine.server import FederatedServer
from sordino.errors import BudgetExhausted, LedgerError, NonFiniteModel, RunError, damaged
from sordino.metrics import RoundLine, RoundRow, Scores, Secure
from sordino.metrics.evaluation import Score
from sordino.receipts.folder import RunFolder
from sordino.receipts.private import FOLDER
from sordino.round import Outcome, one_round
from sordino.runs.backend import Backend, StartingPoint
from sordino.runs.setup import PhaseSetup
from sordino.runs.witness import Witness
from sordino.tree import Tree
from sordino.types import Params, Terms

ALWAYS = ("phase", "round", "lost", "model_norm")
# public unless the cohort is hidden
SEEN = ("active", "answered", "bytes_down", "bytes_up", "payload", "device_flops", "secure")
INSIDE = ("saturated", "cpu_seconds")  # of a secure sum: the size of single values, and the time of single clients


def shown(row: RoundLine, hidden: bool) -> Json:
    """The public fields of a row: what was released anyway; of a hidden cohort neither its size nor anything that grows
    with it.
    """
    values = row.to_json()
    kept = {name: values[name] for name in (*ALWAYS, *(() if hidden else SEEN)) if name in values}
    if "secure" in kept:
        kept["secure"] = {name: value for name, value in kept["secure"].items() if name not in INSIDE}
    return kept


class Rows:
    """Writer of the rows of a run, or of its preparation: public fields and, with real noise, private ones."""

    def __init__(self, public: _AppendedFile, private: _AppendedFile | None, hidden: bool) -> None:
        self._public, self._private, self._hidden = public, private, hidden

    def write(self, row: RoundLine) -> None:
        whole = row.to_json()
        if self._private is None:
            self._public.write(_line(whole))
            return
        public = shown(row, self._hidden)
        kept = {name: value for name, value in whole.items() if value != public.get(name)}
        self._public.write(_line(public))
        self._private.write(_line({"round": row.round, **kept}))

    def sync(self) -> dict[str, int | str]:
        """Flush to disk; returns lengths and digests of the files, for the checkpoint."""
        known = self._public.sync("metrics")
        return known if self._private is None else known | self._private.sync("private")


def _line(values: Json) -> bytes:
    return json.dumps(values).encode() + b"\n"


class _AppendedFile:
    """An append-only file, and the running SHA-256 of its content."""

    def __init__(self, file: IO[bytes], digest: hashlib._Hash) -> None:
        self._file, self._digest = file, digest

    def write(self, line: bytes) -> None:
        self._file.write(line)
        self._digest.update(line)

    def sync(self, name: str) -> dict[str, int | str]:
        self._file.flush()
        os.fsync(self._file.fileno())
        return {f"{name}_bytes": self._file.tell(), f"{name}_sha256": self._digest.hexdigest()}


@contextlib.contextmanager
def opened(path: Path, known: Json, private: bool, hidden: bool) -> Iterator[Rows]:
    """Open the file of public rows and, if `private`, that of the rows of single clients, both truncated to the lengths
    that the checkpoint names (`known`). `hidden`: public rows leave out the size of the cohort, and all that grows with
    it.
    """
    with contextlib.ExitStack() as stack:
        public = stack.enter_context(_cut(path, known, "metrics", 0o644))
        place = path.parent / FOLDER / path.name
        own = stack.enter_context(_cut(place, known, "private", 0o600)) if private else None
        yield Rows(public, own, hidden)


@contextlib.contextmanager
def _cut(path: Path, known: Json, name: str, mode: int) -> Iterator[_AppendedFile]:
    length = known.get(f"{name}_bytes", 0)
    fix = "put the file back from a copy, or start the run again in another folder"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode)
    with os.fdopen(descriptor, "a+b") as file:
        if (held := os.fstat(file.fileno()).st_size) < length:
            why = f"it has {held} bytes, but the checkpoint says {length}"
            raise damaged(path, why, fix)
        file.seek(0)
        digest = hashlib.sha256(file.read(length))
        if digest.hexdigest() != known.get(f"{name}_sha256", digest.hexdigest()):
            raise damaged(path, "its rows are not those that the checkpoint was written with", fix)
        file.truncate(length)
        file.seek(0, os.SEEK_END)
        yield _AppendedFile(file, digest)


_PATIENT: list[Callable[[], bool]] = []  # the outermost, which holds the signals of this process


@contextlib.contextmanager
def patience() -> Iterator[Callable[[], bool]]:
    """Delay a first Ctrl-C to the end of the round; a second one stops at once.

    SIGTERM does the same, and SIGHUP too unless `nohup` had it ignored. SIGQUIT ends at once. Nested calls share the
    outermost one.
    """
    pressed = 0
    if _PATIENT:
        yield _PATIENT[-1]
        return

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt
        again = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(2, f"stopping after this round; {again} again stops at once\n".encode())

    if threading.current_thread() is not threading.main_thread():  # only the main thread has signals to wait for
        yield lambda: False
        return
    waits: list[int] = [signal.SIGINT, signal.SIGTERM]
    known = signal.Signals.__members__  # Windows has no signals of terminals
    if "SIGHUP" in known and signal.getsignal(known["SIGHUP"]) is not signal.SIG_IGN:
        waits.append(known["SIGHUP"])
    before = {number: signal.signal(number, press) for number in waits}
    if "SIGQUIT" in known:
        before[known["SIGQUIT"]] = signal.signal(known["SIGQUIT"], signal.SIG_DFL)
    _PATIENT.append(lambda: pressed > 0)
    try:
        yield _PATIENT[-1]
    finally:
        _PATIENT.clear()
        for number, action in before.items():
            signal.signal(number, action)


Evaluate = Callable[[int, Tree, Score], Scores]


class PhaseState(NamedTuple):
    """State of a phase between two rounds: the server's state, the number of rounds done, and whether progress has
    stalled.
    """

    server: Tree
    t: int
    stalled: bool = False


@dataclass(frozen=True)
class RunningRun:
    """Shared parts of all phases of a run: one folder, one ledger, one record of releases."""

    folder: Path
    name: str
    ledger: Path
    witness: Witness | None
    stopped: Callable[[], bool]  # does the user want it to stop?

    def federation(self, backend: Backend) -> FederatedServer:
        made = backend.federation(self.ledger, self.name)
        made.witness = self.witness or made.witness
        return made

    @contextmanager
    def opened(
        self,
        backend: Backend,
        place: Path,
        first: Tree,
        loaded: checkpoint.Loaded | None,
        begun: StartingPoint | None,
        public_tensors: Params | None = None,
        evaluate: Evaluate | None = None,
    ) -> Iterator[RunningPhase]:
        """Open a phase of the run, from the server's state `first` or from its checkpoint on; `begun` holds its
        clients' states.
        """
        setup, files = backend.setup, RunFolder(self.folder)
        with ExitStack() as stack:
            federation = self.federation(backend)
            stack.callback(federation.ledger.close)
            at = PhaseState(first, 0) if loaded is None else stands(federation, loaded, self.folder)
            execute = backend.executor(self.folder, place, self.name, begun, public_tensors, stack)
            file, hidden = (
                (files.preparation_file, False) if setup.prepares else (files.metrics_file, setup.policy.hidden)
            )
            written = {} if begun is None else begun.loaded.meta
            rows = stack.enter_context(opened(file, written, setup.policy.real, hidden))
            yield RunningPhase(setup, federation, execute, place, rows, at, self.stopped, evaluate)


@dataclass
class RunningPhase:
    """One phase of a run while it is computed: its plan, clients, privacy ledger and folder."""

    setup: PhaseSetup
    federation: FederatedServer
    execute: Executor
    place: Path  # of the run, or of this phase in it
    metrics: Rows
    at: PhaseState
    stopped: Callable[[], bool]
    evaluate: Evaluate | None = None  # scores of the models after a round
    row: RoundRow = field(init=False)  # of the last round
    unsaved: Callable[[], None] | None = field(init=False, default=None)  # saves the last round, if nothing has yet
    seconds: float = 0.0  # of the last round, by the clock

    @property
    def over(self) -> bool:
        return self.setup.over(self.at.server) if self.setup.prepares else self.at.t >= self.setup.rounds

    def rounds(self, crash: int | None = None) -> Iterator[Outcome]:
        """Computes every remaining round, until a stop or until the budget is spent; both leave a checkpoint of the
        last one. `crash`: the round in which the process kills itself on purpose, once budget is reserved.
        """
        try:
            while not self.over and not self.stopped():
                t, begin = self.at.t, time.monotonic()
                execute = PowerCut() if t + 1 == crash else self.execute
                outcome = one_round(self.federation, self.at.server, t, execute, self.at.stalled, self._keep(t))
                self.at, self.seconds = PhaseState(outcome.server, t + 1, outcome.stalled), time.monotonic() - begin
                yield outcome
        except BudgetExhausted:  # before any client was asked, so client states are those of the last round
            self._save_last()
            raise
        self._save_last()

    def _save_last(self) -> None:
        if self.unsaved is not None:
            self.unsaved()

    def _keep(self, t: int) -> Callable[[Outcome, bytes], None]:
        experiment = self.setup.experiment
        # noise from the system cannot be drawn again: there every round is kept; so is every round of a preparation,
        # which are few and long
        often = experiment.privacy.real or self.setup.prepares
        every = 1 if often else experiment.engine.checkpoint_every

        def keep(outcome: Outcome, release: bytes) -> None:
            """Keep what a resumed run needs: this round's row of metrics and, where one is due, a checkpoint."""
            if not tree.finite(outcome.server):
                raise NonFiniteModel(
                    f"the model is no longer finite after round {t + 1}",
                    why="the step size or the noise is too large for this model",
                    fix=f"lower algorithm.lr; the last good model is in {self.place / 'checkpoints'}",
                    code="model-not-finite",
                )
            self.row = self._row(t, outcome)
            self.metrics.write(self.row)
            self.unsaved = partial(self._save, t + 1, outcome, release)
            if (t + 1) % every == 0 or t + 1 == self.setup.rounds:
                self.unsaved()

        return keep

    def _row(self, t: int, outcome: Outcome) -> RoundRow:
        row, given = row_of(self.setup, t + 1, outcome), self.setup.experiment.evaluation
        if outcome.lost and self.setup.prepares:
            raise RunError(
                f"the preparation was cut off in its phase {self.setup.phase}, after its noise was drawn",
                why="its release is not known, a second draw would be a second release, and its part of the budget is "
                "spent",
                fix="begin a new run, with a budget of its own",
                code="preparation-lost",
            )
        due = (t + 1) % given.every == 0 or t + 1 > self.setup.rounds - max(1, given.final)
        if self.evaluate is None or not due:
            return row
        norm = float(tree.norm(next(iter(self.setup.algorithm.models(outcome.server).values()))))
        return row.with_more(self.evaluate(t, outcome.server, self.execute.score)).beside(model_norm=norm)

    def _save(self, t: int, outcome: Outcome, release: bytes) -> None:
        """Save a checkpoint: client states first, then the server's, from whose round a resumed run goes on."""
        known: dict[str, checkpoint.JSON] = {
            "stalled": outcome.stalled,
            "ledger_head": self.federation.ledger.head(),
            "release": release.hex(),
            **self.metrics.sync(),
        }
        trees = {"server": outcome.server, **self.execute.keep(t)}
        checkpoint.save(self.place / "checkpoints", t, trees, known)
        self.unsaved = None


def row_of(setup: PhaseSetup, t: int, outcome: Outcome) -> RoundRow:
    return RoundRow(
        phase=setup.phase,
        round=t,
        active=len(outcome.active),
        answered=len(outcome.answered),
        bytes_down=outcome.bytes_down,
        bytes_up=outcome.bytes_up,
        payload=outcome.payload,
        lost=outcome.lost,
        secure=Secure(**outcome.secure).beside(cpu_seconds=None) if outcome.secure else None,
        device_flops=computed(setup, outcome),
    )


def stands(federation: FederatedServer, loaded: checkpoint.Loaded, folder: Path) -> PhaseState:
    """State of a phase, read from its checkpoint and compared with the ledger, which must be as new. Completes a
    release that a crash cut short.
    """
    if not federation.ledger.descends_from(loaded.meta["ledger_head"]):
        raise LedgerError(
            f"the ledger of {folder} does not know what this run has spent",
            why="it is an older copy, or another file: continuing would give spent budget back",
            fix="put the newest ledger back in its place",
            code="ledger-rolled-back",
        )
    federation.replay(loaded.step)
    if loaded.meta["release"]:  # else that round was lost
        federation.publish(loaded.step - 1, bytes.fromhex(loaded.meta["release"]))
    return PhaseState(loaded.trees["server"], loaded.step, loaded.meta["stalled"])


class PowerCut(Clients):
    """Executor that kills this process, to test a crash."""

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Answers:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("nobody survives this")


def computed(setup: PhaseSetup, outcome: Outcome) -> float | None:
    """Floating-point operations of a round's devices, from public numbers; None where the algorithm, a user's own,
    gives no estimate.
    """
    estimates = Estimates.of(setup.algorithm)
    if not setup.task.flops or not setup.experiment.privacy.public_sizes or estimates.passes(1) is None:
        return None
    passes = [estimates.passes(setup.public.sizes[k]) for k in outcome.answered]
    return setup.task.flops * sum(count for count in passes if count is not None)
