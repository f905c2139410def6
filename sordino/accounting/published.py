"""Published accounting, reproduced digit by digit and recomputed. None of it is a guarantee: every result made with it
is `nominal`, and no function here deviates from its publication.

CUAG-PFL      Li, Xiao and Chen, Chinese Journal of Computers 2024: Gaussian-DP central limit theorem at the product of
              two sampling rates
PriFedSync    Zheng et al., AISTATS 2021, as that paper prints it: another rate, and no local steps
DP-SCAFFOLD   Noble, Bellet and Dieuleveut, AISTATS 2022, as printed there; UDP: Wei et al., IEEE TMC 2022, theorem 1

Why these prove nothing: the clip changes nothing, one update is treated as a mean of clipped vectors, steps without
noise are composed, each round's noise has the scale that would cost mu if all rounds so far had it, and the server sees
whom it sampled. Rounds are counted from 1.

A fixed subset: the yardstick experiment (client-side noise, one step per upload) draws a fraction q of a client's
records once, uses these in all T rounds, and sets its noise by the sampled-Gaussian accountant of Abadi et al. 2016
with ceil(T/q) steps, sensitivity lr * clip / |subset| without the factor 2 of replacing a record, and the initial lr
throughout. No step is freshly sampled, so nothing is amplified per step. The guarantees that do hold are recomputed in
`tests/accounting/fixed_subsets.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sordino.accounting.events import valid_delta, valid_epsilon
from sordino.accounting.gaussian_dp import bisect
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
    """The sigma of one round: the constant scale that would have spent mu after that many rounds."""
    check_range("mu", mu, POSITIVE, "mu-not-positive", error=InvalidBudget)
    return 1 / math.sqrt(math.log1p(mu**2 / (setting.product**2 * round_number * setting.steps)))


def relative_noise(scale: float, setting: PublishedSetting = PublishedSetting()) -> float:
    """Noise deviation per coordinate, divided by the norm of the layer: 2 sigma / B."""
    return 2 * scale / setting.batch


def limit_mu(rate: float, steps: float, scale: float) -> float:
    """The mu of composed sampled steps by the central limit theorem of Gaussian DP (Bu et al. 2020): rate sqrt(steps
    (e^(1/sigma^2) - 1)).
    """
    exponent = scale**-2
    return rate * math.sqrt(steps * math.expm1(exponent)) if exponent < 700 else math.inf


def composed(mu: float, rounds: int) -> float:
    """The mu of all rounds of the published schedule by its own formula: mu sqrt(1 + 1/2 + ... + 1/T)."""
    return mu * math.sqrt(math.fsum(1 / t for t in range(1, rounds + 1)))


def prifedsync_mu(round_number: int, scale: float = 0.45, setting: PublishedSetting = PublishedSetting()) -> float:
    return limit_mu(setting.product / 2, round_number, scale)


def scaffold_epsilon(round_number: int, delta: float, scale: float = 1.0, rate: float = 0.1) -> float:
    """The epsilon that is published for DP-SCAFFOLD after T = `round_number` rounds, of which a client takes part in
    rate * T: the leading term of their composition, without amplification. It proves nothing.
    """
    return math.sqrt(2 * rate * round_number * math.log(1 / delta)) / scale


def udp_multiplier(round_number: int, epsilon: float, delta: float, rate: float = 0.1) -> float:
    """The noise multiplier of one round as UDP publishes it: noise for all rounds so far, so that it grows with the
    rounds.
    """
    return math.sqrt(2 * rate * round_number * math.log(1 / delta)) / epsilon


# the order grid of the accountant behind the publication
NOMINAL_ORDERS: tuple[float, ...] = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256, 512)


@lru_cache(maxsize=256)
def nominal_multiplier(epsilon: float, delta: float, rate: float, releases: int) -> float:
    """The noise multiplier that the publication uses for a nominal epsilon: ceil(releases / rate) Poisson steps by
    Renyi DP.
    """
    epsilon, delta = valid_epsilon(epsilon), valid_delta(delta)
    steps = math.ceil(releases / rate)
    high = 1.0
    while _nominal_epsilon(high, delta, rate, steps) > epsilon:
        high *= 2
    return bisect(lambda z: _nominal_epsilon(z, delta, rate, steps) <= epsilon, good=high, bad=1e-2, tight=1e-9)


def _nominal_epsilon(multiplier: float, delta: float, rate: float, steps: int) -> float:
    return min(
        steps * _sampled_renyi(order, rate, multiplier) + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        for order in NOMINAL_ORDERS
    )


def _sampled_renyi(order: float, rate: float, z: float) -> float:
    """Renyi divergence of any real order a of a Poisson-sampled Gaussian, as an integral: ln E[((1-q) + q
    e^((2Y-1)/(2z^2)))^a] / (a-1), Y ~ N(0, z^2). The trapezoidal rule converges geometrically here; integer and
    fractional orders come out alike.
    """
    y = np.arange(-12 * z, order + 12 * z, z / 16)
    log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * y - 1) / (2 * z * z))
    terms = order * log_ratio - y * y / (2 * z * z)
    top = float(terms.max())
    integral = top + math.log(float(np.exp(terms - top).sum()) / 16 / math.sqrt(2 * math.pi))
    return integral / (order - 1)
