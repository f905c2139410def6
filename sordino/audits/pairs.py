"""Pairs of neighbours, and distinguishers that know both and tell their releases apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from sordino.audits.lower_bounds import Outputs
from sordino.audits.noise_sources import Silent
from sordino.types import NoiseSource

FAR = 1e3  # times any bound, so that a gate must cut it
Release = Callable[[NoiseSource], Tensor]  # [independent draws of one call, numbers seen]


class NoPower(Exception):
    """Error of an attack for which both neighbours look the same, so that it shows nothing about the claim."""


@dataclass(frozen=True)
class Pair:
    """Two neighbours to distinguish by their releases. `by` "direction": by the projection on the line between their
    centres; `by` "energy": by the size of the noise.
    """

    told: str
    without: Release
    with_: Release
    by: Literal["direction", "energy"] = "direction"
    score: Callable[[Tensor], Tensor] | None = None  # a better statistic, where the attacker knows one
    rate: float = 1.0  # sampling rate: probability that a coordinate holds the record at all

    def outputs(self, draws: int, source: NoiseSource) -> Outputs:
        """Scores of at least `draws` releases of each neighbour, each with fresh noise."""
        score = self.score or self._score()
        calls = math.ceil(draws / len(self.without(source.child("shape"))))
        sides = [
            torch.cat([score(release(source.child(name, call))) for call in range(calls)])
            for name, release in (("without", self.without), ("with", self.with_))
        ]
        return Outputs(*sides)

    def _score(self) -> Callable[[Tensor], Tensor]:
        centres = [release(Silent()) for release in (self.without, self.with_)]
        loud = [release(Silent(1.0)) for release in (self.without, self.with_)]
        std = torch.maximum(*((noisy - centre).abs() for noisy, centre in zip(loud, centres, strict=True)))
        most = float(std.max())
        std = std.clamp_min(1e-6 * most if most else 1.0)  # a number without noise counts for nearly everything
        origin, towards = centres[0], (centres[1] - centres[0]) / std**2
        if self.by == "energy":
            return lambda seen: (((seen - origin) / std) ** 2).mean(1)
        length = ((centres[1] - origin) * towards).sum(1)
        if not bool((torch.isfinite(length) & (length > 0)).all()):
            raise NoPower
        if self.rate < 1:
            return partial(likelihood, origin=origin, towards=towards, std=std, rate=self.rate)
        return lambda seen: ((seen - origin) * towards).sum(1) / length


def likelihood(seen: Tensor, origin: Tensor, towards: Tensor, std: Tensor, rate: float) -> Tensor:
    """Log likelihood ratio of each release under Gaussian noise, where each coordinate is shifted with probability
    `rate`: the best test statistic (Neyman and Pearson). `towards`: the shift of each coordinate divided by its
    variance.
    """
    shift = towards * std
    told = (seen - origin) / std * shift - shift**2 / 2
    return torch.logaddexp(told + math.log(rate), torch.tensor(math.log1p(-rate), dtype=told.dtype)).sum(1)
