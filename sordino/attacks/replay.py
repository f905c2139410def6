"""A run played again in memory, as far as an attacker needs it. sordino is deterministic: from the same experiment come
the same uploads, behind the same noise, as the server got them. Nothing is written.

A bare run is the same run without its protection: no noise, no clip, no sum that hides. It keeps no books.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sordino import keys
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.engine.executor import Clients
from sordino.engine.server import Federation
from sordino.engine.shards import PreparedShards, Shards
from sordino.engine.site import Site
from sordino.ledger.ledger import MEMORY
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.open import Open
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.stages import Weigh
from sordino.round import Outcome, one_round
from sordino.runs.simulation import Simulation
from sordino.tree import Tree
from sordino.types import Examples, Params, Terms

Change = Callable[[int, Examples], Examples]  # a client and its rows -> the rows that it has in this game


class Heard(NamedTuple):
    """One round, as it went by."""

    before: Params  # the model that went down
    after: Params
    each: Mapping[int, Params]  # the changes that single uploads tell, decoded; none where no single upload can be read
    together: Params | None  # the change that the sum of all uploads tells
    answered: list[int]
    digest: bytes  # of all that the round let the server see


class Changed(Mapping[int, Examples]):
    """Clients whose rows are changed for a game."""

    def __init__(self, shards: Mapping[int, Examples], change: Change) -> None:
        self._shards, self._change = shards, change

    def __getitem__(self, client: int) -> Examples:
        return self._change(client, self._shards[client])

    def __iter__(self) -> Iterator[int]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)


@dataclass
class Overhearing(Clients):
    """Clients whose answers are overheard on their way."""

    inner: Site
    answers: dict[int, Tree] = field(default_factory=dict)
    down: Tree = None

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Iterator[tuple[int, Tree]]:
        self.down, self.answers = down, {}
        for k, upload in self.inner(t, down, terms):
            self.answers[k] = upload
            yield k, upload


class Replay:
    """The rounds of a run, one after another, with the run's own gates."""

    def __init__(self, simulation: Simulation, change: Change | None = None) -> None:
        self.simulation, setup = simulation, simulation.setup
        self.algorithm: AnyAlgorithm = setup.algorithm
        run = setup.experiment.digest()[:16]
        self.federation: Federation = simulation.federation(MEMORY, run)
        site = simulation.site(run)
        self.site = site if change is None else replace(site, shards=self._changed(site.shards, change))
        self.server: Tree = self.algorithm.begin(setup.task, setup.key, None, simulation.home)
        self.t, self._stalled = 0, False

    def _changed(self, shards: Mapping[int, Examples], change: Change) -> Mapping[int, Examples]:
        """What a reader prepares is prepared of the rows of the game."""
        rows = Changed(raw(self.simulation), change)
        if not isinstance(shards, PreparedShards):
            return rows
        key = self.simulation.setup.key
        return PreparedShards(rows, self.algorithm.read, lambda k: Counter(keys.word(keys.fold(key, "game", k))))

    def model(self) -> Params:
        return next(iter(self.algorithm.models(self.server).values()))

    def round(self) -> Heard:
        """The next round."""
        clients, found = Overhearing(self.site), list[bytes]()
        before = self.model()
        outcome = one_round(
            self.federation, self.server, self.t, clients, self._stalled, lambda outcome, digest: found.append(digest)
        )
        uplink = self.algorithm.uplink.at(self.t, clients.down)
        each: dict[int, Params] = {}
        if not any(stage.aggregate_only for stage in uplink.client):
            zero = self.algorithm.zero(self.simulation.setup.task, clients.down)
            for k, upload in clients.answers.items():
                if (change := self.algorithm.change(uplink.opened(upload, zero, self._weight(k)))) is not None:
                    each[k] = change
        self._next(outcome)
        return Heard(before, self.model(), each, self._together(outcome), outcome.answered, found[0])

    def _weight(self, client: int) -> float:
        """That of an upload; in a game a client weighs what it holds there."""
        run, uplink = self.federation, self.algorithm.uplink
        said, held = run.sizes[client], len(self.site.shards[client].y)
        return run.weights[client] * uplink.weight(held, run.largest) / uplink.weight(said, run.largest)

    def _together(self, outcome: Outcome) -> Params | None:
        return None if outcome.received is None else self.algorithm.change(outcome.received.mean)

    def _next(self, outcome: Outcome) -> None:
        self._stalled = outcome.received is not None and self.federation.stalled(outcome.received)
        self.server, self.t = outcome.server, self.t + 1

    def until(self, t: int) -> Replay:
        """Plays all rounds before this one."""
        while self.t < t:
            self.round()
        return self


class Bare:
    """The same run without its protection: the method behind open gates, without books. The control of every attack."""

    def __init__(self, simulation: Simulation, change: Change | None = None) -> None:
        self.simulation, setup = simulation, simulation.setup
        self.algorithm = unprotected(setup.method)
        run = setup.experiment.digest()[:16]
        self.federation = simulation.federation(MEMORY, run)
        rows = raw(simulation)
        own = rows if change is None else Changed(rows, change)
        self.site = replace(simulation.site(run), algorithm=self.algorithm, shards=own, executor="loop")
        self.server: Tree = self.algorithm.begin(setup.task, setup.key, None, simulation.home)
        self.t = 0

    def model(self) -> Params:
        return next(iter(self.algorithm.models(self.server).values()))

    def round(self) -> Heard:
        run, task, uplink = self.federation, self.simulation.setup.task, self.algorithm.uplink
        before, down = self.model(), self.algorithm.broadcast(self.server)
        cohort = run.draw(self.t, self.server)
        answers = dict(self.site(self.t, down, {k: Terms(largest=run.largest) for k in cohort}))
        weights = [uplink.weight(n, run.largest) for n in run.sizes]
        zero = self.algorithm.zero(task, down)
        expected = run.cohort.expected(len(weights)) * math.fsum(weights) / len(weights)
        received: Any = uplink.receive(
            answers, zero, weights, expected, None, Counter(0), each=self.algorithm.reads_each
        )
        self.server = self.algorithm.update(self.server, received, self.simulation.home)
        self.t += 1
        own = {k: uplink.weight(len(self.site.shards[k].y), run.largest) for k in answers}
        changes = {k: self.algorithm.change(uplink.opened(up, zero, own[k])) for k, up in answers.items()}
        each = {k: change for k, change in changes.items() if change is not None}
        return Heard(before, self.model(), each, self.algorithm.change(received.mean), cohort, b"")

    def until(self, t: int) -> Bare:
        while self.t < t:
            self.round()
        return self


def unprotected(method: AnyAlgorithm) -> AnyAlgorithm:
    """The same method behind open gates; weights, which are no protection, stay."""
    weights = tuple(stage for stage in method.uplink.client if isinstance(stage, Weigh) and stage.by != "precision")
    return method.behind(read=Open(), uplink=Uplink(client=weights))


def raw(simulation: Simulation) -> Shards:
    """Everybody's rows, as they are before a reader prepares them."""
    rows = simulation.population.shares[0]
    return Shards(simulation.population.named.train, rows, range(len(rows)))
