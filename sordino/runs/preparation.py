"""The phases before the training: each from its own checkpoint to its end, and what the last of them hands over.

They lie in the run folder: preparation/NAME/checkpoints, and beside it what the server found, a table in each file;
preparation.jsonl with one object per round; and handed.safetensors, which every client has been given before the first
round of the training.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sordino.algorithms.optional import PublicTensors, first_state
from sordino.algorithms.phases import Phase
from sordino.engine import checkpoint, wire
from sordino.engine.server import Federation
from sordino.errors import RunError
from sordino.ledger.files import atomic_write
from sordino.metrics.rows import RoundRow
from sordino.receipts.folder import RunFolder
from sordino.round import Outcome
from sordino.runs import metric_files as metrics
from sordino.runs.rounds import PlayedPhase, Standing, row_of, stands
from sordino.runs.servers_half import Begun, ServersHalf
from sordino.runs.witness import Witness
from sordino.tree import Tree
from sordino.types import HANDED, Params

Watch = Callable[[ServersHalf, Federation, RoundRow], None]


class Prepared(NamedTuple):
    server: Tree  # what the training starts from
    handed: Params | None  # what every client has been given; None if nothing
    done: bool = True  # False: stopped on the way


def prepare(
    half: ServersHalf,
    folder: Path,
    run: str,
    ledger: Path,
    witness: Witness | None,
    stopped: Callable[[], bool],
    watch: Watch,
) -> Prepared:
    """Every phase that is not over yet; then the state of the server before its first round of training."""
    before: Tree = None
    begun: Begun | None = None
    for mine in half.preparation:
        place = RunFolder(folder).of_phase(mine.setup.phase).path
        loaded = checkpoint.load(place / "checkpoints", mine.setup.state)
        begun = Begun(place, loaded) if loaded is not None else begun
        first = (
            first_state(mine.setup.algorithm, mine.setup.task, mine.setup.key, before, mine.home)
            if loaded is None
            else loaded.trees["server"]
        )
        standing = Standing(first, 0)
        if loaded is None or not mine.setup.over(loaded.trees["server"]):
            standing = _play(mine, folder, place, run, ledger, witness, begun, loaded, standing, stopped, watch)
            if not mine.setup.over(standing.server):
                return Prepared(None, None, done=False)
            after = checkpoint.load(place / "checkpoints", mine.setup.state)
            assert after is not None
            begun = Begun(place, after)
            server = standing.server
        else:
            with (federation := mine.federation(ledger, run)).ledger:
                server = stands(federation, loaded, folder).server  # ends a release that a crash cut short
        _write_tables(mine, place, server)
        before = mine.setup.result(server)
    algorithm = half.setup.algorithm
    server = first_state(algorithm, half.setup.task, half.setup.key, before, half.home)
    handed = PublicTensors.of(algorithm).public_tensors(before, half.home)
    if handed is not None:
        _hand(half, folder, handed, begun)
    return Prepared(server, handed)


def _play(
    mine: ServersHalf,
    folder: Path,
    place: Path,
    run: str,
    ledger: Path,
    witness: Witness | None,
    begun: Begun | None,
    loaded: checkpoint.Loaded | None,
    standing: Standing,
    stopped: Callable[[], bool],
    watch: Watch,
) -> Standing:
    place.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        federation = mine.federation(ledger, run)
        federation.witness = witness or federation.witness
        stack.callback(federation.ledger.close)
        written = begun.loaded.meta if begun is not None else {}
        if loaded is not None:
            standing = stands(federation, loaded, folder)
        execute = mine.executor(folder, place, run, begun, None, stack)
        real = mine.setup.policy.real
        rows = stack.enter_context(metrics.opened(RunFolder(folder).preparation_file, written, real, hidden=False))

        def tell(t: int, outcome: Outcome) -> RoundRow:
            if outcome.lost:
                raise RunError(
                    f"the preparation was cut off in its phase {mine.setup.phase}, after its noise was drawn",
                    why="what it released is not known, drawn again it would be a second release, and its part of "
                    "the budget is spent",
                    fix="begin a new run, with a budget of its own",
                    code="preparation-lost",
                )
            row = row_of(mine.setup, t + 1, outcome)
            rows.write(row)
            return row

        phase = PlayedPhase(mine.setup, federation, execute, place, rows, tell)
        return phase.play(
            standing,
            lambda at: not mine.setup.over(at.server) and not stopped(),
            lambda at, outcome: watch(mine, federation, phase.row),
        )


def _write_tables(mine: ServersHalf, place: Path, server: Tree) -> None:
    """What the server found. From its state alone: written again, they say the same."""
    assert isinstance(mine.setup.algorithm, Phase)
    for name, rows in mine.setup.algorithm.tables(server).items():
        atomic_write(place / f"{name}.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows).encode())


def _hand(half: ServersHalf, folder: Path, handed: Params, begun: Begun | None) -> None:
    """A file that clients in other processes read, and its bytes in the books: one message to everybody."""
    from safetensors.torch import save

    atomic_write(RunFolder(folder).handed_file, save({k: v.cpu().contiguous() for k, v in handed.items()}))
    config = half.setup.experiment.digest()
    header = wire.Header(HANDED, config, 0, -1, "down")
    each = wire.size(header, wire.schema(handed))
    row = RoundRow(phase=HANDED, round=0, bytes_down=len(half.setup.public.sizes) * each, bytes_up=0, payload=0)
    written, real = begun.loaded.meta if begun is not None else {}, half.setup.policy.real
    with metrics.opened(RunFolder(folder).preparation_file, written, real, hidden=False) as rows:
        rows.write(row)
        rows.sync()
