"""The work that every side does: shapes, clients, model, optimiser. Nothing of sordino is imported here: peers run it
in environments of their own.

    w1   CIFAR shape, 100 clients of 500 images, 10 a round, 25 steps of 50, CNN of 797,962 parameters
         (compute)
    w2   MNIST shape, 1000 clients of 60 images, 100 a round, 1 epoch of batches of 10, MLP 784-200-10
         (overhead)
    w3   as w2, one full-batch step, every example clipped to 1 in L2, Gaussian noise at every client
         (privacy)
    w2u  as w2, of unequal clients: 10 to 201 images, 60 on average, as 1000 clients of MNIST hold where labels are
         spread by a Dirichlet law of 0.3; weighted by their images
         (the work people have)
    w4   as w3 with 3 such steps and 20 clients a round: after the first step no two clients stand at the same weights
         (privacy)
    w5   as w1, by PFLDyn with prototypes: 25 steps, each on two batches of 50. Nobody else runs it, so it stands beside
         its own arithmetic only
         (personalisation)

Pixels are half random, half a pattern of their class: time does not see it, and a side that trains less is found out by
its loss.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

HELD_OUT = 500  # examples of the fixed batch on which the sides are compared
CLASSES = 10


@dataclass(frozen=True)
class Workload:
    name: str
    shape: tuple[int, int, int]  # height, width, channels
    clients: int
    examples: int  # of each client, or on average
    cohort: int
    model: str
    lr: float
    batch: int | None  # None: all examples of the client
    steps: int
    clip: float | None = None  # L2, of every example's gradient; None: not private
    multiplier: float = (
        0.0  # noise over the sensitivity of the sum, which is twice the clip where one example is replaced
    )
    spread: float = 0.0  # of the logarithm of sizes; 0: all are equal
    method: str = ""  # by its name in sordino, where it is another one than follows from the rest
    device: str = "cpu"

    @property
    def noise(self) -> float:
        """Standard deviation on every coordinate of a client's sum of clipped gradients."""
        return 2 * (self.clip or 0.0) * self.multiplier

    def cohort_of(self, t: int) -> list[int]:
        return [(t * self.cohort + i) % self.clients for i in range(self.cohort)]

    @property
    def sizes(self) -> list[int]:
        """How many examples each client has."""
        drawn = np.random.default_rng(1).lognormal(0.0, self.spread, self.clients)
        low, high = (10, 201) if self.spread else (self.examples, self.examples)
        return [int(size) for size in np.clip(drawn * self.examples / drawn.mean(), low, high).round()]

    def rows(self, client: int) -> slice:
        end = _ends(self)[client + 1]
        return slice(_ends(self)[client], end)

    def share(self, client: int, cohort: list[int]) -> float:
        """What a client weighs in the mean."""
        ends = _ends(self)
        return (ends[client + 1] - ends[client]) / sum(ends[k + 1] - ends[k] for k in cohort)

    def batches(self, examples: int) -> Iterator[Tensor]:
        """Rows of the local steps of one client: without replacement until all have been seen. One epoch where
        clients are unequal."""
        size = self.batch or examples
        left = -(-examples // size) if self.spread else self.steps
        while left > 0:
            for rows in torch.randperm(examples, device=self.device).split(size)[:left]:
                left -= 1
                yield rows


@cache
def _ends(w: Workload) -> list[int]:
    """Where the rows of each client begin, and the end."""
    return [0, *itertools.accumulate(w.sizes)]


WORKLOADS = {
    w.name: w
    for w in (
        Workload("w1", (32, 32, 3), 100, 500, 10, "cnn", 0.1, batch=50, steps=25),
        Workload("w2", (28, 28, 1), 1000, 60, 100, "mlp", 0.1, batch=10, steps=6),
        Workload("w2u", (28, 28, 1), 1000, 60, 100, "mlp", 0.1, batch=10, steps=6, spread=0.75),
        Workload("w3", (28, 28, 1), 1000, 60, 100, "mlp", 0.1, batch=None, steps=1, clip=1.0, multiplier=1.0),
        Workload("w4", (28, 28, 1), 1000, 60, 20, "mlp", 0.1, batch=None, steps=3, clip=1.0, multiplier=1.0),
        Workload("w5", (32, 32, 3), 100, 500, 10, "cnn", 0.1, batch=100, steps=25, method="pfl_dyn"),
    )
}


class Data(NamedTuple):
    """uint8 images, channels last, client after client; and the fixed batch."""

    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor


def data(w: Workload) -> Data:
    rng, n = np.random.default_rng(0), sum(w.sizes)
    height, width, channels = w.shape
    coarse = rng.integers(0, 256, (CLASSES, height // 4, width // 4, channels), dtype=np.uint8)
    pattern = coarse.repeat(4, axis=1).repeat(4, axis=2) // 2
    y = rng.integers(0, CLASSES, n + HELD_OUT)
    x = np.empty((n + HELD_OUT, *w.shape), np.uint8)
    for start in range(0, len(x), 1000):  # no second copy, even for a moment: peak memory is measured
        rows = slice(start, start + 1000)
        x[rows] = rng.integers(0, 128, x[rows].shape, dtype=np.uint8) + pattern[y[rows]]
    return Data(*(torch.from_numpy(part).to(w.device) for part in (x[:n], y[:n], x[n:], y[n:])))


def floats(x: Tensor) -> Tensor:
    """As a user prepares images: [n, c, h, w], -1..1."""
    return x.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format).div_(127.5).sub_(1)


def mlp(shape: tuple[int, int, int]) -> nn.Sequential:
    height, width, channels = shape
    return nn.Sequential(nn.Flatten(), nn.Linear(height * width * channels, 200), nn.ReLU(), nn.Linear(200, CLASSES))


def cnn(shape: tuple[int, int, int]) -> nn.Sequential:
    last = ((shape[0] - 4) // 2 - 4) // 2
    return nn.Sequential(
        *(nn.Conv2d(shape[2], 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * last * last, 384), nn.ReLU()),
        *(nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, CLASSES)),
    )


MODELS: dict[str, Callable[[tuple[int, int, int]], nn.Sequential]] = {"mlp": mlp, "cnn": cnn}


def network(w: Workload) -> nn.Sequential:
    """At the weights from which every side starts."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(0)
        return MODELS[w.model](w.shape).to(w.device)
