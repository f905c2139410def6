"""Hypothesis H of CUAG-PFL with rates from the update before its noise: `algorithm.name = "quiet_rates:QuietRates"`.

The noise of a layer is known from its norm (variance used as a deviation: std = (2 sigma / batch)^2 norm^2), so the
server can subtract what it adds to the squares of the norms. In a simulation it could look; this needs uploads only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sordino import tree
from sordino.accounting.published import relative_noise
from sordino.algorithms.pfl_dyn import PFLDyn
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.as_published import OwnNorm
from sordino.privacy.uplink.compression import BlockSum, rates, runs
from sordino.tree import Tree

SIGMA = 0.7105  # of hypothesis H
PER_SQUARE = relative_noise(SIGMA) ** 2  # a layer's std, divided by the square of its norm


def before_noise(square: float, many: int) -> float:
    """The square of a layer's norm before noise, from that after it: the root of a + many (PER_SQUARE a)^2 = square."""
    factor = many * PER_SQUARE**2
    return 2 * square / (1 + math.sqrt(1 + 4 * factor * square))


@dataclass(frozen=True)
class QuietBlockSum(BlockSum):
    """Block sums whose next rates come from the mean update before its noise, as estimated from all uploads."""

    @property
    def reads_each(self) -> bool:
        return True

    def learn(self, mean: Tree, like: Tree, std: float, each: Sequence[Tree]) -> Tree:
        decoded, uploads = tree.leaves(self.decode(mean, like)), list(zip(*map(tree.leaves, each), strict=True))
        layers = zip(decoded, self._rates(like), uploads, strict=True)
        norms = [self._norm(*layer) for layer in layers]
        found = rates(norms, self.most, self.least, self.rule, self.share)
        return torch.tensor([round(10 * rate) for rate in found], dtype=torch.uint8)

    def _norm(self, mean: torch.Tensor, rate: float, uploads: Sequence[torch.Tensor]) -> float:
        squares = [before_noise(float(upload.double().square().sum()), upload.numel()) for upload in uploads]
        variance = math.fsum((PER_SQUARE * square) ** 2 for square in squares) / len(uploads) ** 2
        spread = float((1 / runs(mean.numel(), rate).lengths().double()).sum())  # of each sum over its z numbers
        return math.sqrt(max(0.0, float(mean.double().square().sum()) - variance * spread))


@dataclass(frozen=True)
class QuietRates(PFLDyn):
    uplink: Uplink = Uplink(
        (QuietBlockSum("dynamic", share="sum_of_norms"), OwnNorm(sigma=SIGMA, variance_as_std=True))
    )
