"""Execution of a run from its first round to its receipt, in a folder that was created for it: rounds, metrics,
checkpoints, callbacks. Only the server's side is used, so simulations and runs between real sites share it.

Callbacks are your own code, called after each round with its row of metrics.jsonl. No examples, uploads or models are
passed; with real noise not even test results, which no guarantee covers and which lie in the private folder.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sordino import tree, user_code
from sordino.accounting.claims import Policy
from sordino.accounting.events import Json
from sordino.algorithms.optional import ChecksServer
from sordino.config import Network, filled, session
from sordino.engine import checkpoint
from sordino.engine.server import FederatedServer
from sordino.errors import BudgetExhausted, ConfigError, unwritten
from sordino.fast import keep_freed_memory
from sordino.ledger.files import append_line
from sordino.metrics import RoundCost, RoundRow
from sordino.planning.planner import Planner
from sordino.receipts import Receipt
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import write_receipt
from sordino.round import Outcome
from sordino.runs import bundle
from sordino.runs.backend import Backend, StartingPoint
from sordino.runs.preparation import adopt, prepare
from sordino.runs.rounds import RunningPhase, RunningRun, patience, shown
from sordino.runs.setup import PhaseSetup
from sordino.runs.witness import Witness, needed
from sordino.tree import Tree

LOST = (
    "was cut off after its noise was drawn: a second release would not be paid for, so the round is lost, and its "
    "cost stays spent"
)


MISSED = "rounds have left since the copy from which this run continues: they are lost here, and their cost stays spent"


class Progress(NamedTuple):
    """A round that is done, as observers of a run get it."""

    round: int  # 0 in a preparation, whose phase is in the metrics
    rounds: int
    metrics: RoundRow
    folder: Path
    setup: PhaseSetup
    federation: FederatedServer
    warned: tuple[str, ...] = ()  # what should be known before many rounds have passed


@dataclass(frozen=True)
class Ended:
    """Result of a run that has ended or was stopped."""

    folder: Path
    metrics: list[RoundRow]
    receipt: Receipt
    notes: list[str]  # what the user should know and no table shows
    interrupted: bool


def play(
    backend: Backend,
    folder: Path,
    watch: Callable[[Progress], None] | None = None,
    fallback: bool = False,
    crash: int | None = None,
    moved: bool = False,
) -> Ended:
    setup, experiment = backend.setup, backend.setup.experiment
    torch.set_num_threads(experiment.engine.threads)
    keep_freed_memory()
    files, environment = RunFolder(folder), RunFolder(folder).environment
    with files.locked(), _on_disk(folder), contextlib.ExitStack() as stack:
        silent, missed, witness = list[str](), set[str](), Witness.of(folder) if needed(setup) else None
        if witness is not None:
            with backend.federation(files.ledger, environment.run).ledger as books:
                missed = witness.check(books, moved)
                witness.begin(books)
        run = RunningRun(folder, environment.run, files.ledger, witness, stack.enter_context(patience()))

        def prepared(phase: Backend, rules: FederatedServer, row: RoundRow) -> None:
            if row.active and not row.answered:
                silent.append(f"phase {phase.setup.phase}, round {row.round}: nobody could take part")
            silent.extend(f"phase {phase.setup.phase}, {remark}" for remark in rules.inbox.remarks)
            rules.inbox.remarks.clear()
            if watch is not None:
                watch(Progress(0, experiment.rounds, row, folder, phase.setup, rules))

        try:
            if environment.prepared:
                adopt(backend, folder, run.name, run.ledger, Path(environment.prepared))
            begun = prepare(run, backend, prepared)
        except KeyboardInterrupt:
            begun = None
        notes = [
            *setup.cohort.warnings(experiment.rounds, len(setup.public.sizes)),
            *Planner(setup).warnings,
            *backend.home.disclosed,
            *session.remarks(experiment.model_dump()),
            *([f"{len(missed)} {MISSED}"] if missed else []),
            *silent,
        ]
        for prior in setup.preparation:
            notes += ChecksServer.of(prior.algorithm).warnings(backend.home)
        warned = (*backend.remarks, *notes)
        evaluate, callbacks = backend.evaluation(), named(experiment.callbacks)
        if begun is None:
            with (federation := run.federation(backend)).ledger:
                return _ended(backend, folder, federation, None, notes, interrupted=True)
        loaded = checkpoint.load(files.checkpoints, setup.state, fallback=fallback)
        known = None if loaded is None else StartingPoint(folder, loaded)
        opened = run.opened(backend, folder, begun.server, loaded, known, begun.public_tensors, evaluate)
        phase = stack.enter_context(opened)
        try:
            before = phase.at.server
            for outcome in phase.rounds(crash):
                t, server, row = phase.at.t, phase.at.server, phase.row
                if outcome.lost:
                    notes.append(f"round {t} {LOST}")
                elif not outcome.answered and not phase.federation.plan.everyone_pays:
                    notes.append(f"round {t}: nobody could take part, {_moved(setup, before, server)}")
                before = server
                _note_costs(backend, folder, phase, outcome)
                for callback in callbacks:
                    callback.on_round(visible(row, setup.policy))
                if watch is not None:
                    watch(Progress(t, experiment.rounds, row, folder, setup, phase.federation, warned))
            interrupted = not phase.over
        except BudgetExhausted as error:
            notes.append(f"stopped before round {phase.at.t + 1}: {error.what}")
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
        phase.metrics.sync()
        ended = _ended(backend, folder, phase.federation, phase.at.server, notes, interrupted)
        if loaded is not None and loaded.step >= experiment.rounds:
            ended.notes.append("the run was finished before: nothing was run, and nothing was spent")
        for callback in callbacks:
            callback.on_end(ended.receipt.to_json())
        return ended


def _ended(
    backend: Backend, folder: Path, federation: FederatedServer, server: Tree, notes: list[str], interrupted: bool
) -> Ended:
    setup = backend.setup
    if server is not None:
        bundle.write(folder, setup, next(iter(setup.algorithm.models(server).values())), backend.columns)
    made, remarks = write_receipt(folder, setup, federation), federation.inbox.remarks
    files, real = RunFolder(folder), setup.policy.real
    own = RunFolder(files.private) if real else files
    # a remark names a client that was asked, which must not be disclosed of a hidden cohort
    asked = own if setup.policy.hidden else files
    for place, lines in ((asked, remarks), (own, backend.remarks), (files, notes)):
        if place is own is not files and not lines:
            continue
        with open(place.log_file, "a", encoding="utf-8") as log:
            log.writelines(f"{note}\n" for note in lines)
    return Ended(folder, files.metrics(), made, [*remarks, *backend.remarks, *notes], interrupted)


def _moved(setup: PhaseSetup, before: Tree, now: Tree) -> str:
    """Remark on a round without clients in which the model moved all the same, as under a server momentum."""
    was, is_ = (tree.leaves(next(iter(setup.algorithm.models(server).values()))) for server in (before, now))
    if all(map(torch.equal, was, is_)):
        return "the model stays as it was"
    return "and what the server keeps of earlier rounds moved the model on"


def _note_costs(backend: Backend, folder: Path, phase: RunningPhase, outcome: Outcome) -> None:
    """Append a round's times to costs.jsonl. With real noise it lies in the private folder: times tell how many uploads
    there were to add.
    """
    t, files = phase.at.t, RunFolder(folder)
    costs = []
    if outcome.secure:
        costs.append(RoundCost(round=t, cpu_seconds=outcome.secure["cpu_seconds"]))
    if backend.setup.experiment.engine.network != Network():
        costs.append(RoundCost(round=t, seconds=round(phase.seconds, 3)))
    for cost in costs:
        append_line(
            (RunFolder(files.private) if backend.setup.policy.real else files).costs_file, json.dumps(cost.to_json())
        )


@contextlib.contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    try:
        with user_code.blamed():
            yield
    except OSError as error:
        raise unwritten(f"cannot write in {folder}", error, "check the folder, then resume") from error


class Callback:
    """Base of a callback: write a subclass with `on_round`, `on_end` or both. An exception in it ends the run; what was
    released stays.
    """

    def on_round(self, row: Json) -> None:
        """Called after each round with its row of metrics.jsonl, without lists that hold one value for each client."""

    def on_end(self, receipt: Json) -> None:
        """Called at the end of the run with the receipt, as it stands in privacy.json."""


def named(tables: Sequence[str | Mapping[str, Any]]) -> list[Callback]:
    """The callbacks that an experiment names, each `module:Class` or a table with a name and its arguments."""
    found: list[Callback] = []
    for given in tables:
        table = {"name": given} if isinstance(given, str) else dict(given)
        name = str(table.pop("name", ""))
        if not user_code.is_own(name):
            raise ConfigError(
                f"callbacks names {name!r}", why="a callback is a class of your own", fix="give module:Class",
                code="unknown-callback",
            )  # fmt: skip
        made = user_code.load(name, "callbacks")
        if isinstance(made, Callback):
            found.append(made)
        else:
            found.append(filled(user_code.of_kind(name, "callbacks", Callback), table, f"[callbacks] {name}"))
    return found


def visible(row: RoundRow, policy: Policy) -> Json:
    """The row that a callback gets: never a list with one value for each client."""
    if policy.real:
        return shown(row, policy.hidden)
    values = row.to_json()
    if isinstance(spread := values.get("clients"), Mapping):
        values = {**values, "clients": {name: value for name, value in spread.items() if name != "each"}}
    return values
