"""Noise at every step behind a clip to the median, as published with DP-SCAFFOLD (Noble, Bellet and Dieuleveut, AISTATS
2022). Not a guarantee.

A step is (1/B) (sum of gradients, each parameter's clipped to the median C_l of its norms over the batch) + (2 C_l / B)
N(0, sigma^2). The median is a function of the data without any noise, and every parameter is noised as if it were the
only one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from sordino import keys
from sordino.accounting.events import NonPrivate, check_multiplier
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.accounting.published import scaffold_epsilon
from sordino.keys import Key
from sordino.privacy.noise import GaussianNoise
from sordino.privacy.readers import epochs
from sordino.privacy.readers.noisy_gradient import GradientsOnly, GuardedBatch
from sordino.privacy.readers.open import effort
from sordino.privacy.uplink.as_published import NOT_STEPS, PER_LAYER, RAW_MEDIAN
from sordino.types import (
    Batch,
    Claim,
    Examples,
    Grant,
    LocalWork,
    Losses,
    Offer,
    Params,
    Reader,
    Shard,
    StatedEpsilon,
    Task,
    Tensor,
)

UNBOUNDED = "noised gradients whose clip follows the data"


@dataclass(frozen=True)
class MedianClip(Reader):
    """Gradients clipped to their median norms, with noise, as published, which proves nothing."""

    sigma: float = 1.0
    rate: float = 0.1  # of clients per round, in the published formula
    gives = ("batches",)

    def __post_init__(self) -> None:
        check_multiplier(self.sigma, "give a sigma above 0", "sigma")

    def offer(self) -> Offer | None:
        return None

    def claims(self, work: LocalWork, size: int, multiplier: float | None) -> list[Claim]:
        why = (RAW_MEDIAN, PER_LAYER, NOT_STEPS)
        return Claim.to_everyone("example", "replace", NonPrivate(UNBOUNDED), "nominal", why)

    def stated(self, rounds: int, delta: float, records: int) -> StatedEpsilon:
        """Epsilon as published (the leading term of its composition), and the exact epsilon of the same releases."""
        releases = math.sqrt(self.rate * rounds) / self.sigma
        return StatedEpsilon(scaffold_epsilon(rounds, delta, self.sigma, self.rate), epsilon_of(releases, delta))

    def reads(self, work: LocalWork, size: int) -> int:
        return work.count(size)

    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        return MedianShard(self, examples, grant, task)


@dataclass
class MedianShard(GradientsOnly[MedianClip]):
    """One client's examples during one round, of which client code gets noised gradients, clipped to their median
    norms.
    """

    @property
    def size(self) -> int:
        return len(self._examples.y)

    def batches(self, work: LocalWork, key: Key) -> Iterator[Batch]:
        local, step = effort(work, self._grant), 0
        for order, count in epochs(self.size, local, key):
            for rows in torch.split(order, local.batch(self.size))[:count]:
                yield GuardedBatch(partial(self.read, rows, step, keys.fold(key, "draw", step)))
                step += 1

    def read(self, rows: Tensor, step: int, key: Key, losses: Losses, params: Params) -> Params:
        batch = Examples(self._examples.x[rows], self._examples.y[rows])
        total, radii = self._task.median_sum(losses, params, batch, keys.bits(key, len(rows)))
        source, twice, law = self._grant.source.child("read", step), 2 * self._reader.sigma, GaussianNoise()
        return {
            name: (
                law.add(total[name], twice * radius, source.child(name)) if (radius := radii[name]) else total[name]
            ).to(p.dtype)
            / len(rows)
            for name, p in params.items()
        }
