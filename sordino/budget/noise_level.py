"""How loud one upload's noise is, against the largest signal the upload could carry. From public numbers alone, before
anything is drawn.

The noise in a round's mean is then `in_mean`: independent noises of the clients average out, one central noise is
divided by the public denominator. All norms are root mean squares: a coordinate's deviation times sqrt(d).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import singledispatch
from typing import NamedTuple

from sordino.privacy.readers.convex_stable import ConvexStable
from sordino.privacy.readers.episodes import CellGradient
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink import Uplink
from sordino.types import Work


class Loudness(NamedTuple):
    std: float  # of one coordinate of the noise
    signal: float  # the largest 2-norm that what is under the noise can have


@singledispatch
def of_reader(reader: object, work: Work, multiplier: float, size: int) -> Loudness | None:
    """The loudness of the sum of a round's gradients at one client, before the step size; None for a reader that
    does not say.
    """
    return None


@of_reader.register
def _(reader: NoisyGradient, work: Work, multiplier: float, size: int) -> Loudness:
    # every step's gradient carries its own noise: deviations add in squares, signals at most plainly
    steps, denominator = work.count(size), reader.denominator(size, work.batch(size))
    std = multiplier * reader.mechanism.spread * reader.sensitivity / denominator
    return Loudness(math.sqrt(steps) * std, steps * reader.clip)


@of_reader.register
def _(reader: CellGradient, work: Work, multiplier: float, size: int) -> Loudness:
    steps, denominator = work.count(size), reader.denominator
    return Loudness(math.sqrt(steps) * multiplier * reader.sensitivity / denominator, steps * reader.clip)


@of_reader.register
def _(reader: ConvexStable, work: Work, multiplier: float, size: int) -> Loudness:
    steps = work.count(size)  # one noise for all of them
    return Loudness(reader.noise_std(multiplier, size, steps), steps * math.sqrt(2) * reader.radius)


def of_uplink(uplink: Uplink, multiplier: float, coordinates: int) -> Loudness:
    """The loudness of one upload where the clients add the noise, of the sum where the server does."""
    stage, bound = uplink.noise(), uplink.bound(coordinates)
    assert stage is not None
    std = stage.std(bound, multiplier, coordinates)
    return Loudness(std / uplink.scale, bound.l2 / uplink.scale)


def in_mean(stds: Sequence[float], weights: Sequence[float]) -> float:
    """The deviation of one coordinate of the weighted mean of independent noises."""
    total = math.fsum(weights)
    return math.hypot(*(w * std for w, std in zip(weights, stds, strict=True))) / total if total else 0.0
