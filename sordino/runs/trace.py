"""Trace of a run: hashes of all its results, to compare two runs byte for byte."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from sordino.engine import checkpoint
from sordino.engine.client_states import unpacked
from sordino.ledger.ledger import Entry
from sordino.receipts import seal
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import opened
from sordino.runs.simulation import simulated


class Trace(NamedTuple):
    """Results that must not depend on how, when and where a run was computed."""

    model: str
    metrics: str
    receipt: str
    ledger: tuple[Entry, ...]
    server: str
    clients: str


def trace(folder: Path) -> Trace:
    """The trace of a finished run. Positions in the ledger are left out, because each stop adds a record: a run that
    was stopped has more of them."""
    _, federation = opened(folder)
    mine = RunFolder(folder)
    setup = simulated(mine.experiment).setup
    with federation.ledger as ledger:
        entries = tuple(entry._replace(sequence=0, hash="") for entry in ledger.entries())
    loaded = checkpoint.load(mine.checkpoints, setup.state)
    assert loaded is not None
    held = [loaded]
    for worker in sorted(folder.glob("clients-*")):  # of client processes
        found = checkpoint.load(worker, setup.state)
        assert found is not None
        held.append(found)
    clients = {f"{k}": state for one in held for name, made in one.trees.items() for k, state in unpacked(name, made)}
    model, metrics = (hashlib.sha256(file.read_bytes()).hexdigest() for file in (mine.model_file, mine.metrics_file))
    receipt = seal.digest(seal.claimed(folder)).hex()
    server = checkpoint.digest_trees({"server": loaded.trees["server"]})
    return Trace(model, metrics, receipt, entries, server, checkpoint.digest_trees(clients))


def differences(a: Trace, b: Trace) -> list[str]:
    """Names of the fields that differ; [] where the runs agree, as they must."""
    return [name for name in Trace._fields if getattr(a, name) != getattr(b, name)]
