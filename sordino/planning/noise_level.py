"""Noise level of one upload relative to the largest signal that it can carry, from public numbers alone, before
anything is drawn; and the size of a federation in which the noise is small enough.

The noise in a round's mean is then `in_mean`: independent noises of the clients average out, one central noise is
divided by the public denominator. All norms are root mean squares: a coordinate's deviation times sqrt(d).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import NamedTuple

from sordino.privacy.readers.convex_stable import ConvexStable
from sordino.privacy.readers.episodes import CellGradient
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink import Uplink
from sordino.types import Work

# noise / largest signal of one round: above the first it mostly shows noise, below the second a signal is plain
LOUD, QUIET = 1.0, 0.3
MANKIND = 10**10  # a plan that needs more clients needs another idea


class Loudness(NamedTuple):
    std: float  # of one coordinate of the noise
    signal: float  # the largest 2-norm that what is under the noise can have


@singledispatch
def of_reader(reader: object, work: Work, multiplier: float, size: int) -> Loudness | None:
    """Noise and largest signal of the sum of a round's gradients at one client, before the step size; None for a reader
    whose noise is not known."""
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
    """Noise and largest signal of one upload where the clients add the noise, or of the sum where the server does."""
    stage, bound = uplink.noise(), uplink.bound(coordinates)
    assert stage is not None
    std = stage.std(bound, multiplier, coordinates)
    return Loudness(std / uplink.scale, bound.l2 / uplink.scale)


def in_mean(stds: Sequence[float], weights: Sequence[float]) -> float:
    """The deviation of one coordinate of the weighted mean of independent noises."""
    total = math.fsum(weights)
    return math.hypot(*(w * std for w, std in zip(weights, stds, strict=True))) / total if total else 0.0


# loud enough ----------------------------------------------------------------------------------------------------------


class Enough(NamedTuple):
    """The smallest federation, grown with its cohort in proportion, in which noise / largest signal falls below
    `below`.
    """

    below: float
    clients: int
    cohort: int
    delta: float  # smaller than the one asked for where that would no longer lie below 1 / protected units
    noise_to_signal: float


def enough(
    below: float, clients: int, cohort: float, delta: float, units: int, power: int, ratio: Callable[[float], float]
) -> Enough | None:
    """The smallest federation in which noise / largest signal falls below `below`; None where it has more clients than
    there are people.

    At a fixed sampling rate and number of rounds the multiplier does not depend on the number of clients, so
    `ratio(delta)`, given for the present size, falls as 1/cohort (central noise, power 1) or 1/sqrt(cohort) (noise of
    every client, power 2). Only a smaller delta needs a new calibration. `units`: protected units per client.
    """
    while True:
        now = ratio(delta)
        growth = (now / below) ** power
        if growth * clients > MANKIND:
            return None
        grown = math.floor(cohort * growth) + 1 if now >= below else math.ceil(cohort)
        people = math.ceil(grown * clients / cohort)
        if delta < 1 / (people * units):
            return Enough(below, people, grown, delta, now * (cohort / grown) ** (1 / power))
        delta = 10.0 ** -(math.floor(math.log10(people * units)) + 1)


def marks(search: Callable[[float], Enough | None], ratio: float) -> list[Enough]:
    return [found for below in (LOUD, QUIET) if ratio >= below and (found := search(below))]


def warning(ratio: float, ways: list[str]) -> str | None:
    """A warning where the noise of a round exceeds the largest possible signal, with ways out; None where it does
    not.
    """
    if ratio <= LOUD:
        return None
    loud = (
        f"The noise in one round's mean is {ratio:.3g} times the largest possible signal: a single round "
        "then shows mostly noise, and many rounds may still learn."
    )
    return " ".join([loud, *ways])


def ways_out(found: Sequence[Enough], delta: float) -> list[str]:
    return [
        f"It falls below {way.below:g} with {way.clients:,} such clients, {way.cohort:,} in a round"
        + (
            "."
            if way.delta == delta
            else f", at delta {way.delta:g}: {delta:g} would not be below 1 / protected units."
        )
        for way in found
    ]


NO_WAY = "More clients than there are people would not change that: plan fewer rounds, a smaller model or another unit."
