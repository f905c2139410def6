"""Execution of the phases before the training, each from its own checkpoint to its end; the training starts from the
result of the last one.

Files in the run folder: preparation/NAME/checkpoints, and beside it the server's findings, a table in each file;
preparation.jsonl with one object per round; and public.safetensors, which every client receives before the first round
of the training.

The preparation of another run can be reused (`--prepared`), to try training in many ways. Its releases are not made
again: their ledger entries are copied with their charges, and the receipt of the new run accounts for both
preparation and training. Runs that share a preparation but not a ledger do not account for each other's training, as
always.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from sordino.accounting.composition import under
from sordino.accounting.events import Json
from sordino.algorithms.optional import PublicTensors, first_state
from sordino.algorithms.phases import Phase
from sordino.engine import checkpoint, wire
from sordino.engine.server import FederatedServer
from sordino.errors import RunError
from sordino.ledger.books import PUBLIC_TENSORS, Op
from sordino.ledger.files import atomic_write
from sordino.ledger.ledger import Entry, State
from sordino.metrics import RoundRow
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import opened
from sordino.runs import rounds
from sordino.runs.backend import Backend, StartingPoint
from sordino.runs.rounds import RunningRun, stands
from sordino.runs.setup import PhaseSetup
from sordino.runs.simulation import simulated
from sordino.tree import Tree
from sordino.types import Params
from sordino.version import __version__

Watch = Callable[[Backend, FederatedServer, RoundRow], None]


class Prepared(NamedTuple):
    """Final state of the last phase before the training."""

    server: Tree  # state of the server before the first round of training
    public_tensors: Params | None  # what every client has been given; None if nothing


def prepare(run: RunningRun, backend: Backend, watch: Watch) -> Prepared | None:
    """Runs every phase before the training that is not over yet. None where the user has stopped it."""
    before: Tree = None
    begun: StartingPoint | None = None
    for phase in backend.preparation:
        place = RunFolder(run.folder).of_phase(phase.setup.phase).path
        loaded = checkpoint.load(place / "checkpoints", phase.setup.state)
        begun = StartingPoint(place, loaded) if loaded is not None else begun
        if loaded is None or not phase.setup.over(loaded.trees["server"]):
            if (server := _played(run, phase, place, before, loaded, begun, watch)) is None:
                return None
            after = checkpoint.load(place / "checkpoints", phase.setup.state)
            assert after is not None
            begun = StartingPoint(place, after)
        else:
            with (federation := run.federation(phase)).ledger:
                server = stands(federation, loaded, run.folder).server  # ends a release that a crash cut short
        _write_tables(phase, place, server)
        before = phase.setup.result(server)
    algorithm = backend.setup.algorithm
    server = first_state(algorithm, backend.setup.task, backend.setup.key, before, backend.home)
    public_tensors = PublicTensors.of(algorithm).public_tensors(before, backend.home)
    if public_tensors is not None:
        _send_tensors(backend, run.folder, public_tensors, begun)
    return Prepared(server, public_tensors)


def _played(
    run: RunningRun,
    backend: Backend,
    place: Path,
    before: Tree,
    loaded: checkpoint.Loaded | None,
    begun: StartingPoint | None,
    watch: Watch,
) -> Tree | None:
    """Runs a phase to its end; returns the server's state there, None where the user has stopped it."""
    place.mkdir(parents=True, exist_ok=True)
    setup = backend.setup
    first = None if loaded else first_state(setup.algorithm, setup.task, setup.key, before, backend.home)
    with run.opened(backend, place, first, loaded, begun) as phase:
        for _ in phase.rounds():
            watch(backend, phase.federation, phase.row)
        return phase.at.server if phase.over else None


