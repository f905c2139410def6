"""What a run leaves behind, in a form that can be compared byte for byte."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from sordino.engine import checkpoint
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
    clients = {name: tree for name, tree in loaded.trees.items() if name != "server"}
    for worker in sorted(folder.glob("clients-*")):  # of client processes
        held = checkpoint.load(worker, parts.state)
        assert held is not None
        clients |= held.trees
    model, metrics, receipt = (
        hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("model.safetensors", "metrics.jsonl", "privacy.json")
    )
    server = checkpoint.digest_trees({"server": loaded.trees["server"]})
    return Trace(model, metrics, receipt, entries, head, server, checkpoint.digest_trees(clients))


def differences(a: Trace, b: Trace) -> list[str]:
    """Names of what differs: [] is the law."""
    return [name for name in Trace._fields if getattr(a, name) != getattr(b, name)]
