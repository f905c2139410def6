"""Clients that have taken part more or less often share a stack, unless what they compute goes by that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

from sordino import tree
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.algorithms.ditto import Ditto
from sordino.algorithms.fedavg import Client, FedAvg, Server, Up
from sordino.algorithms.fedprox import FedProx
from sordino.algorithms.moon import Moon
from sordino.algorithms.scaffold import Scaffold
from sordino.engine.stack import Differences, Member, differences
from sordino.fast.factored import dense
from sordino.keys import Key
from sordino.privacy.noise.sources import Counter
from sordino.types import Grant, Received, Shard, Task, Terms
from tests.engine.test_stack import CLOSE, apart, calls, made

__all__ = ["calls"]  # a fixture


@dataclass(frozen=True)
class OwnRate(FedAvg):
    """Goes by how often a client took part, in a way of its own."""

    def rate(self, round: Tensor, participations: Tensor) -> float:
        return self.lr / (1 + int(participations))


AGES = {"lr_decay": 0.5, "lr_decay_per": "participation"}
OFTEN = [(0, 1, 2, 3), (2, 3, 4, 5), (0, 3, 5, 6)]  # in the last round they have taken part 1, 2, 1 and 0 times
TOGETHER, APART = [4, 4, 4], [4, 2, 2, 2]


@dataclass(frozen=True)
class OtherServer(FedAvg):
    def update(self, s: Server, r: Received[Up], home: Any) -> Server:
        return Server(tree.axpy(0.5, r.mean.delta, s.x), s.round + 1)


@dataclass(frozen=True)
class CountsSteps(FedAvg):
    """Divides by the steps of the longest walk in the stack."""

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: Key) -> tuple[Up, Client]:
        walk, steps = self.walk(down.x, self.lr), 0
        for batch in shard.batches(self.work, key):
            walk(batch.grad(task.losses, walk.y), batch.live)
            steps += 1
        return Up(tree.scale(1 / steps, tree.sub(walk.y, down.x))), Client(c.participations + 1)


@dataclass(frozen=True)
class AsksNothing(FedAvg):
    """Takes every step for the client's own."""

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: Key) -> tuple[Up, Client]:
        walk = self.walk(down.x, self.lr)
        for batch in shard.batches(self.work, key):
            walk(batch.grad(task.losses, walk.y))
        return Up(tree.sub(walk.y, down.x)), Client(c.participations + 1)


@dataclass(frozen=True)
class LaterByRows(FedAvg):
    """Asks for its number of rows from the second round on."""

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: Key) -> tuple[Up, Client]:
        up, c = super().local(task, down, c, shard, key)
        return Up(tree.scale(1 / shard.size, up.delta)) if int(down.round) else up, c


@dataclass(frozen=True)
class ByCount(FedAvg):
    """Goes by how often a client took part, in arithmetic of tensors alone."""

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: Key) -> tuple[Up, Client]:
        up, c = super().local(task, down, c, shard, key)
        return Up(tree.map(lambda d: d / (1 + c.participations), up.delta)), c


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("algorithm", "borne"),
    [
        (FedAvg(), (True, True)),
        (FedAvg(local_steps=4, momentum=0.5, weight_decay=0.1), (True, True)),
        (FedAvg(batch_size="full"), (True, True)),
        (FedProx(), (True, True)),
        (Scaffold(), (True, True)),
        (OtherServer(), (True, True)),
        (ByCount(), (True, True)),
        (FedAvg(**AGES), (True, False)),
        (OwnRate(), (True, False)),
        (Ditto(), (True, False)),
        (CountsSteps(), (False, True)),
        (AsksNothing(weight_decay=0.1), (False, True)),
        (LaterByRows(), (False, True)),
        (Moon(mu=1.0), (False, False)),
        (FedAvg(lr=1e30), (False, False)),  # what is no number agrees with nothing
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_trial_finds_the_differences_that_a_stack_bears(algorithm: AnyAlgorithm, borne: tuple[bool, bool]) -> None:
    parts = made("stack", {"name": "fedavg"})
    site = parts.site("run")
    own = site.shards[0]
    like = Member(0, own, algorithm.init_client(site.task), Grant(0, len(own.y), len(own.y), Counter(1)), 1)
    assert differences(algorithm, site.task, like) == borne


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("algorithm", "sizes"),
    [
        ({"name": "fedavg"}, TOGETHER),
        ({"name": "scaffold"}, TOGETHER),
        ({"name": "fedavg", **AGES}, APART),
        ({"name": "scaffold", **AGES}, APART),
        ({"name": "ditto"}, APART),  # its clients begin with the shared model
        (OwnRate(lr=0.3, local_epochs=2, batch_size=16), APART),
    ],
    ids=["fedavg", "scaffold", "fedavg that ages", "scaffold that ages", "ditto", "own rate"],
)
def test_how_often_somebody_took_part_divides_only_where_it_decides(
    algorithm: Any, sizes: list[int], calls: list[int]
) -> None:
    found = []
    for way in ("loop", "stack"):
        parts = made(way, algorithm if isinstance(algorithm, dict) else {"name": "fedavg"})
        if not isinstance(algorithm, dict):
            vars(parts.setup)["algorithm"] = algorithm
        server, who = parts.setup.state("server"), parts.site("run")
        down = parts.setup.algorithm.broadcast(server)
        terms = [{k: Terms(largest=parts.setup.public.largest) for k in cohort} for cohort in OFTEN]
        ups = [tree.flat(tree.map(dense, up)) for t, each in enumerate(terms) for _, up in who(t, down, each).uploads]
        found.append((ups, [int(who.state(k).participations) for k in range(7)]))
    assert calls == sizes
    assert apart(found[0][0], found[1][0]) < CLOSE
    assert found[0][1] == found[1][1] == [2, 1, 2, 3, 1, 2, 1]


def test_a_client_alone_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shares no call with anybody, and a trial takes longer than a small client's work."""
    tried: list[Member] = []
    monkeypatch.setattr("sordino.engine.site.differences", lambda *given: tried.append(given[-1]) or Differences())
    parts = made("stack", {"name": "fedavg"})
    site, down = parts.site("run"), parts.setup.algorithm.broadcast(parts.setup.state("server"))
    list(site.each(0, down, {1: Terms(largest=50)}))
    assert tried == []
    list(site.each(1, down, {k: Terms(largest=50) for k in (0, 1)}))
    assert len(tried) == 1
