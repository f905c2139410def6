"""Small federations that open nothing but sums."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from sordino import config, tree
from sordino.config import Experiment
from sordino.engine.executor import SecureSum, Tally
from sordino.engine.server import FederatedServer
from sordino.planning.accounts import OpenRound
from sordino.privacy.noise.sources import Counter
from sordino.privacy.uplink import Uplink
from sordino.round import Outcome, one_round
from sordino.runs.simulation import simulated
from sordino.secagg import paillier
from sordino.types import Grant, Received, Terms
from tests.helpers.executors import Doing

Table = dict[str, Any]


ROUNDS, CLIENTS = 2, 5


TEST_KEY: Table = {"name": "paillier", "key_bits": 2048, "testing": True}


CLEAR: Table = {"name": "quantise", "range": 16.0}  # integers, added in the clear


def made(*uplink: Any, **tables: Any) -> Experiment:
    """A small run of clients of unequal size; `uplink` is its client side."""
    table: Table = {
        "rounds": ROUNDS,
        "partition": {"scheme": "dirichlet", "clients": CLIENTS, "alpha": 1.0},
        "model": {"name": "logistic"},
        "cohort": {"name": "everyone"},
        "privacy": {},
        "evaluation": {"every": 99, "final": 0},
        "engine": {"executor": "loop"},
        "uplink": list(uplink),
    }
    algorithm = {"name": "fedavg", "local_steps": 2, "batch_size": 16, "lr": 0.1} | tables.pop("algorithm", {})
    return config.validate(table | {"algorithm": algorithm} | tables)


@lru_cache
def key_for_tests() -> paillier.PaillierSecret:
    return paillier.generate(2048, testing=True)


class Watched:
    """Rounds in this process, one at a time, with what was sent in each."""

    def __init__(self, experiment: Experiment) -> None:
        torch.set_num_threads(experiment.engine.threads)  # as a run does: sums are cut otherwise by another number
        self.parts = simulated(experiment)
        self.federation: FederatedServer = self.parts.federation(":memory:", "run")
        self.clients = self.parts.site("run")
        self.terms: Mapping[int, Terms] = {}
        self.uploads: dict[int, Any] = {}

    def round(self, server: Any, t: int) -> Outcome:
        return one_round(self.federation, server, t, Doing(self._execute))

    def rounds(self, count: int) -> Iterator[tuple[Any, Outcome]]:
        server = self.parts.setup.state("server")
        for t in range(count):
            outcome = self.round(server, t)
            yield server, outcome
            server = outcome.server

    def _execute(self, t: int, down: Any, terms: Mapping[int, Terms]) -> Iterator[tuple[int, Any]]:
        self.terms, self.uploads = terms, {}
        for k, upload in self.clients.each(t, down, terms):
            self.uploads[k] = upload
            yield k, upload


def rows(folder: Path) -> list[Table]:
    """metrics.jsonl without processor time."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in found:
        row.get("secure", {}).pop("cpu_seconds", None)
    return found


def equal(a: Any, b: Any) -> bool:
    """Bit for bit."""
    return all(
        torch.equal(x.reshape(-1).view(torch.uint8), y.reshape(-1).view(torch.uint8))
        for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True)
    )


# ---------------------------------------------------------------- any tree, any weights
class Sums:
    """Uploads to their mean through one gate, without an experiment."""

    def __init__(self, uplink: Uplink) -> None:
        self.uplink, self._sum = uplink, SecureSum(uplink, "run")
        self.came = Tally([], 0, 0)

    def encoded(self, raw: Mapping[int, Any], sizes: Mapping[int, int], multiplier: float | None) -> dict[int, Any]:
        largest = max(sizes.values())
        return {
            k: self.uplink.encode(x, Grant(k, sizes[k], largest, Counter(1).child(k), multiplier))
            for k, x in raw.items()
        }

    def mean(
        self,
        raw: Mapping[int, Any],
        sizes: Mapping[int, int],
        multiplier: float | None = None,
        cohort: list[int] | None = None,
    ) -> Received[Any]:
        """Of clients 0, 1, ...; more than those in `raw` may have begun the round."""
        zero = tree.zeros_like(next(iter(raw.values())))
        weights = [self.uplink.weight(sizes[k], max(sizes.values())) for k in sorted(sizes)]
        cohort, sent = cohort or sorted(raw), self.encoded(raw, sizes, multiplier)
        now, source = OpenRound(0, None, granted=cohort, central=multiplier), Counter(2)
        summed, self.came = self._sum(now, iter(sent.items()), None, weights, self.uplink, zero, source)
        return self.uplink.receive(summed, zero, weights, math.fsum(weights), multiplier, source)


# ---------------------------------------------------------------- elsewhere, and again
SHARES: Table = {
    "uplink": {
        "client": [
            {"name": "clip", "radius": 0.5},
            {"name": "noise_share", "survivors": 4, "neighbours": "zero_out"},
            "secagg",
        ]
    },
    "privacy": {"epsilon": 8.0, "delta": 1e-3},
}


PROBED: Table = {"uplink": ["weigh", {**TEST_KEY, "mode": "probe"}]}


# ---------------------------------------------------------------- what does not start
CLIP, NOISE = {"name": "clip", "radius": 1.0}, {"name": "noise"}


SHARE: Table = {"name": "noise_share", "survivors": 3, "neighbours": "zero_out", "multiplier": 1.0}
