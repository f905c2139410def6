"""A run from its first round to its receipt: rounds, metrics, checkpoints, resume. Everything it leaves lies in one
folder.

experiment.toml   resolved      environment.json  where it ran          metrics.jsonl     one object per round
ledger.sqlite     what was spent   checkpoints/   old or new, never half   privacy.json   the receipt
                  model.safetensors
agreement.json    public numbers   private/       not to be shared (see `runs.private`)
candidates.json   how the server's own images were made, where an algorithm asks for such
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch

from sordino import tree, user_code
from sordino.config import Experiment, Network
from sordino.engine import checkpoint
from sordino.engine.checkpoint import atomic_write
from sordino.engine.memory import keep_freed_memory
from sordino.engine.server import Federation
from sordino.errors import BudgetExhausted, RunError
from sordino.evaluate.rows import RoundCost, RoundRow
from sordino.ledger.ledger import Ledger, of_run
from sordino.ledger.notes import SYSTEM, parsed
from sordino.round import Outcome
from sordino.runs import metrics, private
from sordino.runs.agreement import Agreement
from sordino.runs.folder import RunFolder
from sordino.runs.interrupts import patience
from sordino.runs.noise_level import drowning
from sordino.runs.phases import Methods, decided
from sordino.runs.preparation import Prepared, prepare
from sordino.runs.receipt import write_receipt
from sordino.runs.rounds import Begun, PlayedPhase, Standing, executor, row_of, stands
from sordino.runs.setup import Setup
from sordino.runs.shapes import Environment, Receipt
from sordino.runs.simulation import Simulation, settle, simulated
from sordino.runs.taken_over import adopt, check_source
from sordino.tree import Tree
from sordino.version import __version__

LOST = (
    "was cut off after its noise was drawn: a second release would be unpaid, so it is left out, and what it cost "
    "stays spent"
)


class Progress(NamedTuple):
    round: int  # 0 in a preparation, whose phase is in the metrics
    rounds: int
    metrics: RoundRow
    folder: Path
    setup: Setup
    federation: Federation


@dataclass(frozen=True)
class Ended:
    folder: Path
    metrics: list[RoundRow]
    receipt: Receipt
    notes: list[str]  # what the user should know and no table shows
    interrupted: bool


def start(
    experiment: Experiment,
    folder: Path,
    watch: Callable[[Progress], None] | None = None,
    crash: int | None = None,
    prepared: Path | None = None,
) -> Ended:
    """Run an experiment in a new folder. `crash` rehearses: the process is killed in that round, once it is reserved.
    `prepared` is a run whose preparation is taken over.
    """
    experiment = settle(experiment)
    engine = decided(experiment.engine, Methods(experiment).training)
    experiment = experiment.model_copy(update={"engine": engine})
    simulation = simulated(experiment, _data_key(experiment))
    setup = simulation.setup
    _ = setup.plan, simulation.evaluation()  # every refusal happens before a folder exists
    for phase in setup.preparation:
        _ = phase.plan
    if (secure := setup.algorithm.uplink.secure) is not None:
        secure.needs()
    if folder.exists():
        raise RunError(
            f"{folder} already exists",
            why="a run folder belongs to one run",
            fix="choose another --out"
            + (f"; `sordino resume {folder}` continues it" if RunFolder(folder).exists else ""),
            code="run-exists",
        )
    if prepared is not None:
        check_source(setup, prepared)
    for phase in (*(setup.preparation if prepared is None else ()), setup):
        phase.algorithm.check(simulation.home)  # last, because it may draw candidates, which can take hours
    if (shared := experiment.privacy.ledger) is not None and Path(shared).is_file():
        simulation.federation(shared, "before").ledger.close()  # of other data, or of others' clients
    _found(folder, simulation, prepared)
    return _train(simulation, folder, watch, crash=crash)


def _data_key(experiment: Experiment, folder: Path | None = None) -> bytes:
    return private.key_of_data(folder, experiment.privacy.ledger)


def _found(folder: Path, simulation: Simulation, prepared: Path | None) -> None:
    """The run folder with what `resume` needs: it appears whole or not at all."""
    experiment, young = simulation.setup.experiment, folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        parents = list(folder.absolute().parents)
        around = parents[: 1 + next(i for i, parent in enumerate(parents) if parent.exists())]
        young.mkdir(parents=True)
        mine, environment = RunFolder(young), _environment(experiment, prepared)
        atomic_write(mine.experiment_file, experiment.toml().encode())
        atomic_write(mine.environment_file, json.dumps(environment.to_json(), indent=2).encode())
        if (story := simulation.home.story) is not None:
            atomic_write(mine.candidates_file, json.dumps(story, indent=2).encode())
        if experiment.privacy.noise == SYSTEM:
            readers = (phase.algorithm.read for phase in simulation.setup.whole.phases)
            private.found(young, clients=any(reader.redraw is not None for reader in readers))
        private.write(young / private.DATA, simulation.population.data_key)
        if (shared := experiment.privacy.ledger) is not None:
            private.share_key(shared, simulation.population.data_key)
        simulation.agreement().write(young)
        young.rename(folder)
        for parent in around:
            checkpoint.sync(parent)
    except OSError as error:
        raise RunError(
            f"cannot create {folder}", why=error.strerror or str(error), fix="choose another --out", code="not-writable"
        ) from None
    finally:
        shutil.rmtree(young, ignore_errors=True)


def fresh_folder(name: str) -> Path:
    """runs/DATE-NAME, numbered where that is taken."""
    stem = f"{datetime.date.today().isoformat()}-{name}"
    folder, again = Path("runs") / stem, 2
    while folder.exists():
        folder, again = Path("runs") / f"{stem}-{again}", again + 1
    return folder


def resume(
    folder: Path, watch: Callable[[Progress], None] | None = None, fallback: bool = False, moved: bool = False
) -> Ended:
    """Continue a run where its last checkpoint stands: the same bytes as if it had never stopped.

    `fallback` sets a damaged newest checkpoint aside and takes the one before; seeded rounds are then played again, to
    the same releases. `moved` says that this
    folder has taken the place of the one where the run began, and that nothing goes on there.
    """
    RunFolder(folder).check()
    experiment = RunFolder(folder).experiment
    _check_unedited(experiment, folder)
    if experiment.privacy.noise == SYSTEM:
        if moved:
            private.settle(folder)
        private.check_no_copy(folder)
    simulation = simulated(experiment, _data_key(experiment, folder))
    _check_agreement(simulation, folder)
    return _train(simulation, folder, watch, fallback)


def _check_agreement(simulation: Simulation, folder: Path) -> None:
    """The receipt is sealed with the agreement beside it; the data themselves are checked against the ledger."""
    if not Agreement.read(folder).says(simulation.agreement()):
        raise RunError(
            f"agreement.json of {folder} is not what this run's data and experiment give",
            why="whoever verifies the receipt takes the public numbers from there",
            fix="put the old file back, or the data that the run began with",
            code="edited-run",
        )


def _check_unedited(experiment: Experiment, folder: Path) -> None:
    """What a run has promised it has promised under one experiment: how it is computed ([engine]) may change, and
    nothing else."""
    mine = RunFolder(folder)
    now: tuple[str, str] = (experiment.digest(), experiment.privacy.noise)
    said: list[tuple[str, str]] = [(mine.environment.config, now[1])]
    if mine.ledger.exists():
        with Ledger.as_founded(mine.ledger) as ledger:
            notes = [parsed(entry.note) for entry in of_run(ledger, mine.environment.run)]
        said += [(note.config, note.noise) for note in notes]
    if any(each != now for each in said):
        raise RunError(
            f"experiment.toml of {folder} is not the experiment that this run began with",
            why="what was released until now was planned, priced and promised under the other one",
            fix="put the old file back; [engine] alone may be changed. Another experiment is another run",
            code="edited-run",
        )


def _train(
    simulation: Simulation,
    folder: Path,
    watch: Callable[[Progress], None] | None,
    fallback: bool = False,
    crash: int | None = None,
) -> Ended:
    setup, experiment = simulation.setup, simulation.setup.experiment
    torch.set_num_threads(experiment.engine.threads)
    keep_freed_memory()
    mine, environment = RunFolder(folder), RunFolder(folder).environment
    run = environment.run
    with mine.locked(), _on_disk(folder), contextlib.ExitStack() as stack:
        ledger, real = mine.ledger, experiment.privacy.noise == SYSTEM
        asked, silent = stack.enter_context(patience()), list[str]()

        def prepared(phase: Simulation, rules: Federation, row: RoundRow) -> None:
            if row.active and not row.answered:
                silent.append(f"phase {phase.setup.phase}, round {row.round}: nobody could take part")
            silent.extend(f"phase {phase.setup.phase}, {remark}" for remark in rules.inbox.remarks)
            rules.inbox.remarks.clear()
            if watch is not None:
                watch(Progress(0, experiment.rounds, row, folder, phase.setup, rules))

        try:
            if environment.prepared:
                adopt(simulation, folder, run, ledger, Path(environment.prepared))
            begun = prepare(simulation, folder, run, ledger, asked, prepared)
        except KeyboardInterrupt:
            begun = Prepared(None, None, done=False)
        federation = simulation.federation(ledger, run)
        stack.callback(federation.ledger.close)
        notes = [
            *setup.cohort.warnings(experiment.rounds, len(setup.public.sizes)),
            *drowning(setup),
            *simulation.home.disclosed,
            *silent,
        ]
        for phase in setup.preparation:
            notes += phase.algorithm.warns(simulation.home)
        evaluate, interrupted = simulation.evaluation(), False
        if not begun.done:
            return _ended(setup, folder, federation, None, notes, interrupted=True)
        loaded = checkpoint.load(mine.checkpoints, setup.state, fallback=fallback)
        at = Standing(begun.server, 0) if loaded is None else stands(federation, loaded, folder)
        known = None if loaded is None else Begun(folder, loaded)
        execute = executor(simulation, folder, folder, run, known, begun.handed, stack)
        written = {} if loaded is None else loaded.meta
        hidden = setup.cohort.hidden
        rows = stack.enter_context(metrics.opened(mine.metrics_file, written, private=real, hidden=hidden))

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
            with open((RunFolder(mine.private) if real else mine).costs_file, "a") as costs:
                costs.write(json.dumps(cost.to_json()) + "\n")

        played_by = PlayedPhase(setup, federation, execute, folder, rows, tell)

        def more(at: Standing) -> bool:
            nonlocal interrupted
            return at.t < experiment.rounds and not (interrupted := asked())

        def played(now: Standing, outcome: Outcome) -> None:
            nonlocal at
            at = now
            if outcome.lost:
                notes.append(f"round {now.t} {LOST}")
            elif not outcome.answered and not federation.everyone_pays:
                notes.append(f"round {now.t}: nobody could take part, the model stays as it was")
            if experiment.engine.network != Network():
                note_cost(RoundCost(round=now.t, seconds=round(played_by.seconds, 3)))
            if watch is not None:
                watch(Progress(now.t, experiment.rounds, played_by.row, folder, setup, federation))

        try:
            played_by.play(at, more, played, crash)
        except BudgetExhausted as error:
            notes.append(f"stopped before round {at.t + 1}: {error.what}")
        except KeyboardInterrupt:
            interrupted = True
        rows.sync()
        return _ended(setup, folder, federation, at.server, notes, interrupted)


def _ended(
    setup: Setup, folder: Path, federation: Federation, server: Tree, notes: list[str], interrupted: bool
) -> Ended:
    made, remarks = _finish(setup, folder, federation, server), federation.inbox.remarks
    # a remark names a client that was asked, which a hidden cohort does not tell
    hidden = setup.cohort.hidden and setup.experiment.privacy.noise == SYSTEM
    mine = RunFolder(folder)
    for place, told in ((RunFolder(mine.private) if hidden else mine, remarks), (mine, notes)):
        with open(place.log_file, "a", encoding="utf-8") as log:
            log.writelines(f"{note}\n" for note in told)
    return Ended(folder, mine.metrics(), made, [*remarks, *notes], interrupted)


def _due(t: int, experiment: Experiment) -> bool:
    """Is the model evaluated after round t?"""
    return t % experiment.evaluation.every == 0 or t > experiment.rounds - max(1, experiment.evaluation.final)


def _finish(setup: Setup, folder: Path, federation: Federation, server: Tree) -> Receipt:
    if server is not None:
        model = next(iter(setup.algorithm.models(server).values()))
        packed = safetensors.torch.save({name: value.contiguous() for name, value in model.items()})
        atomic_write(RunFolder(folder).model_file, packed)
    return write_receipt(folder, setup, federation)


@contextlib.contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    try:
        with user_code.blamed():
            yield
    except OSError as error:
        raise RunError(
            f"cannot write in {folder}",
            why=str(error),
            fix="free some space or check the permissions, then resume",
            code="not-writable",
        ) from error


def _environment(experiment: Experiment, prepared: Path | None) -> Environment:
    digest = experiment.digest()
    # a seeded run is the same release whenever it is repeated; noise from the system never is
    run = digest[:16] if experiment.privacy.noise == "counter" else f"{digest[:16]}-{secrets.token_hex(6)}"
    return Environment(
        run=run,
        config=digest,
        sordino=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        platform=platform.platform(),
        processor=platform.machine(),
        cores=os.cpu_count() or 0,
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        prepared="" if prepared is None else str(prepared.resolve()),
    )
