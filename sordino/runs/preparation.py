"""Play the phases before the training, each from its own checkpoint to its end, and hand over what the last one found.

Files in the run folder: preparation/NAME/checkpoints, and beside it the server's findings, a table in each file;
preparation.jsonl with one object per round; and handed.safetensors, which every client has been given before the first
round of the training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sordino.algorithms.optional import PublicTensors, first_state
from sordino.algorithms.phases import Phase
from sordino.engine import checkpoint, wire
from sordino.engine.server import FederatedServer
from sordino.ledger.files import atomic_write
from sordino.metrics.rows import RoundRow
from sordino.receipts.folder import RunFolder
from sordino.runs import metric_files as metrics
from sordino.runs.backend import Backend, Begun
from sordino.runs.rounds import RunInPlay, stands
from sordino.tree import Tree
from sordino.types import HANDED, Params

Watch = Callable[[Backend, FederatedServer, RoundRow], None]


class Prepared(NamedTuple):
    """The end of the last phase before the training."""

    server: Tree  # state of the server before the first round of training
    handed: Params | None  # what every client has been given; None if nothing


def prepare(run: RunInPlay, backend: Backend, watch: Watch) -> Prepared | None:
    """Plays every phase that is not over yet. None where the user has stopped it."""
    before: Tree = None
    begun: Begun | None = None
    for mine in backend.preparation:
        place = RunFolder(run.folder).of_phase(mine.setup.phase).path
        loaded = checkpoint.load(place / "checkpoints", mine.setup.state)
        begun = Begun(place, loaded) if loaded is not None else begun
        if loaded is None or not mine.setup.over(loaded.trees["server"]):
            if (server := _played(run, mine, place, before, loaded, begun, watch)) is None:
                return None
            after = checkpoint.load(place / "checkpoints", mine.setup.state)
            assert after is not None
            begun = Begun(place, after)
        else:
            with (federation := run.federation(mine)).ledger:
                server = stands(federation, loaded, run.folder).server  # ends a release that a crash cut short
        _write_tables(mine, place, server)
        before = mine.setup.result(server)
    algorithm = backend.setup.algorithm
    server = first_state(algorithm, backend.setup.task, backend.setup.key, before, backend.home)
    handed = PublicTensors.of(algorithm).public_tensors(before, backend.home)
    if handed is not None:
        _hand(backend, run.folder, handed, begun)
    return Prepared(server, handed)


def _played(
    run: RunInPlay,
    mine: Backend,
    place: Path,
    before: Tree,
    loaded: checkpoint.Loaded | None,
    begun: Begun | None,
    watch: Watch,
) -> Tree | None:
    """The server's state at the end of a phase; None where the user has stopped it."""
    place.mkdir(parents=True, exist_ok=True)
    setup = mine.setup
    first = None if loaded else first_state(setup.algorithm, setup.task, setup.key, before, mine.home)
    with run.opened(mine, place, first, loaded, begun) as phase:
        for _ in phase.rounds():
            watch(mine, phase.federation, phase.row)
        return phase.at.server if phase.over else None


def _write_tables(mine: Backend, place: Path, server: Tree) -> None:
    """Write the server's findings as tables, from its state alone: written again, they are the same."""
    assert isinstance(mine.setup.algorithm, Phase)
    for name, rows in mine.setup.algorithm.tables(server).items():
        atomic_write(place / f"{name}.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows).encode())


def _hand(backend: Backend, folder: Path, handed: Params, begun: Begun | None) -> None:
    """Write what every client is given to a file, which clients in other processes read, and record its bytes: one
    message to each client.
    """
    from safetensors.torch import save

    atomic_write(RunFolder(folder).handed_file, save({k: v.cpu().contiguous() for k, v in handed.items()}))
    config = backend.setup.experiment.digest()
    header = wire.Header(HANDED, config, 0, -1, "down")
    each = wire.size(header, wire.schema(handed))
    row = RoundRow(phase=HANDED, round=0, bytes_down=len(backend.setup.public.sizes) * each, bytes_up=0, payload=0)
    written, real = begun.loaded.meta if begun is not None else {}, backend.setup.policy.real
    with metrics.opened(RunFolder(folder).preparation_file, written, real, hidden=False) as rows:
        rows.write(row)
        rows.sync()
