"""Uploads as integers, which secure sums can add and discrete noise can protect.

Guarantees: an integer upload has at most `scale` times the norm of the real upload, plus 1/2 for every coordinate (in
the 2-norm: plus sqrt(d)/2), whatever it holds. Proof: rounding moves a coordinate by at most 1/2, and cutting to the
range moves none away from zero. NaN and infinity are refused, not encoded.

Layout, in slots with room for the sum of many contributions:

A value x in [-reach, reach] becomes Q = rint(x * scale), |Q| <= 2^(bits-1) - 1, and travels as z = Q + 2^(bits-1) >= 1,
so that no slot borrows from its neighbour. The sum of k contributions fits a slot exactly if k (2^bits - 1) <=
2^(bits+headroom) - 1; decoding subtracts k offsets.

Guarantees: a sum of k differs from the sum of the real values by at most k / (2 scale) in each coordinate, where no
value was beyond the range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sordino import tree
from sordino.device import here
from sordino.errors import DomainError, HeadroomExceeded, IntegrityError, NonFiniteUpdate, Range, check_range
from sordino.privacy.uplink.stages import Stage
from sordino.tree import Tree
from sordino.types import Bound, Grant

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """The fixed-point layout of a run, which is public and the same for everybody."""

    bits: int = 24
    headroom: int = 8
    reach: float = 1.0  # larger values are cut to it, and counted

    def __post_init__(self) -> None:
        check_range("bits", self.bits, Range(least=2, most=32, whole=True), "layout-out-of-range")
        check_range("headroom", self.headroom, Range(least=1, most=32, whole=True), "layout-out-of-range")
        check_range("the range of the fixed point", self.reach, Range(least=1e-30, most=1e30), "not-positive")

    @property
    def width(self) -> int:
        """Bits of a slot, which holds one number of a sum."""
        return self.bits + self.headroom

    @property
    def offset(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def scale(self) -> float:
        """The number of integer steps per unit."""
        return (self.offset - 1) / self.reach

    @property
    def most(self) -> int:
        """Largest number of contributions that a slot can add, and a header of 32 bits can tell."""
        return min(((1 << self.width) - 1) // ((1 << self.bits) - 1), (1 << 32) - 1)

    def check(self, count: int) -> None:
        if count > self.most:
            raise HeadroomExceeded(
                f"{count} uploads are too many: with {self.bits} bits and {self.headroom} headroom bits a slot "
                f"adds up at most {self.most}",
                why="a larger sum would overflow into the neighbouring slot",
                fix="set more headroom bits in the quantise stage, or use fewer clients",
                code="headroom-exceeded",
            )

    def at_the_end(self, values: Ints) -> int:
        """The number of integers at the end of the range or beyond it."""
        return int(np.count_nonzero(np.abs(values) >= self.offset - 1))

    def check_values(self, values: Ints, code: str, why: str, count: int = 1) -> None:
        """Refuses integers that have more bits than the layout, or than `count` contributions add up to."""
        most = count * (self.offset - 1)
        beyond = np.flatnonzero((values > most) | (values < -most))
        if len(beyond):
            raise DomainError(
                f"the value {values[beyond[0]]} at index {beyond[0]} needs more than {self.bits} bits",
                why=why,
                fix="encode real numbers with the layout of the run",
                code=code,
            )

    def encode(self, values: NDArray[np.floating], who: int = -1) -> tuple[Ints, int]:
        """Real values as signed integers, and the number of values beyond the range."""
        wide = np.asarray(values, np.float64)
        if not np.isfinite(wide).all():
            raise NonFiniteUpdate(
                f"client {who} uploads the value {wide[~np.isfinite(wide)][0]} at index "
                f"{int(np.argmin(np.isfinite(wide)))}",
                why="NaN and infinity cannot be written as integers",
                fix="lower the learning rate, or clip the update first; the round is aborted and the model is "
                "unchanged",
                code="non-finite-update",
            )
        beyond = int(np.count_nonzero(np.abs(wide) > self.reach))
        return np.rint(np.clip(wide, -self.reach, self.reach) * self.scale).astype(np.int64), beyond

    def decode(self, sums: Ints) -> NDArray[np.float64]:
        """The real sum that a sum of signed integers stands for."""
        return sums / self.scale


def no_sum(what: str, code: str) -> IntegrityError:
    """The error for decrypted numbers that are not a sum of contributions."""
    return IntegrityError(
        f"the decrypted numbers are not the sum of these uploads: {what}",
        why="the key is another one, or a message was changed or counted wrongly",
        fix="drop this round; the model is unchanged",
        code=code,
    )


@dataclass(frozen=True)
class Quantise(Stage):
    """Real numbers rounded to integer multiples of a public grid step; `strict`: a run stops where more than one value
    in a thousand is beyond the range; otherwise such values are cut to it and counted."""

    layout: Layout = Layout()
    strict: bool = False

    @property
    def scale(self) -> float:
        return self.layout.scale

    def bound(self, bound: Bound, coordinates: int) -> Bound:
        if math.isinf(bound.l2):  # what is not finite ends a run, which everybody sees: the range alone bounds nothing
            return Bound()
        l1 = min(bound.l1 * self.scale + coordinates / 2, float(coordinates * self.layout.offset))
        l2 = min(bound.l2 * self.scale + math.sqrt(coordinates) / 2, math.sqrt(coordinates) * self.layout.offset)
        return Bound(l1=l1, l2=min(l1, l2))

    def encode(self, x: Tree, bound: Bound, grant: Grant) -> Tree:
        values, _ = self.layout.encode(tree.flat(tree.formed(x)).detach().double().cpu().numpy(), grant.client)
        return tree.unflat(here(torch.from_numpy(values)), self.shape(x))

    def shape(self, x: Tree) -> Tree:
        return tree.map(lambda leaf: torch.zeros(leaf.shape, dtype=torch.int64), x)

    def decode(self, y: Tree, like: Tree) -> Tree:
        return tree.map(lambda leaf: leaf / self.scale, y)