def _write_tables(phase: Backend, place: Path, server: Tree) -> None:
    """Writes the server's results as tables, computed from its state alone, so that a repeated call writes the same."""
    assert isinstance(phase.setup.algorithm, Phase)
    for name, rows in phase.setup.algorithm.tables(server).items():
        atomic_write(place / f"{name}.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows).encode())


def _send_tensors(backend: Backend, folder: Path, tensors: Params, begun: StartingPoint | None) -> None:
    """Writes the tensors that every client receives to a file, which clients in other processes read, and records their
    bytes: one message to each client."""
    from safetensors.torch import save

    atomic_write(RunFolder(folder).tensors_file, save({k: v.cpu().contiguous() for k, v in tensors.items()}))
    config = backend.setup.experiment.digest()
    header = wire.Header(PUBLIC_TENSORS, config, 0, -1, "down")
    each = wire.size(header, wire.schema(tensors))
    row = RoundRow(
        phase=PUBLIC_TENSORS, round=0, bytes_down=len(backend.setup.public.sizes) * each, bytes_up=0, payload=0
    )
    written, real = begun.loaded.meta if begun is not None else {}, backend.setup.policy.real
    with rounds.opened(RunFolder(folder).preparation_file, written, real, hidden=False) as rows:
        rows.write(row)
        rows.sync()


DEPENDS = ("seed", "data", "partition", "model", "candidates", "chaos")  # tables that every preparation looks at


def check_source(setup: PhaseSetup, source: Path) -> None:
    """Refuse a preparation that is not finished, that differs from the one this experiment would make, or whose noise
    is real.
    """
    its = RunFolder(source)
    its.check()
    other = simulated(its.experiment).setup
    if setup.policy.real or other.policy.real:
        raise RunError(
            f"the preparation of {source} cannot be reused, with real noise",
            why="its budgets were paid for the rows of that run, and nothing shows that these are the same rows",
            fix="leave --prepared out and prepare again",
            code="prepared-with-real-noise",
        )
    if not setup.preparation or not other.preparation:
        raise RunError(
            f"there is no preparation to take from {source}",
            why="that run has no preparation" if setup.preparation else "this experiment has none",
            fix="leave --prepared out",
            code="nothing-prepared",
        )
    here, there = _depends(setup, __version__), _depends(other, its.environment.sordino)
    differs = [name for name in here | there if here.get(name) != there.get(name)]
    if differs:
        raise RunError(
            f"the preparation of {source} does not fit this experiment",
            why=f"these differ: {', '.join(differs)}",
            fix="change them back, or leave --prepared out and prepare again",
            code="prepared-otherwise",
        )
    if _priced(setup) and (setup.experiment.privacy.ledger or other.experiment.privacy.ledger):
        raise RunError(
            f"{source} paid for its preparation from a ledger that several runs share",
            why="there, the same release would be charged a second time",
            fix="leave --prepared out, or let each run have its own ledger",
            code="prepared-on-shared-ledger",
        )
    for phase, (loaded, entries) in _released(other, source).items():
        done = loaded is not None and all(entry.state is State.PUBLISHED for entry in entries)
        if not done or loaded.step != len(entries) or not _phase(other, phase).over(loaded.trees["server"]):
            raise RunError(
                f"the preparation of {source} is not finished",
                why=f"its phase {phase} is not over",
                fix=f"`sordino resume {quote(str(source))}` finishes it",
                code="still-preparing",
            )


def _depends(setup: PhaseSetup, version: str) -> Json:
    """Settings and facts on which the result of a preparation depends, under the names that an error shows: two runs
    can share a preparation where all are equal. The text of user code and the content of images are not compared.
    """
    experiment = setup.experiment
    tables = experiment.model_dump(mode="json", include={*DEPENDS})
    priced = experiment.privacy.model_dump(mode="json", exclude={"ledger"}) if _priced(setup) else None
    return {f"[{name}]": tables[name] for name in DEPENDS} | {
        "how the preparation is done": [repr(phase.algorithm) for phase in setup.preparation],
        "the outputs of the model": setup.parameters,
        "[privacy]": priced,
        "what a budget leaves for it": [(repr(phase.plan.pricing), phase.plan.portion) for phase in setup.preparation],
        "engine.precision": setup.engine.precision,
        "the version of sordino": version,
    }


def _priced(setup: PhaseSetup) -> bool:
    """True where the preparation costs privacy budget."""
    return any(phase.plan.offer is not None for phase in setup.preparation)


def _phase(setup: PhaseSetup, name: str) -> PhaseSetup:
    return next(one for one in setup.preparation if one.phase == name)


def _released(setup: PhaseSetup, source: Path) -> dict[str, tuple[Any, list[Entry]]]:
    """Last checkpoint and ledger entries of each phase."""
    _, federation = opened(source)
    with federation.ledger:
        entries = federation.entries()
    return {
        phase.phase: (
            checkpoint.load(RunFolder(source).of_phase(phase.phase).checkpoints, phase.state),
            [entry for entry in entries if Op.of(entry.op).phase == phase.phase],
        )
        for phase in setup.preparation
    }


def adopt(backend: Backend, folder: Path, run: str, ledger: Path, source: Path) -> None:
    """Copy each phase into a new run folder: first ledger entries, then metric rows, then the checkpoint that ends the
    phase. After a crash it is done again.
    """
    setup = backend.setup
    ours, theirs = RunFolder(folder), RunFolder(source)
    places = {one.phase: ours.of_phase(one.phase).checkpoints for one in setup.preparation}
    if all(checkpoint.latest(place) is not None for place in places.values()):
        return
    check_source(setup, source)  # again: a resumed adoption may come long after the first look
    rows = theirs.preparation_file.read_bytes()
    if theirs.candidates_file.exists():
        atomic_write(ours.candidates_file, theirs.candidates_file.read_bytes())
    for phase, (loaded, entries) in _released(setup, source).items():
        if checkpoint.latest(places[phase]) is not None:
            continue
        with (federation := backend.at(_phase(setup, phase).stage).federation(ledger, run)).ledger as book:
            for entry in entries:
                op = federation.op(Op.of(entry.op).round)
                text = under(entry.parsed, federation.config)
                granted = book.reserve(op, entry.charges, bytes.fromhex(entry.plan), text)
                assert granted == entry.charges.keys(), "the same budget pays for the same release"
                assert entry.digest is not None
                book.drawn(op)
                book.stored(op, bytes.fromhex(entry.digest))
                book.published(op)
            head = book.head()
        atomic_write(ours.preparation_file, rows[: loaded.meta["metrics_bytes"]])
        server = {"server": loaded.trees["server"]}  # what clients kept is for phases to come, and there is none
        checkpoint.save(places[phase], loaded.step, server, {**loaded.meta, "ledger_head": head})
