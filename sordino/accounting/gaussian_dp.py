"""Gaussian differential privacy: the exact privacy curve of Gaussian noise.

Dong, Roth & Su, "Gaussian differential privacy", JRSS-B 2022; Balle & Wang, "Improving the Gaussian mechanism
for differential privacy", ICML 2018, Theorem 8. A mechanism with mu = sensitivity / standard deviation is
(epsilon, delta)-DP if and only if

    delta >= Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu),

and releases compose exactly: mu^2 adds up. Deviations: none.

With x = epsilon/mu - mu/2 the right side is phi(x) (R(x) - R(x + mu)), where R = (1 - Phi)/phi is the Mills
ratio: no e^epsilon is left to overflow, no tail to underflow. Both inverses bisect and return the end at
which the guarantee holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from sordino.accounting.events import valid_delta, valid_epsilon
from sordino.errors import InvalidBudget, is_number

CELLS = 20_000  # of a sum over privacy losses
SMALL = 1e-5  # a mu below which a difference of two Mills ratios is lost to rounding


def delta_of(epsilon: float, mu: float) -> float:
    """The smallest delta at this epsilon. Epsilon may be 0: delta is then the total variation distance."""
    _refuse_negative("mu", mu)
    _refuse_negative("epsilon", epsilon)
    if mu == 0 or epsilon == math.inf:
        return 0.0
    return 1.0 if mu == math.inf else math.exp(_log_delta(epsilon / mu - mu / 2, mu))


@lru_cache(maxsize=64, typed=True)  # asked for once per client, and often the same for all of them
def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon at this delta; 0 for mu = 0, infinite only without noise or at delta = 0."""
    from scipy.special import ndtri

    _refuse_negative("mu", mu)
    delta = valid_delta(delta, zero=True)
    if mu == 0:
        return 0.0
    if delta == 0 or mu == math.inf:
        return math.inf
    log_delta = math.log(delta)
    if _log_delta(-mu / 2, mu) <= log_delta:
        return 0.0
    # delta <= Phi(-x), so x = -ndtri(delta) is already safe
    top = float(-ndtri(delta)) + 1e-12
    x = bisect(lambda x: _log_delta(x, mu) <= log_delta, good=top, bad=-mu / 2)
    return max(0.0, mu * (mu / 2 + x))


@lru_cache(maxsize=64)
def integrated(mu: float, delta: float) -> tuple[float, float]:
    """Lower and upper limit of `epsilon_of` without its formula: the definition of delta, integrated numerically over
    intervals of the privacy loss.

    The loss is normal with mean mu^2 / 2 and deviation mu; delta is the mean of 1 - e^(epsilon - loss) where that is
    positive. Every loss in an interval is rounded down for the first number, up for the second one, so both are
    certain.
    """
    import numpy as np
    from scipy.special import log_ndtr, ndtri

    x = np.linspace(-mu / 2, -float(ndtri(max(delta * 1e-3, 1e-307))), CELLS)
    mass = -np.diff(np.exp(log_ndtr(-x) - math.log(delta)), append=0.0)  # of a cell, and of all beyond, over delta
    down = mu * (x + mu / 2)
    up = np.append(down[1:], math.inf)

    def keeps(epsilon: float, losses: Any) -> bool:
        return float(mass @ -np.expm1(np.minimum(epsilon - losses, 0.0))) <= 1

    def limit(losses: Any) -> float:
        return 0.0 if keeps(0.0, losses) else bisect(partial(keeps, losses=losses), good=float(down[-1]), bad=0.0)

    return limit(down), limit(up)


def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu whose Gaussian mechanism is (epsilon, delta)-DP."""
    from scipy.special import ndtri

    epsilon, delta = valid_epsilon(epsilon), valid_delta(delta)
    log_delta = math.log(delta)

    def keeps(mu: float) -> bool:
        return _log_delta(epsilon / mu - mu / 2, mu) <= log_delta

    # Phi(mu/2 - epsilon/mu) = delta solves in closed form and is safe, because it leaves out a subtraction
    t = float(ndtri(delta))
    root = math.sqrt(t * t + 2 * epsilon)
    good = (t + root if t > 0 else 2 * epsilon / (root - t)) * (1 - 1e-12)
    bad = 2 * good
    while keeps(bad):
        good, bad = bad, 2 * bad
    return bisect(keeps, good=good, bad=bad)


def _log_delta(x: float, mu: float) -> float:
    from scipy.special import erfcx, log_ndtr

    far = _mills(float(erfcx((x + mu) / math.sqrt(2))))
    if x > 0 or mu < SMALL:  # phi(x) (R(x) - R(x + mu))
        near = _mills(float(erfcx(x / math.sqrt(2))))
        if mu < SMALL:  # -R'(x) = 1 - x R(x) is convex, so the mean of its ends is above the mean between them
            slope = 1 - (x * near + (x + mu) * far) / 2
            return _log_phi(x) + math.log(mu) + (math.log(slope) if slope > 0 else 0.0)
        return _log_phi(x) + math.log(near - far) if near > far else -math.inf
    # R(x) would overflow for very negative x; what delta lacks of 1 keeps its digits where delta is near 1
    lacks = math.exp(float(log_ndtr(x))) + math.exp(_log_phi(x)) * far
    return math.log1p(-lacks) if lacks < 1 else -math.inf


def _mills(scaled_tail: float) -> float:
    return math.sqrt(math.pi / 2) * scaled_tail


def _log_phi(x: float) -> float:
    return -x * x / 2 - math.log(2 * math.pi) / 2


def bisect(keeps: Callable[[float], bool], *, good: float, bad: float, tight: float = 0.0) -> float:
    """Bisection: a point at which `keeps` is true, next to the boundary between `good`, where it is true, and `bad`,
    where it is not.

    Stops at a relative width of `tight`, or when no number lies between; `keeps` is true of what is returned.
    """
    while abs(good - bad) > tight * max(abs(good), abs(bad)):
        middle = (good + bad) / 2
        if middle in (good, bad):
            break
        good, bad = (middle, bad) if keeps(middle) else (good, middle)
    return good


def _refuse_negative(name: str, value: float) -> None:
    if not is_number(value) or math.isnan(value) or value < 0:
        raise InvalidBudget(
            f"{name} is {value!r}",
            why="it must be a number, at least 0",
            fix="give a number that is not negative",
            code=f"{name}-negative",
        )
