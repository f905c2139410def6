"""Sums over the rows of a client, in float64 wherever real noise is added to them.

A sum in float32 is rounded after every addition. One row that moves it past a power of two changes how all later rows
are rounded: of 100,000 rows one then moves the sum by 96 clips in place of 2 (Casacuberta, Shoemate, Vadhan and
Wagaman, CCS 2022). Seeded noise protects nobody, so a simulation adds up in the dtype of the rows, which is faster.

Guarantees: as a row is replaced, rounding moves a sum of up to 10^8 contributions by less than half the slack of their
clip. Proof: halves are added until a part has m = ROWS rows. A part is off by m^2 2^-53 clips; a sum of positions,
whose own products may be 724 times as long as a clip (`Positions.norms`), by 3e-7, since it has fewer rows; the
log2(n / m) sums of parts by n 2^-53 clips each. A row that is missing makes other parts, n / m of them: without such
products the same holds for 4 10^6 contributions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from sordino.fast import across
from sordino.fast.factored import EVERY, Lazy, Matrix, Product, Scaled, Span, dense

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 1024  # that are added one after the other
OF_POSITIONS = 3 << 20  # their square, times the positions of each
PLAIN = 64  # tensors that a running sum adds as they are
BUNCH = 1 << 10  # rows of spans that it multiplies out together


class RowSum(Lazy):
    """The sum `of(*rows)` over the first dimension of `rows`, computed where it is needed."""

    __slots__ = ("_dtype", "_most", "_near", "_of", "_rows")

    def __init__(
        self, of: Callable[..., Tensor], *rows: Tensor, most: int = ROWS, dtype: torch.dtype | None = None
    ) -> None:
        """`of`: function that adds up rows, at most `most` of them in one call. `dtype`: of the result where float64 is
        not needed; None: that of the last tensor in `rows`.
        """
        self._of, self._rows, self._most, self._dtype = of, rows, most, dtype or rows[-1].dtype
        self._near: Tensor | None = None

    @property
    def alike(self) -> Matrix:
        return self.dense()

    @property
    def shape(self) -> torch.Size:
        return self.dense().shape

    def dense(self) -> Tensor:
        if self._near is None:
            self._near = self._of(*self._rows).to(self._dtype)
        return self._near

    def wide(self) -> Tensor:
        """The sum in float64."""
        return self._halved(self._rows)

    def _halved(self, rows: Sequence[Tensor]) -> Tensor:
        if len(rows[0]) <= self._most:
            return self._of(*(part.double() if part.is_floating_point() else part for part in rows))
        half = len(rows[0]) // 2
        return self._halved([part[:half] for part in rows]) + self._halved([part[half:] for part in rows])


def weighed(weights: Tensor, each: Tensor) -> Matrix:
    """The weighted sum of the rows of `each`."""
    return RowSum(partial(torch.tensordot, dims=1), weights, each)


def of_positions(of: Callable[[Tensor, Tensor], Tensor], g: Tensor, a: Tensor) -> Matrix:
    """The sum `of(g, a)` over rows and positions [n, ..., t], computed for few rows at a time, since large terms that
    cancel would lose precision.
    """
    return RowSum(of, g, a, most=max(1, math.isqrt(OF_POSITIONS // g.shape[2])))


def rounded(total: Tensor, dtype: torch.dtype) -> Matrix:
    """Wraps a sum computed in float64: as an ordinary tensor it is rounded to `dtype`; where float64 is needed, `wide`
    gives it unrounded.
    """
    return RowSum(lambda rows: rows[0], total[None], dtype=dtype)


def wide(value: Matrix) -> Tensor:
    """A tensor in full precision: a sum over rows (`RowSum`) in float64, anything else unchanged."""
    if isinstance(value, Product) and value.right is not None:
        value = RowSum(lambda left, right: left.t() @ right, value.left, value.right)
    return value.wide() if isinstance(value, RowSum) else dense(value)


class RunningSum:
    """Sum of many tensors in float64, where noise hides one of them. Plain additions would let one tensor decide how
    all later ones are rounded: of 300,000 clips one moves such a sum by 1.0000014. So only `PLAIN` are added in a row,
    and what an addition of such parts rounds away is added at the end (Ogita, Rump and Oishi 2005). Proof: n terms of
    length 1 are off by 33 n 2^-53, twice of which is below half the slack of a clip up to 6 10^7 of them.

    Factored tensors (`Span`), which no clip leaves so, are multiplied out for many clients at a time.
    """

    def __init__(self, zero: Tensor) -> None:
        self._part, self._added = zero, 0  # it is overwritten, so that a large model has one sum in memory
        self._sum: Tensor | None = None
        self._lost = zero  # until there is a sum
        self._waiting: list[Span] = []
        self._rows = 0

    def add(self, leaf: Matrix) -> None:
        if isinstance(leaf, Span) and leaf.index is EVERY:
            self._waiting.append(leaf)
            self._rows += len(leaf.c)
            if self._rows >= BUNCH:
                self._multiply()
            return
        if isinstance(leaf, Scaled):
            self._part.add_(leaf.x, alpha=leaf.factor)
        else:
            self._part.add_(dense(leaf))
        self._added += 1
        if self._added % PLAIN == 0:
            self._carry()

    def _multiply(self) -> None:
        c, x = torch.cat([span.c for span in self._waiting]), torch.cat([span.rows.x for span in self._waiting])
        self._waiting, self._rows = [], 0
        self.add(across(c, x))

    def _carry(self) -> None:
        before, x, self._part = self._sum, self._part, torch.zeros_like(self._part)
        if before is None:
            self._sum, self._lost = x, torch.zeros_like(x)
            return
        self._sum = before + x
        arrived = self._sum - before
        self._lost += (x - arrived) + (before - (self._sum - arrived))  # exact: Knuth's two-sum

    def sum(self) -> Tensor:
        if self._waiting:
            self._multiply()
        if self._sum is None:
            return self._part
        self._carry()
        return self._sum + self._lost
