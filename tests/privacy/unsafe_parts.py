"""What tables of unsafe experiments and calls are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from sordino import config, keys
from sordino.accounting import events
from sordino.errors import SordinoError
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.class_sums import ClassSums
from sordino.privacy.readers.episodes import CellGradient
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.fixed_point import Layout, Quantise
from sordino.privacy.uplink.secure_stages import Aggregated, NoiseShare
from sordino.privacy.uplink.stages import Clip
from sordino.runs.simulation import simulated
from sordino.tasks.nets import logistic
from sordino.tasks.quadratic import Quadratic
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant, LocalWork
from tests.privacy.doubles import linear

Table = dict[str, Any]


# ---------------------------------------------------------------- experiments that must not start
QUADRATICS: Table = {
    "rounds": 4,
    "data": {"source": "quadratic", "clients": 6, "dim": 2},
    "partition": {"scheme": "natural"},
    "privacy": {"epsilon": 2.0, "delta": 1e-3},
    "algorithm": {"name": "gaussian_gdp", "clip": 1.0},
}


DIGITS: Table = {
    "data": {"source": "digits"},
    "partition": {"scheme": "iid", "clients": 3},
    "model": {"name": "logistic"},
}


POISSON: Table = {"name": "poisson", "rate": 0.5}


QUICK: Table = {"schedule": {"name": "linear_back"}}  # priced by Renyi loss, in milliseconds


def gdp(**more: Any) -> Table:
    return {"algorithm": {"name": "gaussian_gdp", "clip": 1.0, **more}}


def fedavg(**more: Any) -> Table:
    return {"algorithm": {"name": "fedavg", **more}}


def read(**more: Any) -> Table:
    return {"read": {"name": "noisy_gradient", "clip": 1.0, **more}}


def budget(**more: Any) -> Table:
    return {"privacy": {"epsilon": 2.0, "delta": 1e-3, **more}}


def up(client: list[Table], server: list[Table] | None = None, **more: Any) -> Table:
    return {"uplink": {"client": client, "server": server or [], **more}, **fedavg()}


def plain(client: list[Table], server: list[Table]) -> Table:
    """An uplink without any promise."""
    return {**up(client, server), "privacy": {}}


CLIP, NOISE = {"name": "clip", "radius": 1.0}, {"name": "noise"}


CENTRAL = {"name": "noise", "neighbours": "zero_out"}
MEDIAN: Table = {"name": "median", "f": 1}
COORDINATES: Table = {"name": "clip_coordinates", "radius": 0.1}
PUBLISHED: Table = {"name": "coordinate_laplace", "radius": 0.1, "epsilon": 1.0}


def helpful(error: SordinoError, code: str) -> None:
    assert error.code == code, str(error)
    assert error.what
    assert error.why or error.fix
    assert error.what in str(error)


# ---------------------------------------------------------------- calls that must not be made
class Call(NamedTuple):
    code: str
    make: Callable[[], Any]


NET = Classification(
    torch.nn.Sequential(torch.nn.Linear(2, 2)), name="logistic", shape=(2,), mean=(0.0,), std=(1.0,), image=False
)


class Remembers(torch.nn.Module):
    """A network that counts how often it was used."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.used = torch.nn.Linear(2, 2), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.used += 1
        return self.linear(x)  # type: ignore[no-any-return]


BALL = Classification(logistic((2,), 2, 2.0), name="logistic", shape=(2,), mean=(0.0,), std=(1.0,), image=False)


REMEMBERS = Classification(Remembers(), name="own:Net", shape=(2,), mean=(0.0,), std=(1.0,), image=False)


def shard(reader: NoisyGradient, reads: int | None = None) -> Any:
    rows = Examples(torch.zeros(4, 2), torch.zeros(4))
    return reader.open(rows, Grant(0, 4, 4, Counter(1), 1.0, reads=reads), Quadratic(2))


def planned(algorithm: Table, read: Table) -> Any:
    made = {"partition": {"scheme": "iid", "clients": 4}, "algorithm": algorithm, "read": read, "privacy": {}}
    return simulated(config.validate(made)).setup.plan


ROWS = Examples(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))


GRANT = Grant(0, 4, 4, Counter(1), 1.0)


PHASES: Table = {
    "rounds": 2,
    "data": {"source": "digits", "probe": 5},
    "candidates": {"source": "procedural", "per_class": 5},
    "partition": {"scheme": "iid", "clients": 4},
    "model": {"name": "cnn_norm"},
    "privacy": {"epsilon": 8.0, "delta": 1e-4},
}


def phases(variant: str, **more: Any) -> None:
    parts = simulated(config.validate({**PHASES, "algorithm": {"name": "slaug_fl", "variant": variant}, **more}))
    _ = [phase.plan for phase in parts.setup.whole.phases]


SUMS = ClassSums(1.0)


def sums(times: int) -> None:
    opened = SUMS.open(ROWS, GRANT, NET)
    for _ in range(times):
        opened.by_class(lambda x: x, 2)


def beside_noise() -> Any:
    grant = replace(GRANT, public=ROWS, reads=1)
    opened = NoisyGradient(1.0).open(ROWS, grant, NET)
    return next(iter(opened.mixed(LocalWork(None, 1, None), keys.root(1), "half")))


def episodes(times: int = 1, passes: int = 1, reads: int | None = None) -> None:
    opened = CellGradient(1.0, cells=1).open(ROWS, replace(GRANT, reads=reads), NET)
    for _ in range(passes):
        for episode in opened.episodes(LocalWork(None, 2, 1), keys.root(1)):
            for _ in range(times):
                episode.grad(lambda params, support, query, draws: params["w"].sum(), {"w": torch.zeros(1)})


def read_batches(work: LocalWork, times: int = 1, passes: int = 1, reads: int | None = 1) -> None:
    reader = NoisyGradient(1.0, sampling="full" if work.batch_size is None else "fixed_batches")
    opened = shard(reader, reads)
    for _ in range(passes):
        for batch in opened.batches(work, keys.root(1)):
            for _ in range(times):
                batch.grad(linear, {"w": torch.zeros(2)})


def single_uploads(uplink: Uplink) -> Any:
    zero = {"w": torch.zeros(2)}
    return uplink.receive({0: zero}, zero, [1.0], 1.0, 1.0, Counter(1)).each


SAMPLED = events.Poisson(0.5, events.Together((events.Gaussian(1.0), events.Laplace(1.0))))


UPLOAD = {"w": torch.zeros(4)}


VISITOR = Grant(0, 10, 10, Counter(0))


def shared(bits: int) -> Uplink:
    share = NoiseShare(neighbours="zero_out", multiplier=1.0, survivors=4)
    return Uplink((Clip(1.0), Quantise(Layout(bits)), share, Aggregated()))
