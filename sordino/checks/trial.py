"""Test bench of an algorithm: its methods called directly, and small federations on digits and on quadratics;
and the trace of a run: hashes of all its results, to compare two runs byte for byte.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from sordino import config, keys
from sordino.algorithms.algorithm import Algorithm
from sordino.algorithms.optional import Home
from sordino.config import Experiment
from sordino.engine import checkpoint
from sordino.engine.client_states import unpacked
from sordino.keys import Key
from sordino.ledger.ledger import Entry
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers import taken
from sordino.privacy.uplink.stages import Noise
from sordino.receipts import seal
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import opened
from sordino.runs.play import Progress
from sordino.runs.run import start
from sordino.runs.simulation import settle, simulated
from sordino.tree import Tree
from sordino.types import Batch, Examples, Grant, LocalWork, Losses, Params, Received, Shard, Task


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
    files = RunFolder(folder)
    setup = simulated(files.experiment).setup
    with federation.ledger as ledger:
        entries = tuple(entry._replace(sequence=0, hash="") for entry in ledger.entries())
    loaded = checkpoint.load(files.checkpoints, setup.state)
    assert loaded is not None
    held = [loaded]
    for worker in sorted(files.checkpoints.glob("clients-*")):  # of client processes
        found = checkpoint.load(worker, setup.state)
        assert found is not None
        held.append(found)
    clients = {f"{k}": state for one in held for name, made in one.trees.items() for k, state in unpacked(name, made)}
    model, metrics = (hashlib.sha256(file.read_bytes()).hexdigest() for file in (files.model_file, files.metrics_file))
    receipt = seal.digest(seal.claimed(folder)).hex()
    server = checkpoint.digest_trees({"server": loaded.trees["server"]})
    return Trace(model, metrics, receipt, entries, server, checkpoint.digest_trees(clients))


def differences(a: Trace, b: Trace) -> list[str]:
    """Names of the fields that differ; [] where the runs agree, as they must."""
    return [name for name in Trace._fields if getattr(a, name) != getattr(b, name)]


class Broken(Exception):
    """Exception for a property (law) that does not hold: the reason in one sentence, and the fix."""

    def __init__(self, why: str, fix: str) -> None:
        self.why, self.fix = why, fix
        super().__init__(why, fix)


def require(met: bool, why: str, fix: str) -> None:
    if not met:
        raise Broken(why, fix)


ROUNDS, STOP = 5, 3  # a checkpoint every second round: stopped after 3, a run plays round 3 again
SMALL = (
    "name=check", f"rounds={ROUNDS}", "data.test_fraction=0.9", 'partition={scheme="iid", clients=5}',
    'cohort={name="round_robin", size=3}', "evaluation={every=5, final=1}",
    'engine={executor="loop", checkpoint_every=2}',
)  # fmt: skip
QUADRATIC = (
    "rounds=20", 'data={source="quadratic", clients=4, dim=3}', 'partition={scheme="natural"}',
    'cohort={name="everyone"}', "evaluation={every=20}",
)  # fmt: skip


class Moment(NamedTuple):
    """Arguments of an algorithm's methods in one round: states, broadcast and received uploads."""

    server: Tree
    down: Tree
    client: Tree
    received: Received[Tree]


@dataclass(frozen=True)
class Scene:
    """Test set-up for one client's round without an engine, in which every method can be called directly."""

    algorithm: Algorithm[Tree, Tree, Tree, Tree]
    task: Task
    home: Home
    examples: list[Examples]  # of two clients
    key: int

    def grant(self, client: int = 0, reads: int | None = None) -> Grant:
        size = len(self.examples[client].y)
        return Grant(client, size, size, Counter(1), multiplier=1.0, reads=reads)

    def shard(self, client: int = 0) -> Shard:
        return self.algorithm.read.open(self.examples[client], self.grant(client), self.task)

    def upload(self, down: Tree, client: int = 0) -> Tree:
        start = self.algorithm.init_client(self.task)
        return self.algorithm.local(self.task, down, start, self.shard(client), self.key)[0]

    def received(self, uploads: Iterable[Tree], down: Tree) -> Received[Tree]:
        """The server's sum of two clients' uploads, the first with twice the examples, without noise."""
        a, sizes = self.algorithm, (2, 1)
        quiet = replace(a.uplink, client=tuple(s for s in a.uplink.client if not isinstance(s, Noise)), server=())
        grants = [replace(self.grant(k), size=size, largest=2) for k, size in enumerate(sizes)]
        sent = {k: quiet.encode(upload, grants[k]) for k, upload in enumerate(uploads)}
        weights = [quiet.weight(size, 2) for size in sizes]
        return quiet.receive(sent, a.zero(self.task, down), weights, 2.0, None, Counter(1))

    def moments(self) -> Iterator[Moment]:
        """Arguments with which an algorithm's methods are tried, in two rounds in a row; the first starts from the
        initial states."""
        a = self.algorithm
        server, client = a.init(self.task, self.key), a.init_client(self.task)
        for _ in range(2):
            down = a.broadcast(server)
            upload, after = a.local(self.task, down, client, self.shard(), self.key)
            received = self.received([upload, upload], down)
            yield Moment(server, down, client, received)
            server, client = a.update(server, received, self.home), after


