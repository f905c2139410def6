"""What a run leaves behind, in a form that can be compared byte for byte."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from sordino.engine import checkpoint
from sordino.engine.store import unpacked
from sordino.ledger.ledger import Entry
from sordino.receipt import opened


class Trace(NamedTuple):
    """Everything that must not depend on how, when and where a run was computed."""

    model: str
    metrics: str
    receipt: str
    ledger: tuple[Entry, ...]
    head: str
    server: str
    clients: str


def trace(folder: Path) -> Trace:
    parts, federation = opened(folder)
    with federation.ledger as ledger:
        entries, head = tuple(ledger.entries()), ledger.head()
    loaded = checkpoint.load(folder / "checkpoints", parts.state)
    assert loaded is not None
    held = [loaded]
    for worker in sorted(folder.glob("clients-*")):  # of client processes
        found = checkpoint.load(worker, parts.state)
        assert found is not None
        held.append(found)
    clients = {f"{k}": state for one in held for name, made in one.trees.items() for k, state in unpacked(name, made)}
    model, metrics, receipt = (
        hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("model.safetensors", "metrics.jsonl", "privacy.json")
    )
    server = checkpoint.digest_trees({"server": loaded.trees["server"]})
    return Trace(model, metrics, receipt, entries, head, server, checkpoint.digest_trees(clients))


def differences(a: Trace, b: Trace) -> list[str]:
    """Names of what differs: [] is the law."""
    return [name for name in Trace._fields if getattr(a, name) != getattr(b, name)]
