"""Block sums: a layer of I numbers is compressed to m sums of runs of consecutive numbers (Li, Xiao and Chen, Chinese
Journal of Computers 2024, algorithm 3).

The matrix is 0/1 with disjoint rows, known to both sides from (I, m): only the sums are sent, and the matrix is never
formed. Rows are orthogonal, so the minimum-norm reconstruction is each sum spread evenly over its run; it commutes with
the mean, so the server applies it once, to the sum of all uploads.

Guarantees: the 2-norm grows by at most the square root of the longest run, the 1-norm not at all. Proof: a run of z
numbers with 2-norm s sums to at most s sqrt(z); runs are disjoint. As printed the rule breaks for tiny layers (m = 0);
here every layer keeps at least one number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch

from sordino.privacy.uplink.rates import LayerByLayer
from sordino.types import Bound

if TYPE_CHECKING:
    from torch import Tensor


class Runs(NamedTuple):
    """Division of a layer into runs (blocks of consecutive numbers): `longer` of them have `each + 1` numbers, the
    others have `each`.
    """

    many: int
    each: int
    longer: int

    @property
    def longest(self) -> int:
        return self.each + (self.longer > 0)

    def lengths(self) -> Tensor:
        return torch.tensor([self.each + 1] * self.longer + [self.each] * (self.many - self.longer))


@cache
def runs(size: int, rate: float) -> Runs:
    """The division into runs of a layer with `size` numbers: as many runs as the share `rate` of the numbers, at least
    one.
    """
    tenths = round(10 * rate)
    kept = (tenths * size) // 10 if math.isclose(10 * rate, tenths) else math.floor(rate * size + 1e-9)
    count = max(1, kept)
    each = size // count
    return Runs(count, each, size - each * count)


def sums(x: Tensor, rate: float) -> Tensor:
    """The sums of a layer's numbers, run by run."""
    flat, found = x.reshape(-1), runs(x.numel(), rate)
    cut = found.longer * (found.each + 1)
    long, short = flat[:cut].view(found.longer, found.each + 1), flat[cut:].view(-1, found.each)
    return torch.cat([long.sum(1), short.sum(1)])


def spread(y: Tensor, like: Tensor, rate: float) -> Tensor:
    """The layer with the smallest 2-norm, in the shape of `like`, that has these sums."""
    found = runs(like.numel(), rate)
    cut = found.longer
    long = (y[:cut] / (found.each + 1))[:, None].expand(-1, found.each + 1)
    short = (y[cut:] / found.each)[:, None].expand(-1, found.each)
    return torch.cat([long.reshape(-1), short.reshape(-1)]).view(like.shape)


@dataclass(frozen=True)
class BlockSum(LayerByLayer):
    """Compression to the sums of consecutive numbers. Put the clip after it: bounding what is sent costs less noise
    than bounding the numbers that are added.
    """

    def bound(self, bound: Bound, coordinates: int) -> Bound:
        # the longest run of any layer: m = floor(rate I) >= 1 leaves runs below 2/rate, and a layer that is smaller
        # than 1/rate is one run
        longest = math.ceil(2 / self._least)
        return Bound(l1=bound.l1, l2=min(bound.l2 * math.sqrt(longest), bound.l1))

    def measured(self, layer: Tensor, rate: float) -> Tensor:
        return sums(layer, rate)

    def kept(self, layer: Tensor, rate: float) -> int:
        return runs(layer.numel(), rate).many

    def rebuilt(self, y: Tensor, like: Tensor, rate: float) -> Tensor:
        return spread(y, like, rate)
