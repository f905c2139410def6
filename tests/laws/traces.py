"""What a run leaves behind, in a form that can be compared byte for byte; and ways to stop a run in the middle."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sordino import training
from sordino.assemble import Parts
from sordino.config import Experiment, load
from sordino.engine import checkpoint
from sordino.engine.client import Clients
from sordino.engine.federation import Federation
from sordino.ledger.ledger import Entry
from sordino.receipt import opened
from sordino.training import Progress, resume, start


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


def finished(experiment: Experiment, folder: Path) -> Trace:
    start(experiment, folder)
    return trace(folder)


def parts_of(folder: Path) -> Parts:
    return Parts(load(folder / "experiment.toml"))


# interruptions ---------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone: nothing catches this."""


# what has just happened when the process dies
POINTS: Mapping[str, tuple[Any, str, int]] = {
    "reserved": (Federation, "reserve", 0),
    "computed": (Clients, "__call__", 0),
    "kept": (training, "_save", 1),  # counts the rounds that are done
    "stored": (Federation, "store", 0),
    "published": (Federation, "publish", 0),
}


@contextmanager
def killed_at(point: str, round: int) -> Iterator[None]:
    """Die as soon as `point` of the given round has passed."""
    owner, name, shift = POINTS[point]
    whole = getattr(owner, name)

    def dying(self: Any, t: Any, *rest: Any) -> Any:
        result = whole(self, t, *rest)
        if t == round + shift:
            raise Killed
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, dying)
        with pytest.raises(Killed):
            yield


def die_after(round: int) -> Callable[[Progress], None]:
    """A watcher that dies when the checkpoint of a round is complete."""

    def watch(step: Progress) -> None:
        if step.round == round:
            raise Killed

    return watch


def interrupted(experiment: Experiment, folder: Path) -> Trace:
    """The run of `experiment`, killed at every point in turn and resumed each time."""
    with killed_at("reserved", 0):
        start(experiment, folder)
    with killed_at("stored", 0):
        resume(folder)
    with killed_at("computed", 1):
        resume(folder)
    with killed_at("published", 1):
        resume(folder)
    with pytest.raises(Killed):
        resume(folder, die_after(experiment.rounds - 1))
    resume(folder)
    return trace(folder)