@dataclass(frozen=True)
class Trial:
    """One algorithm under test by `sordino check`."""

    name: str  # as in [algorithm] name
    made: Any
    file: Path
    words: tuple[str, ...]  # settings of its user
    place: Path  # for runs

    def experiment(self, *more: str) -> Experiment:
        other = any(word.startswith("data=") for word in more)  # data of another source have settings of their own
        small = [word for word in SMALL if not (other and word.startswith("data."))]
        return settle(config.load(None, [*small, f"algorithm={self.name}", *self.words, *more]))

    @cached_property
    def scenes(self) -> list[Scene]:
        return self.staged()

    def staged(self, *settings: tuple[str, ...]) -> list[Scene]:
        """Builds test scenes anew, one for each of these settings; by default one on digits, one on quadratics."""
        made = []
        for more in settings or ((), QUADRATIC):
            simulation = simulated(self.experiment(*more))
            shards, setup = simulation.site("check", range(2)).shards, simulation.setup
            made.append(Scene(setup.algorithm, setup.task, simulation.home, [shards[0], shards[1]], setup.key))
        return made

    def fresh(self) -> None:
        """Unload the user's module, so that its globals start anew, as in a process of its own."""
        sys.modules.pop(self.name.partition(":")[0], None)

    def run(self, folder: str, *more: str, watch: Callable[[Progress], None] | None = None) -> Path:
        self.fresh()
        ended = start(self.experiment(*more), self.place / folder, watch)
        if ended.interrupted:  # Ctrl-C is for the whole check
            raise KeyboardInterrupt
        return ended.folder

    @cached_property
    def base(self) -> Path:
        return self.run("base")

    @cached_property
    def trace(self) -> Trace:
        return trace(self.base)


class SealedShard:
    """Wrapper of a client's examples (a shard) that hides all but the members of the protocol `Shard`."""

    def __init__(self, shard: Shard, grads: list[int] | None = None) -> None:
        def batches(work: LocalWork, key: Key) -> Iterator[Batch]:
            for batch in shard.batches(work, key):
                yield SealedBatch(batch, grads if grads is not None else [])

        self.size, self.batches = shard.size, batches


class FixedGradients:
    """A client's examples (a shard) with made-up gradients that do not depend on rows; losses are still called with the
    rows.
    """

    def __init__(self, rows: Examples, key: int) -> None:
        self._rows, self._key, self.size = rows, key, len(rows.y)

    def batches(self, work: LocalWork, key: object) -> Iterator[Batch]:
        size = work.batch(self.size)
        for step in range(work.count(self.size)):
            some = (torch.arange(size) + step * size) % self.size
            yield FixedGradientsBatch(taken(self._rows, some), keys.fold(self._key, step))


class FixedGradientsBatch:
    """Batch of a trial whose gradient follows from a key alone."""

    live: ClassVar[None] = None

    def __init__(self, rows: Examples, key: Key) -> None:
        self._rows, self._key = rows, key

    def grad(self, losses: Losses, params: Params) -> Params:
        leaves = {name: p.detach().clone().requires_grad_() for name, p in params.items()}
        losses(leaves, *self._rows, keys.bits(keys.fold(self._key, "draw"), len(self._rows.y)))
        return {
            name: 0.01 * keys.normal(keys.fold(self._key, name), p.numel()).reshape(p.shape).to(p.dtype)
            for name, p in leaves.items()
        }


class SealedBatch:
    """Batch that shows nothing but gradients, and counts them."""

    live: ClassVar[None] = None

    def __init__(self, batch: Batch, grads: list[int]) -> None:
        def grad(losses: Losses, params: Params) -> Params:
            grads.append(1)
            return batch.grad(losses, params)

        self.grad = grad
