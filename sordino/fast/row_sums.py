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

from sordino.fast.factored import Lazy, Matrix, Product, dense

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 1024  # that are added one after the other
OF_POSITIONS = 3 << 20  # their square, times the positions of each


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
