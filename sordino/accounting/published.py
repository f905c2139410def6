"""Published accounting, reproduced digit by digit and recomputed. None of it is a guarantee: every result made with it
is `nominal`, and no `nominal_*` deviates from its publication.

CUAG-PFL      Li, Xiao and Chen, Chinese Journal of Computers 2024: Gaussian-DP central limit theorem at the product of
              two sampling rates
PriFedSync    Zheng et al., AISTATS 2021, as that paper prints it: another rate, and no local steps
DP-SCAFFOLD   Noble, Bellet and Dieuleveut, AISTATS 2022, as printed there; UDP: Wei et al., IEEE TMC 2022, theorem 1

Why these prove nothing: the clip is the identity, one update is treated as a mean of clipped vectors, steps without
noise are composed, a round's scale is the constant one that would have cost mu by then, and the server sees whom it
sampled. Rounds are counted from 1.

A fixed subset: the yardstick experiment (client-side noise, one step per upload) draws a fraction q of a client's
records once, uses these in all T exposures, and sets its noise by the sampled-Gaussian accountant of Abadi et al. 2016
with ceil(T/q) steps, sensitivity lr * clip / |subset| without the factor 2 of replacing a record, and the initial lr
throughout. No step is freshly sampled, so nothing is amplified per step. What is true (neighbours: replace;
adversary: server):

    every exposure, exact Gaussian DP      mu = 2 sqrt(sum_j decay^(2j)) / z, j = 0..T-1
    a record known to be in the subset     epsilon(mu, delta)
    the subset secret, amplified once      ln(1 + q (e^epsilon(mu, delta/q) - 1))   (Balle, Barthe & Gaboardi 2018)
    at least, by two explicit neighbours   the curve of (1-q) N(0,1) + q N(+-mu/2, 1)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sordino.accounting.events import amplified, valid_delta, valid_epsilon
from sordino.accounting.gaussian_dp import bisect, epsilon_of
from sordino.errors import POSITIVE, InvalidBudget, check_range


@dataclass(frozen=True)
class PublishedSetting:
    """The numbers of the CUAG-PFL experiments: share of clients per round, batch, records per client, local steps."""

    rate: float = 0.1
    batch: int = 50
    records: int = 500
    steps: int = 25

    @property
    def product(self) -> float:
        """The published sampling rate 2 lambda B / |D|: client sampling times record sampling, as if both were
        redrawn at every step.
        """
        return 2 * self.rate * self.batch / self.records


def adaptive_scale(mu: float, round_number: int, setting: PublishedSetting = PublishedSetting()) -> float:
    """The sigma of a round: the constant scale that would have cost mu after that many rounds."""
    check_range("mu", mu, POSITIVE, "mu-not-positive", error=InvalidBudget)
    return 1 / math.sqrt(math.log1p(mu**2 / (setting.product**2 * round_number * setting.steps)))


def relative_noise(scale: float, setting: PublishedSetting = PublishedSetting()) -> float:
    """The deviation per coordinate over the norm of a layer: 2 sigma / B."""
    return 2 * scale / setting.batch


def limit_mu(rate: float, steps: float, scale: float) -> float:
    """The central limit theorem of Gaussian DP (Bu et al. 2020): rate sqrt(steps (e^(1/sigma^2) - 1))."""
    exponent = scale**-2
    return rate * math.sqrt(steps * math.expm1(exponent)) if exponent < 700 else math.inf


def composed(mu: float, rounds: int) -> float:
    """The cost of the published schedule by its own formula, all rounds added up: mu sqrt(1 + 1/2 + ... + 1/T)."""
    return mu * math.sqrt(math.fsum(1 / t for t in range(1, rounds + 1)))


def prifedsync_mu(round_number: int, scale: float = 0.45, setting: PublishedSetting = PublishedSetting()) -> float:
    return limit_mu(setting.product / 2, round_number, scale)


def scaffold_epsilon(round_number: int, delta: float, scale: float = 1.0, rate: float = 0.1) -> float:
    """The leading term of unamplified composition over rate * T releases."""
    return math.sqrt(2 * rate * round_number * math.log(1 / delta)) / scale


def udp_multiplier(round_number: int, epsilon: float, delta: float, rate: float = 0.1) -> float:
    """The deviation of the noise over the sensitivity in this round."""
    return math.sqrt(2 * rate * round_number * math.log(1 / delta)) / epsilon


# the order grid of the accountant behind the publication
NOMINAL_ORDERS: tuple[float, ...] = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256, 512)


class FixedSubset(NamedTuple):
    """Guarantees of a fixed subset at the delta asked for."""

    at_least: float  # a distinguisher exists: no proof can go below
    at_most: float  # proved while the subset stays secret
    in_subset: float  # proved for a record the adversary knows to be in it


def nominal_multiplier(epsilon: float, delta: float, rate: float, exposures: int) -> float:
    """The noise multiplier the publication uses for a nominal epsilon: ceil(T/q) Poisson steps by Renyi DP."""
    epsilon, delta = valid_epsilon(epsilon), valid_delta(delta)
    steps = math.ceil(exposures / rate)
    high = 1.0
    while _nominal_epsilon(high, delta, rate, steps) > epsilon:
        high *= 2
    return bisect(lambda z: _nominal_epsilon(z, delta, rate, steps) <= epsilon, good=high, bad=1e-2, tight=1e-9)


def fixed_subset(multiplier: float, delta: float, rate: float, exposures: int, decay: float = 1.0) -> FixedSubset:
    """The guarantee that holds for `multiplier` when the step shrinks by `decay` and the noise does not."""
    delta = valid_delta(delta)
    mu = 2 * math.sqrt(math.fsum(decay ** (2 * j) for j in range(exposures))) / multiplier
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


def _nominal_epsilon(multiplier: float, delta: float, rate: float, steps: int) -> float:
    return min(
        steps * _sampled_renyi(order, rate, multiplier) + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        for order in NOMINAL_ORDERS
    )


def _sampled_renyi(order: float, rate: float, z: float) -> float:
    """ln E[((1-q) + q e^((2Y-1)/(2z^2)))^a] / (a-1), Y ~ N(0, z^2), for any real order.

    The trapezoidal rule converges geometrically on such an integrand; integer and fractional orders come out alike.
    """
    y = np.arange(-12 * z, order + 12 * z, z / 16)
    log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * y - 1) / (2 * z * z))
    terms = order * log_ratio - y * y / (2 * z * z)
    top = float(terms.max())
    integral = top + math.log(float(np.exp(terms - top).sum()) / 16 / math.sqrt(2 * math.pi))
    return integral / (order - 1)
