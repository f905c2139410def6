"""Noise on the integers: the discrete Laplace law, P[x] ~ exp(-|x| / scale), and the discrete Gaussian, P[x] ~ exp(-x^2
/ (2 sigma^2)) (Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020).

A geometric number's binary digits are independent: digit j is 1 with probability q / (1 + q), q = exp(-2^j / scale). So
its law is drawn digit by digit, without logarithms and without rejection; a sign makes it two-sided. The Gaussian
accepts a Laplace number y with probability exp(-(|y| / sigma - 1)^2 / 2).

Guarantees: each coordinate is within TOTAL_VARIATION of its law. Proof: a digit or sign compares 64 random bits with a
threshold less than 2^-64 too low, at most 48 of them, and the digits left out would be 0 but for exp(-45): 3e-18
together. An acceptance compares 53 random bits with a double; its chance is off by less than 6e-16 (2^-53 for the bits,
five roundings of 2^-53 in the double), and more than half of the candidates are accepted: 2 (6e-16 + 3e-18). A sum of t
discrete Gaussians is not quite one, but its distance is below 10 sum_k exp(-2 pi^2 sigma^2 k / (k + 1)) (Kairouz, Liu
and Steinke, ICML 2021). Constant time is not claimed.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sordino.errors import Range, UnsoundGuarantee, check_range
from sordino.types import NoiseSource

TOTAL_VARIATION: Final = 1e-14  # of one coordinate against the ideal law
_MOST: Final = 2.0**40  # steps: 45 times that is an exact double
_TAIL: Final = 45  # scales
Ints = NDArray[np.int64]


def discrete_laplace(source: NoiseSource, count: int, scale: float) -> Ints:
    """Draws two-sided geometric noise on the integers. Its variance is 2 q / (1 - q)^2 for q = exp(-1 / scale), a
    little below 2 scale^2.
    """
    _check(scale)
    digits = max(1, math.ceil(math.log2(_TAIL * scale)))
    drawn = np.zeros(count, np.int64)
    for digit in range(digits):
        ones = _words(source.child("digit", digit), count) < _threshold(digit, scale)
        drawn |= ones.astype(np.int64) << digit
    # -1 - g for a geometric g is the negative half: P[x < 0] = q / (1 + q), the chance of digit 0
    negative = _words(source.child("sign"), count) < _threshold(0, scale)
    return np.where(negative, ~drawn, drawn)


def discrete_gaussian(source: NoiseSource, count: int, sigma: float) -> Ints:
    """Draws discrete Gaussian noise on the integers. Its variance is below sigma^2, by less than a millionth of it
    for sigma >= 1.
    """
    _check(sigma)
    kept: list[Ints] = []
    missing, attempt = count, 0
    while missing > 0:
        tries = missing + missing * 2 // 5 + 64  # three quarters are accepted if sigma is not small
        found = _attempt(source.child("attempt", attempt), tries, sigma)[:missing]
        kept.append(found)
        missing, attempt = missing - len(found), attempt + 1
    return np.concatenate([np.zeros(0, np.int64), *kept])


def _attempt(source: NoiseSource, tries: int, sigma: float) -> Ints:
    drawn = discrete_laplace(source, tries, sigma)
    chance = np.exp(-0.5 * (np.abs(drawn) / sigma - 1) ** 2)
    return drawn[(_words(source.child("accept"), tries) >> np.uint64(11)) * 2.0**-53 < chance]


@lru_cache(maxsize=256)
def _threshold(digit: int, scale: float) -> np.uint64:
    """2^64 q / (1 + q) for q = exp(-2^digit / scale): the chance of a digit 1 as a 64-bit threshold, below 2^63."""
    with localcontext(prec=50):
        q = (-(Decimal(2) ** digit) / Decimal(scale)).exp()
        return np.uint64(int(q / (1 + q) * 2**64))


def _words(source: NoiseSource, count: int) -> NDArray[np.uint64]:
    return source.words(count).cpu().numpy().view(np.uint64)


def _check(scale: float) -> None:
    check_range(
        "the scale of integer noise, in steps,",
        scale,
        Range(above=0, most=_MOST),
        "integer-noise-scale",
        error=UnsoundGuarantee,
        fix="set other bits or another range in the quantise stage",
    )
