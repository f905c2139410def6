"""Small runs of LC-FL and its relatives, and what is read out of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from sordino import config
from sordino.config import Experiment
from sordino.privacy.uplink import Uplink
from sordino.round import one_round
from sordino.runs.simulation import simulated
from sordino.types import Grant, NoiseSource, Received, Terms
from tests.helpers.executors import Doing

LC: dict[str, Any] = {"name": "lc_fl"}


SIX: dict[str, Any] = {"scheme": "iid", "clients": 6}


EVERYONE: dict[str, Any] = {"name": "everyone"}


POISSON: dict[str, Any] = {"name": "poisson", "rate": 0.5}


slow = pytest.mark.slow


def made(algorithm: Mapping[str, Any], **tables: Any) -> Experiment:
    table: dict[str, Any] = {
        "rounds": 3,
        "partition": SIX,
        "model": {"name": "mlp", "hidden": 8},
        "cohort": {"name": "random", "size": 3},
        "privacy": {},
        "evaluation": {"every": 3, "final": 1},
        "engine": {"executor": "loop"},
        "algorithm": algorithm,
    }
    return config.validate(table | tables)


class Rounds:
    """A run in this process, with all that went down and came up."""

    def __init__(self, experiment: Experiment, secret: bytes | None = None) -> None:
        self.parts = simulated(experiment)
        federation = self.parts.federation(":memory:", "run")
        self.clients, self.server = self.parts.site("run", secret=secret), self.parts.setup.state("server")
        self.down: list[Any] = []
        self.up: list[dict[int, Any]] = []
        self.received: list[Received[Any]] = []
        with federation.ledger:
            for t in range(experiment.rounds):
                outcome = one_round(federation, self.server, t, Doing(self._execute))
                self.server = outcome.server
                self.received.append(outcome.received)

    def _execute(self, t: int, down: Any, terms: Mapping[int, Terms]) -> Iterator[tuple[int, Any]]:
        self.down.append(down)
        self.up.append(dict(self.clients.each(t, down, terms)))
        return iter(self.up[-1].items())


def grant(source: NoiseSource, size: int = 1, largest: int = 1) -> Grant:
    return Grant(0, size, largest, source)


def mean_of(uplink: Uplink, uploads: list[Tensor], source: NoiseSource) -> Tensor:
    """By the gate, of clients that are equally large."""
    sent = {k: uplink.encode({"w": x}, grant(source.child("client", k))) for k, x in enumerate(uploads)}
    zero = {"w": torch.zeros_like(uploads[0])}
    mean: Any = uplink.receive(sent, zero, [1.0] * len(sent), len(sent), None, source.child("server")).mean
    found: Tensor = mean["w"]
    return found


def rows_of(receipt: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["unit"], row["adversary"]): row for row in receipt["guarantees"]}
