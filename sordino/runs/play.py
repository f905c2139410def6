"""A run from its first round to its receipt, in a folder that was founded for it: rounds, metrics, checkpoints. Only
the server's half is known here, so simulations and real sites are played alike.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from sordino import tree, user_code
from sordino.algorithms.optional import ChecksServer
from sordino.config import Experiment, Network, session
from sordino.engine import checkpoint
from sordino.engine.memory import keep_freed_memory
from sordino.engine.server import Federation
from sordino.errors import BudgetExhausted, unwritten
from sordino.ledger.files import append_line
from sordino.metrics.rows import RoundCost, RoundRow
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import write_receipt
from sordino.receipts.run_files import Receipt
from sordino.round import Outcome
from sordino.runs import bundle, callbacks
from sordino.runs import metric_files as metrics
from sordino.runs.noise_level import drowning
from sordino.runs.preparation import Prepared, prepare
from sordino.runs.reused_preparation import adopt
from sordino.runs.rounds import PlayedPhase, Standing, row_of, stands
from sordino.runs.servers_half import Begun, ServersHalf
from sordino.runs.setup import Setup
from sordino.runs.stop_signals import patience
from sordino.runs.witness import Witness, needed
from sordino.tree import Tree

LOST = (
    "was cut off after its noise was drawn: a second release would be unpaid, so it is left out, and what it cost "
    "stays spent"
)


MISSED = (
    "rounds have left since the copy from which this run goes on: they are lost here, and what they cost stays spent"
)


class Progress(NamedTuple):
    round: int  # 0 in a preparation, whose phase is in the metrics
    rounds: int
    metrics: RoundRow
    folder: Path
    setup: Setup
    federation: Federation
    warned: tuple[str, ...] = ()  # what should be known before many rounds have passed


@dataclass(frozen=True)
class Ended:
    folder: Path
    metrics: list[RoundRow]
    receipt: Receipt
    notes: list[str]  # what the user should know and no table shows
    interrupted: bool


def play(
    half: ServersHalf,
    folder: Path,
    watch: Callable[[Progress], None] | None = None,
    fallback: bool = False,
    crash: int | None = None,
    moved: bool = False,
) -> Ended:
    setup, experiment = half.setup, half.setup.experiment
    torch.set_num_threads(experiment.engine.threads)
    keep_freed_memory()
    mine, environment = RunFolder(folder), RunFolder(folder).environment
    run = environment.run
    with mine.locked(), _on_disk(folder), contextlib.ExitStack() as stack:
        ledger, real = mine.ledger, experiment.privacy.real
        asked, silent = stack.enter_context(patience()), list[str]()
        witness, missed = Witness.of(folder) if needed(setup) else None, set[str]()
        if witness is not None:
            with half.federation(ledger, run).ledger as books:
                missed = witness.check(books, moved)
                witness.begin(books)

        def prepared(phase: ServersHalf, rules: Federation, row: RoundRow) -> None:
            if row.active and not row.answered:
                silent.append(f"phase {phase.setup.phase}, round {row.round}: nobody could take part")
            silent.extend(f"phase {phase.setup.phase}, {remark}" for remark in rules.inbox.remarks)
            rules.inbox.remarks.clear()
            if watch is not None:
                watch(Progress(0, experiment.rounds, row, folder, phase.setup, rules))

        try:
            if environment.prepared:
                adopt(half, folder, run, ledger, Path(environment.prepared))
            begun = prepare(half, folder, run, ledger, witness, asked, prepared)
        except KeyboardInterrupt:
            begun = Prepared(None, None, done=False)
        federation = half.federation(ledger, run)
        federation.witness = witness or federation.witness
        stack.callback(federation.ledger.close)
        notes = [
            *setup.cohort.warnings(experiment.rounds, len(setup.public.sizes)),
            *drowning(setup),
            *half.home.disclosed,
            *session.remarks(experiment.model_dump()),
            *([f"{len(missed)} {MISSED}"] if missed else []),
            *silent,
        ]
        for phase in setup.preparation:
            notes += ChecksServer.of(phase.algorithm).warnings(half.home)
        warned = (*half.remarks, *notes)
        evaluate, interrupted, told = half.evaluation(), False, callbacks.named(experiment.callbacks)
        if not begun.done:
            return _ended(half, folder, federation, None, notes, interrupted=True)
        loaded = checkpoint.load(mine.checkpoints, setup.state, fallback=fallback)
        at = Standing(begun.server, 0) if loaded is None else stands(federation, loaded, folder)
        known = None if loaded is None else Begun(folder, loaded)
        execute = half.executor(folder, folder, run, known, begun.handed, stack)
        written = {} if loaded is None else loaded.meta
        rows = stack.enter_context(metrics.opened(mine.metrics_file, written, private=real, hidden=setup.policy.hidden))

        def tell(t: int, outcome: Outcome) -> RoundRow:
            row = row_of(setup, t + 1, outcome)
            if _due(t + 1, experiment):
                norm = float(tree.norm(next(iter(setup.algorithm.models(outcome.server).values()))))
                row = row.with_more(evaluate(t, outcome.server, execute.score)).beside(model_norm=norm)
            rows.write(row)
            if outcome.secure:
                note_cost(RoundCost(round=t + 1, cpu_seconds=outcome.secure["cpu_seconds"]))
            return row

        def note_cost(cost: RoundCost) -> None:
            """Seconds tell how many there were to add."""
            append_line((RunFolder(mine.private) if real else mine).costs_file, json.dumps(cost.to_json()))

        played_by = PlayedPhase(setup, federation, execute, folder, rows, tell)

        def more(at: Standing) -> bool:
            nonlocal interrupted
            return at.t < experiment.rounds and not (interrupted := asked())

        def played(now: Standing, outcome: Outcome) -> None:
            nonlocal at
            before, at = at.server, now
            if outcome.lost:
                notes.append(f"round {now.t} {LOST}")
            elif not outcome.answered and not federation.plan.everyone_pays:
                notes.append(f"round {now.t}: nobody could take part, {_moved(setup, before, now.server)}")
            if experiment.engine.network != Network():
                note_cost(RoundCost(round=now.t, seconds=round(played_by.seconds, 3)))
            for callback in told:
                callback.on_round(callbacks.visible(played_by.row, setup.policy))
            if watch is not None:
                watch(Progress(now.t, experiment.rounds, played_by.row, folder, setup, federation, warned))

        try:
            played_by.play(at, more, played, crash)
        except BudgetExhausted as error:
            notes.append(f"stopped before round {at.t + 1}: {error.what}")
        except KeyboardInterrupt:
            interrupted = True
        rows.sync()
        ended = _ended(half, folder, federation, at.server, notes, interrupted)
        if loaded is not None and loaded.step >= experiment.rounds:
            ended.notes.append("the run was finished before: nothing was run, and nothing was spent")
        for callback in told:
            callback.on_end(ended.receipt.to_json())
        return ended


def _ended(
    half: ServersHalf, folder: Path, federation: Federation, server: Tree, notes: list[str], interrupted: bool
) -> Ended:
    setup = half.setup
    if server is not None:
        bundle.write(folder, setup, next(iter(setup.algorithm.models(server).values())), half.columns)
    made, remarks = write_receipt(folder, setup, federation), federation.inbox.remarks
    mine, real = RunFolder(folder), setup.policy.real
    own = RunFolder(mine.private) if real else mine
    # a remark names a client that was asked, which a hidden cohort does not tell
    asked = own if setup.policy.hidden else mine
    for place, told in ((asked, remarks), (own, half.remarks), (mine, notes)):
        if place is own is not mine and not told:
            continue
        with open(place.log_file, "a", encoding="utf-8") as log:
            log.writelines(f"{note}\n" for note in told)
    return Ended(folder, mine.metrics(), made, [*remarks, *half.remarks, *notes], interrupted)


def _moved(setup: Setup, before: Tree, now: Tree) -> str:
    """Words for the model after a round without clients: a server with a momentum goes on."""
    was, is_ = (tree.leaves(next(iter(setup.algorithm.models(server).values()))) for server in (before, now))
    if all(map(torch.equal, was, is_)):
        return "the model stays as it was"
    return "and what the server keeps of earlier rounds moved the model on"


def _due(t: int, experiment: Experiment) -> bool:
    """Is the model evaluated after round t?"""
    return t % experiment.evaluation.every == 0 or t > experiment.rounds - max(1, experiment.evaluation.final)


@contextlib.contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    try:
        with user_code.blamed():
            yield
    except OSError as error:
        raise unwritten(f"cannot write in {folder}", error, "check the folder, then resume") from error
