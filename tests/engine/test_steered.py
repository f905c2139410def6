"""Clients that have taken part more or less often share a stack, unless what they compute goes by that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

from sordino import tree
from sordino.algorithms.fedavg import FedAvg
from sordino.fast.factored import dense
from sordino.types import Terms
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
        ups = [tree.flat(tree.map(dense, up)) for t, each in enumerate(terms) for _, up in who(t, down, each)]
        found.append((ups, [int(who.state(k).participations) for k in range(7)]))
    assert calls == sizes
    assert apart(found[0][0], found[1][0]) < CLOSE
    assert found[0][1] == found[1][1] == [2, 1, 2, 3, 1, 2, 1]
