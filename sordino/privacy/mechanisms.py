"""The noise laws: which norm they need bounded, which event they are, how a budget prices them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sordino.ledger import events
from sordino.types import Source


@dataclass(frozen=True)
class GaussianNoise:
    """N(0, (multiplier * sensitivity)^2) on every coordinate; sensitivity in the 2-norm.

    `exact` prices by Gaussian DP (Dong, Roth and Su 2022; Balle and Wang 2018); `classic` by sqrt(2 ln(1.25/delta))/epsilon, proved for epsilon < 1
    only (Dwork and Roth 2014), refused above; `classic_checked` accepts it above 1 where the exact inequality holds.
    """

    calibration: Literal["exact", "classic", "classic_checked"] = "exact"
    order: int = 2

    def event(self, multiplier: float) -> events.Event:
        return events.Gaussian(multiplier)

    def add(self, values: Tensor, scale: float, source: Source) -> Tensor:
        return source.gaussian(values, scale)


@dataclass(frozen=True)
class LaplaceNoise:
    """Laplace(multiplier * sensitivity) on every coordinate; sensitivity in the 1-norm. Pure epsilon = 1/multiplier."""

    calibration: Literal["pure"] = "pure"
    order: int = 1

    def event(self, multiplier: float) -> events.Event:
        return events.Laplace(multiplier)

    def add(self, values: Tensor, scale: float, source: Source) -> Tensor:
        return source.laplace(values, scale)
