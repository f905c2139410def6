"""Calibration: the smallest noise multiplier, or the largest sampling rate, within a given (epsilon, delta), by search.

Classic Gaussian: Dwork & Roth 2014, Theorem A.1. Exact Gaussian: Balle & Wang 2018; over several releases mu^2 adds up
(Dong, Roth & Su 2022). Sampled Gaussian: bisection on an accountant; the returned end is one that the accountant found
to be within budget, so a search that stops early costs extra noise, never privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

from sordino.accounting.accountants import ORDERS, epsilon_by
from sordino.accounting.events import Gaussian, Poisson, Repeat, valid_delta, valid_epsilon
from sordino.accounting.gaussian_dp import delta_of, mu_of
from sordino.errors import COUNT, InvalidBudget, UnsoundGuarantee, check_range

_TIGHT = 1e-5  # relative width at which a bisection stops: less than any accountant's own looseness


def classic_multiplier(epsilon: float, delta: float, *, checked: bool = False) -> float:
    """The classic noise multiplier sqrt(2 ln(1.25/delta)) / epsilon. Its theorem needs epsilon < 1; `checked`
    accepts a larger one if the exact curve does.
    """
    epsilon, delta = valid_epsilon(epsilon), valid_delta(delta)
    multiplier = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    if epsilon < 1 or (checked and delta_of(epsilon, 1 / multiplier) <= delta):
        return multiplier
    raise UnsoundGuarantee(
        f"the classic Gaussian formula cannot be used at epsilon = {epsilon:g}",
        why="at this epsilon and delta it adds too little noise"
        if checked
        else "its theorem is proved for epsilon below 1 only",
        fix='use the exact calibration (calibration = "exact"), which has no such limit and adds less noise',
        code="classic-gaussian-needs-small-epsilon",
    )


@lru_cache(maxsize=64, typed=True)  # asked for once per client, and often the same for all of them
def exact_multiplier(epsilon: float, delta: float, releases: int = 1) -> float:
    """The smallest noise multiplier for `releases` equal Gaussian releases: sqrt(releases) / mu(epsilon, delta)."""
    return math.sqrt(_times(releases)) / mu_of(epsilon, delta)


@lru_cache(maxsize=1024)
def sampled_multiplier(
    epsilon: float,
    delta: float,
    rate: float,
    releases: int,
    accountant: str = "rdp",
    orders: Sequence[float] = ORDERS,
) -> float:
    """The smallest noise multiplier for `releases` Gaussian releases, each on a fresh secret Poisson sample, under
    zero_out.
    """
    epsilon, delta, times = valid_epsilon(epsilon), valid_delta(delta), _times(releases)
    start = _near(epsilon, delta, Poisson(rate, Gaussian(1.0)).rate, times)

    def over(multiplier: float, guess: bool) -> float:
        """Logarithm of spent over allowed epsilon: at most 0 where this multiplier is large enough. `guess`: compute it
        in half the time, without a proof.
        """
        event = Repeat(Poisson(rate, Gaussian(multiplier)), times)
        spent = epsilon_by(accountant, event, delta, "zero_out", orders=tuple(orders), guess=guess)
        return math.log(spent / epsilon) if 0 < spent < math.inf else math.copysign(math.inf, spent - epsilon)

    def found(guess: bool) -> float:
        high = low = start
        excess = deficit = over(start, guess)
        while deficit > 0:
            low, excess, high = high, deficit, 2 * high
            if high > 1e9:
                raise _out_of_reach(accountant, epsilon, delta, "noise multiplier below 1e9")
            deficit = over(high, guess)
        while excess <= 0:
            high, deficit, low = low, excess, low / 2
            if low < 1e-3:
                return high
            excess = over(low, guess)
        return _crossing(lambda multiplier: over(multiplier, guess), low, excess, high, deficit)

    guessed = found(guess=True)
    return guessed if over(guessed, guess=False) <= 0 else found(guess=False)


def _near(epsilon: float, delta: float, rate: float, times: int) -> float:
    """A power of two near the multiplier, by the central limit theorem mu = q sqrt(T (e^(1/z^2) - 1)) (Bu, Dong, Long
    and Su 2020): only where a search begins. Between 2^-3 and 2^29.
    """
    mu = mu_of(epsilon, delta) / (rate * math.sqrt(times)) if rate else math.inf
    return 2.0 ** round(-math.log2(math.log1p(min(max(mu, 2e-9), 7e13) ** 2)) / 2)


def _crossing(over: Callable[[float], float], low: float, excess: float, high: float, deficit: float) -> float:
    """Root of `over`, which falls from above 0 to below it between `low` and `high`: false position (Illinois) on
    logarithms. It returns the end at which `over` was found to be at most 0.
    """
    found, side = deficit, 0  # the far end counts half once the same end has moved twice
    while math.log(high / low) > _TIGHT and not -_TIGHT <= found <= 0:
        share = excess / (excess - deficit) if math.isfinite(excess - deficit) else 0.5
        middle = low * (high / low) ** min(max(share, 0.02), 0.98)
        found = over(middle)
        if found <= 0:
            high, deficit, excess, side = middle, found, excess / 2 if side < 0 else excess, -1
        else:
            low, excess, deficit, side = middle, found, deficit / 2 if side > 0 else deficit, 1
    return high


def _times(releases: int) -> int:
    check_range("releases", releases, COUNT, "releases-not-positive", error=InvalidBudget)
    return int(releases)


def _out_of_reach(accountant: str, epsilon: float, delta: float, what: str) -> UnsoundGuarantee:
    return UnsoundGuarantee(
        f"no {what} gives ({epsilon:g}, {delta:g}) by the {accountant} accountant",
        why="the conversion of this accountant to epsilon alone costs more than the whole budget",
        fix="set a larger epsilon or delta, or plan fewer releases",
        code="budget-out-of-reach",
    )
