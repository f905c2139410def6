"""Currencies of privacy loss: for each mechanism the one in which its costs add up exactly.

pure             epsilon of Laplace noise, summed
classic          (epsilon, delta) pairs of the textbook Gaussian, both summed
discrete         rho of the discrete Gaussian, by Renyi divergence
exact            mu^2/2 of the Gaussian (Dong, Roth and Su 2022; adaptive composition and its filter: Smith and Thakurta
                 2022)
counted          releases of a fixed plan of sampled Gaussians, of one phase or of several, accounted for as a whole
renyi            Renyi loss of the Poisson-sampled Gaussian at one order fixed before the run (filter: Feldman and Zrnic
                 2021)
as_published     a nominal share of epsilon; proves nothing
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from sordino.accounting.accountants import classic_multiplier, composed_at, epsilon_by, sampled_multiplier
from sordino.accounting.claims import APPROX, PURE, ZCDP, Currency, rdp
from sordino.accounting.events import DiscreteGaussian, Gaussian, Poisson, Repeat, Together
from sordino.accounting.gaussian_dp import mu_of
from sordino.errors import UnsoundGuarantee

NUDGE = 1 + 1e-12  # noise is rounded up, so that its price never exceeds the integer charge from which it follows
ORDERS = (*range(2, 65), *range(72, 257, 8))
TRIES, CLOSE = 6, 0.99  # tries to fill a budget, and the share that suffices: each try accounts for a whole plan


class Pricing(Protocol):
    """Interface between a budget and noise: the total that (epsilon, delta) allows in a measure of privacy loss, the
    noise multiplier for a cost, and the cost of a multiplier."""

    @property
    def currency(self) -> Currency: ...
    def total(self, epsilon: float, delta: float) -> tuple[float, ...]: ...
    def multiplier(self, cost: Sequence[float]) -> float: ...
    def cost(self, multiplier: float) -> tuple[float, ...]: ...


class NoisePricing(Pricing, Protocol):
    """Pricing of a noise law, which `sampled` turns into the pricing of the same law on a Poisson sample."""

    def sampled(self, rate: float, epsilon: float, delta: float, releases: int, fixed: bool) -> Pricing: ...

    # `fixed`: equal releases, planned before the run


@dataclass(frozen=True)
class Pure:
    """Pricing by pure epsilon, which adds up."""

    currency: Currency = PURE

    def total(self, epsilon: float, delta: float) -> tuple[float, ...]:
        return (epsilon,)

    def multiplier(self, cost: Sequence[float]) -> float:
        return NUDGE / cost[0]

    def cost(self, multiplier: float) -> tuple[float, ...]:
        return (1 / multiplier,)

    def sampled(self, rate: float, epsilon: float, delta: float, releases: int, fixed: bool) -> Pricing:
        return self  # charged as if it were not sampled


@dataclass(frozen=True)
class Classic:
    """Pricing of Gaussian noise by the classic formula, each release at its own epsilon and delta; these add up."""

    checked: bool = False
    currency: Currency = APPROX

    def total(self, epsilon: float, delta: float) -> tuple[float, ...]:
        return (epsilon, delta)

    def multiplier(self, cost: Sequence[float]) -> float:
        return classic_multiplier(cost[0], cost[1], checked=self.checked) * NUDGE

    def cost(self, multiplier: float) -> tuple[float, ...]:
        raise UnsoundGuarantee(
            "the classic Gaussian noise has no price without a budget",
            why="many pairs of epsilon and delta lead to the same multiplier",
            fix='set privacy.epsilon and privacy.delta, or use calibration = "exact"',
            code="classic-needs-budget",
        )

    def sampled(self, rate: float, epsilon: float, delta: float, releases: int, fixed: bool) -> Pricing:
        return best_order(rate, epsilon, delta, releases)


@dataclass(frozen=True)
class Exact:
    """Pricing of Gaussian noise by zCDP, with budgets converted by the exact privacy curve."""

    currency: Currency = ZCDP

    def total(self, epsilon: float, delta: float) -> tuple[float, ...]:
        return (mu_of(epsilon, delta) ** 2 / 2,)

    def multiplier(self, cost: Sequence[float]) -> float:
        return NUDGE / math.sqrt(2 * cost[0])

    def cost(self, multiplier: float) -> tuple[float, ...]:
        return (0.5 / multiplier**2,)

    def sampled(self, rate: float, epsilon: float, delta: float, releases: int, fixed: bool) -> Pricing:
        return (counted if fixed else best_order)(rate, epsilon, delta, releases)


@dataclass(frozen=True)
class Discrete(Exact):
    """Pricing of discrete Gaussian noise. A release costs what it costs under continuous noise, but (epsilon, delta)
    allows less in total, because only the Renyi divergence is known, not the curve of epsilon and delta.
    """

    def total(self, epsilon: float, delta: float) -> tuple[float, ...]:
        return (_rho(epsilon, delta),)

    def sampled(self, rate: float, epsilon: float, delta: float, releases: int, fixed: bool) -> Pricing:
        return best_order(rate, epsilon, delta, releases)  # the loss distribution of whole steps is not known


@lru_cache(maxsize=256)
def _rho(epsilon: float, delta: float) -> float:
    def over(rho: float) -> bool:
        return epsilon_by("rdp", DiscreteGaussian(1 / math.sqrt(2 * rho)), delta, "replace") > epsilon

    low, high = 1e-12, mu_of(epsilon, delta) ** 2 / 2
    if over(low):
        raise UnsoundGuarantee(
            f"the Renyi accountant cannot reach epsilon {epsilon} at delta {delta}",
            why="its conversion to epsilon alone costs more",
            fix="set a larger epsilon or delta",
            code="budget-below-conversion",
        )
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if over(middle) else (middle, high)
    return low


@dataclass(frozen=True)
class Renyi:
    """Pricing of a Poisson-sampled Gaussian at `rate`, by its Renyi divergence of one fixed `order`."""

    rate: float
    order: int

    @property
    def currency(self) -> Currency:
        return rdp((self.order,))

    def total(self, epsilon: float, delta: float) -> tuple[float, ...]:
        return (budget_at(self.order, epsilon, delta),)

    def multiplier(self, cost: Sequence[float]) -> float:
        low, high = 1e-2, 1e-2
        while sampled_gaussian(self.rate, high, self.order) > cost[0]:
            high *= 2
        for _ in range(80):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if sampled_gaussian(self.rate, middle, self.order) > cost[0] else (low, middle)
        return high * NUDGE

    def cost(self, multiplier: float) -> tuple[float, ...]:
        return (sampled_gaussian(self.rate, multiplier, self.order),)


@dataclass(frozen=True)
class Counted:
    """Pricing of one phase of a plan of sampled releases that is fixed in advance. The whole plan is accounted for by
    its privacy loss distribution, and the ledger counts releases, for each phase separately: one phase cannot spend
    what another leaves over.

    Valid because nothing in the plan adapts to outputs; it needs several percent less noise than the Renyi filter.
    """

    name: str  # of the plan: two plans are two currencies
    planned: float  # the multiplier
    releases: tuple[int, ...]  # by phase
    place: int = 0  # of this phase among them

    @property
    def currency(self) -> Currency:
        several = (f"release, part {i + 1}" for i in range(len(self.releases)))
        return Currency(f"plan {self.name}", ("release",) if len(self.releases) == 1 else tuple(several), "all")

    def total(self, epsilon: float, delta: float) -> tuple[float, ...]:
        return tuple(map(float, self.releases))

    def multiplier(self, cost: Sequence[float]) -> float:
        assert cost[self.place] > 1 - 1e-9, "a fixed plan has no cheaper releases"
        return self.planned

    def cost(self, multiplier: float) -> tuple[float, ...]:
        return tuple(float(i == self.place) for i in range(len(self.releases)))


@dataclass(frozen=True)
class NominalPrice:
    """Pricing of a published noise multiplier, whose epsilon is only a label and proves nothing."""

    published: float
    currency: Currency = APPROX

    def total(self, epsilon: float, delta: float) -> tuple[float, ...]:
        return (epsilon, delta)

    def multiplier(self, cost: Sequence[float]) -> float:
        return self.published

    def cost(self, multiplier: float) -> tuple[float, ...]:
        return (1.0, 1e-5)


def budget_at(order: int, epsilon: float, delta: float) -> float:
    """The Renyi divergence at one order that converts to (epsilon, delta) (Canonne, Kamath and Steinke 2020); 0 where
    the conversion at this order already costs more.
    """
    return max(0.0, epsilon - math.log1p(-1 / order) + math.log(delta * order) / (order - 1))


def sampled_gaussian(rate: float, multiplier: float, order: int) -> float:
    """The Renyi divergence of a Poisson-sampled Gaussian, ln(1 + sum_j binom(a,j) (1-q)^(a-j) q^j (e^(j(j-1)/(2z^2)) -
    1)) / (a-1), in log space (Mironov, Talwar and Zhang 2019): as no term is negative, rounding hides none.
    """
    if rate == 1:
        return order / (2 * multiplier**2)
    terms = []
    for pairs, chance in _binomial(rate, order):
        exponent = pairs / multiplier**2
        terms.append(chance + exponent + math.log(-math.expm1(-exponent)))
    top = max(terms)
    total = top + math.log(math.fsum(math.exp(t - top) for t in terms))
    return (max(total, 0.0) + math.log1p(math.exp(-abs(total)))) / (order - 1)


@lru_cache(maxsize=4096)
def _binomial(rate: float, order: int) -> list[tuple[float, float]]:
    """Terms j = 2, ..., order of the sum in `sampled_gaussian`: j (j - 1) / 2, which the caller divides by the squared
    noise multiplier, and the log of the chance that j of `order` are drawn.
    """
    drawn, left = math.log(rate), math.log1p(-rate)
    return [
        (j * (j - 1) / 2, math.log(math.comb(order, j)) + j * drawn + (order - j) * left) for j in range(2, order + 1)
    ]


def accountant(releases: int, delta: float) -> str:
    """Name of the accountant that prices a fixed number of sampled releases: pld, or rdp where they are many."""
    return "pld" if composed_at(delta, releases) else "rdp"


def counted(rate: float, epsilon: float, delta: float, releases: int) -> Counted:
    multiplier = sampled_multiplier(epsilon, delta, rate, releases, accountant(releases, delta))
    return Counted(f"q={rate:g} z={multiplier:.9g}", multiplier, (releases,))


@lru_cache(maxsize=64)
def counted_phases(phases: tuple[tuple[float, int, float], ...], epsilon: float, delta: float) -> tuple[Counted, ...]:
    """Pricing of each phase of a plan, where phases are given as (sampling rate, releases, part of the budget). The
    parts divide a Renyi divergence; the total grows until the whole plan fills the budget.
    """

    def noise(granted: float) -> list[float]:
        rate, longest, _ = max((p for p in phases if p[0] < 1), key=lambda p: p[1])
        order = best_order(rate, granted, delta, longest).order
        whole = budget_at(order, granted, delta)
        return [Renyi(rate, order).multiplier((part * whole / times,)) for rate, times, part in phases]

    def spent(granted: float) -> float:
        releases = (
            Repeat(Poisson(rate, Gaussian(z)), times)
            for (rate, times, _), z in zip(phases, noise(granted), strict=True)
        )
        return epsilon_by(
            accountant(sum(times for _, times, _ in phases), delta), Together(tuple(releases)), delta, "zero_out"
        )

    good, bad, granted = 0.0, math.inf, epsilon  # noise by Renyi divergence is larger than needed: more can be granted
    for _ in range(TRIES):
        found = spent(granted)
        good, bad = (granted, bad) if found <= epsilon else (good, granted)
        if CLOSE * epsilon <= found <= epsilon:
            break
        guess = granted * epsilon * (1 + CLOSE) / 2 / found  # epsilon is about proportional to it
        granted = guess if good < guess < bad else (good + bad) / 2
    if not good:
        raise UnsoundGuarantee(
            f"no noise was found that keeps epsilon {epsilon:g} at delta {delta:g} over {len(phases)} phases",
            why="the conversion of its accountant to epsilon costs more than the part of the budget that each "
            "phase has",
            fix="set a larger epsilon or delta, or plan fewer rounds",
            code="budget-out-of-reach",
        )
    noises, times = noise(good), tuple(times for _, times, _ in phases)
    name = " ".join(f"q={rate:g} z={z:.9g}" for (rate, _, _), z in zip(phases, noises, strict=True))
    return tuple(Counted(name, z, times, place) for place, z in enumerate(noises))


@lru_cache(maxsize=256)
def best_order(rate: float, epsilon: float, delta: float, releases: int) -> Renyi:
    """Renyi pricing at the order at which `releases` equal releases within (epsilon, delta) need the least noise."""
    candidates = [(Renyi(rate, order), budget_at(order, epsilon, delta)) for order in ORDERS]
    usable = [(pricing, budget / releases) for pricing, budget in candidates if budget > 0]
    if not usable:
        raise UnsoundGuarantee(
            f"the Renyi accountant cannot reach epsilon {epsilon} at delta {delta}",
            why="its conversion to epsilon alone costs more, at every order",
            fix="set a larger epsilon or delta, or use noise without sampling",
            code="budget-below-conversion",
        )
    return min(usable, key=lambda pair: pair[0].multiplier((pair[1],)))[0]
