"""Noise laws: the norm of their sensitivity, the event that accounts for them, and how a budget prices them. On
integers they are discrete, at the same price.

Proof of the price: two-sided geometric noise of scale b is e^(1/b)-indistinguishable for each step, as Laplace noise
is; discrete Gaussians have the Renyi divergences of continuous ones (Canonne, Kamath and Steinke, NeurIPS 2020), and on
grids of thousands of steps their loss is the same to within the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from sordino.accounting import events
from sordino.privacy.noise.discrete import discrete_gaussian, discrete_laplace
from sordino.types import NoiseSource

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class GaussianNoise:
    """Gaussian noise N(0, (multiplier * sensitivity)^2) on every coordinate; the sensitivity is in the 2-norm.

    `exact` prices by Gaussian DP (Dong, Roth and Su 2022; Balle and Wang 2018); `classic` by sqrt(2
    ln(1.25/delta))/epsilon, proved for epsilon < 1 only (Dwork and Roth 2014), refused above; `classic_checked` accepts
    it above 1 where the exact inequality holds. `discrete` is for noise in few whole steps, which has the Renyi
    divergences of this law, but not its curve of epsilon and delta.
    """

    calibration: Literal["exact", "classic", "classic_checked", "discrete"] = "exact"
    order: int = 2
    spread: ClassVar[float] = 1.0

    def event(self, multiplier: float) -> events.Event:
        return events.DiscreteGaussian(multiplier) if self.calibration == "discrete" else events.Gaussian(multiplier)

    def add(self, values: Tensor, scale: float, source: NoiseSource) -> Tensor:
        if values.is_floating_point():
            return source.gaussian(values, scale)
        noise = torch.from_numpy(discrete_gaussian(source, values.numel(), scale))
        return values + noise.view(values.shape).to(values.device)


@dataclass(frozen=True)
class LaplaceNoise:
    """Laplace noise of scale multiplier * sensitivity on every coordinate; the sensitivity is in the 1-norm. It
    gives pure epsilon = 1/multiplier.
    """

    calibration: Literal["pure"] = "pure"
    order: int = 1
    spread: ClassVar[float] = math.sqrt(2)

    def event(self, multiplier: float) -> events.Event:
        return events.Laplace(multiplier)

    def add(self, values: Tensor, scale: float, source: NoiseSource) -> Tensor:
        if values.is_floating_point():
            return source.laplace(values, scale)
        noise = torch.from_numpy(discrete_laplace(source, values.numel(), scale))
        return values + noise.view(values.shape).to(values.device)
