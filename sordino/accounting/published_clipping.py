"""Published accounting of CUAG-PFL and its baselines, reproduced digit by digit. None of it is a guarantee; every
result made with it is `nominal`.

CUAG-PFL      Li, Xiao and Chen, Chinese Journal of Computers 2024: Gaussian-DP central limit theorem at the product of
              two sampling rates
PriFedSync    Zheng et al., AISTATS 2021, as that paper prints it: another rate, and no local steps
DP-SCAFFOLD   Noble, Bellet and Dieuleveut, AISTATS 2022, as printed there; UDP: Wei et al., IEEE TMC 2022, theorem 1

Why it proves nothing: the clip is the identity, one update is treated as a mean of clipped vectors, steps without noise
are composed, a round's scale is the constant one that would have cost mu by then, and the server sees whom it sampled.
Rounds are counted from 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
