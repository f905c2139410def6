"""The sum of many uploads, in float64, without forming those that are told by coefficients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sordino.fast.factored import EVERY, Matrix, Scaled, Span, dense
from sordino.fast.products import across

if TYPE_CHECKING:
    from torch import Tensor

BUNCH = 1 << 10  # rows of a span that are multiplied out together


class Total:
    """A sum of leaves in float64. Spans are multiplied out a bunch of clients at a time."""

    def __init__(self, zero: Tensor) -> None:
        self._sum, self._rows = zero, 0
        self._waiting: list[Span] = []

    def add(self, leaf: Matrix) -> None:
        if isinstance(leaf, Scaled):
            self._sum.add_(leaf.x, alpha=leaf.factor)
            return
        if not (isinstance(leaf, Span) and leaf.index is EVERY):
            self._sum.add_(dense(leaf))
            return
        self._waiting.append(leaf)
        self._rows += len(leaf.c)
        if self._rows >= BUNCH:
            self.sum()

    def sum(self) -> Tensor:
        if self._waiting:
            c, x = torch.cat([span.c for span in self._waiting]), torch.cat([span.rows.x for span in self._waiting])
            self._sum.add_(across(c, x))
            self._waiting, self._rows = [], 0
        return self._sum
