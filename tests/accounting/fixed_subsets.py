"""Guarantees of a published mechanism that draws one subset of a client's records and uses it in all T participations
(`published.nominal_multiplier` sets its noise). These hold (neighbours: replace; adversary: server):

    every participation, exact Gaussian DP      mu = 2 sqrt(sum_j decay^(2j)) / z, j = 0..T-1
    a record known to be in the subset     epsilon(mu, delta)
    the subset secret, amplified once      ln(1 + q (e^epsilon(mu, delta/q) - 1))   (Balle, Barthe & Gaboardi 2018)
    at least, by two explicit neighbours   the curve of (1-q) N(0,1) + q N(+-mu/2, 1)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sordino.accounting.events import amplified, valid_delta
from sordino.accounting.gaussian_dp import bisect, epsilon_of


class FixedSubset(NamedTuple):
    """Guarantees of a fixed subset at the delta asked for."""

    at_least: float  # a distinguisher exists: no proof can go below
    at_most: float  # proved while the subset stays secret
    in_subset: float  # proved for a record the adversary knows to be in it


def fixed_subset(multiplier: float, delta: float, rate: float, participations: int, decay: float = 1.0) -> FixedSubset:
    """The guarantee that holds for `multiplier` when the step shrinks by `decay` and the noise does not."""
    delta = valid_delta(delta)
    mu = 2 * math.sqrt(math.fsum(decay ** (2 * j) for j in range(participations))) / multiplier
    known = epsilon_of(mu, delta)
    inside = delta / rate  # the amplified delta is q times this; at 1 or more the subset alone hides the record
    secret = amplified(epsilon_of(mu, inside), rate) if inside < 1 else 0.0
    lowest = bisect(lambda e: subset_delta(e, mu, rate) <= delta, good=known, bad=0.0, tight=1e-12) if known else 0.0
    return FixedSubset(lowest, secret, known)


def subset_delta(epsilon: float, mu: float, rate: float) -> float:
    """The delta that two explicit neighbours attain: all other gradients 0, this one +C or -C, in the subset or not.

    The log ratio of (1-q) N(0,1) + q N(a,1) to (1-q) N(0,1) + q N(-a,1), a = mu/2, rises with the outcome, so the best
    test is one threshold.
    """
    from scipy.special import log_ndtr

    a = mu / 2
    keep, take = math.log1p(-rate), math.log(rate)

    def log_ratio(y: float) -> float:
        up, down = take + a * y - a * a / 2, take - a * y - a * a / 2
        return float(np.logaddexp(keep, up) - np.logaddexp(keep, down))

    y = bisect(lambda y: log_ratio(y) >= epsilon, good=(epsilon - take + a * a / 2) / a + 1, bad=0.0, tight=1e-14)
    log_p = np.logaddexp(keep + log_ndtr(-y), take + log_ndtr(a - y))
    log_q = np.logaddexp(keep + log_ndtr(-y), take + log_ndtr(-a - y))
    return float(np.exp(log_p) - np.exp(epsilon + log_q))
