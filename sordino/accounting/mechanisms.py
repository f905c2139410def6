"""Mechanisms as events: noise and randomised responses, each with all of its own accounting.

A new mechanism is a class here, with the meaning of its fields, and a row in `events.KINDS`. Accountants compose
events, and ask each one for the following (None: nothing is proved). `rate`: of the Poisson sample that it reads.

settled     the same event with its noise in the range that accountants can compute; None where it protects nobody
mu          of Gaussian DP, of several draws: exact for unsampled Gaussians (Dong, Roth and Su 2022)
pure        epsilon of one draw; a Poisson sample leaves ln(1 + q (e^eps - 1)) (Balle, Barthe and Gaboardi 2018)
renyi       divergences of one draw at these orders, by dp-accounting (imported there: it takes a second)
loss        distribution of the privacy loss of one draw, pessimistic, on a grid, where a unit is removed; with `added`
            where one is added, which differs under a Poisson sample alone
loss_size   how wide that is, and how large typically
stretched   the event that covers several changes at once
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeAlias

from sordino.accounting.facts import at_least_text, epsilon_text
from sordino.errors import (
    BELOW_ONE,
    INSIDE,
    NOT_NEGATIVE,
    POSITIVE,
    SEVERAL,
    InvalidBudget,
    UnsoundGuarantee,
    check_range,
    is_number,
)

# smaller noise counts as none, larger noise as the largest: no overflow in an accountant, no underestimate
_LEAST_NOISE, _MOST_NOISE = 1e-6, 1e9

Orders: TypeAlias = tuple[float, ...]


@dataclass(frozen=True)
class Event:
    """Base class of events: what was done with the data. A subclass overrides what is proved of it; None: nothing."""

    meaning: ClassVar[str]  # of its fields, for readers of receipts
    sampled: ClassVar[bool] = False  # its cost on a Poisson sample is proved
    pair: ClassVar[str] = "sums"  # its loss compares sums or inputs; these do not compose

    @property
    def fresh(self) -> bool:
        """True where each release draws new noise."""
        return True

    @property
    def words(self) -> str:
        """The noise in words, relative to the change that one unit can make."""
        return "nothing"

    def unfold(self, times: int, seen: set[Event], whole: bool) -> Iterator[tuple[Event, int]]:
        """Elementary events inside this one, with their counts. `seen` collects events that are drawn once in a run,
        which count only the first time; `whole`: they stay one event."""
        yield self, times

    def settled(self, neighbours: str) -> Iterator[tuple[Event | None, int]]:
        yield None, 1

    def stretched(self, number: float) -> Event | None:
        return None

    def mu(self, times: int) -> float | None:
        return None

    def pure(self, rate: float = 1.0) -> float | None:
        return None

    def renyi(self, orders: Orders, rate: float = 1.0) -> Any:
        return None

    def loss(self, pld: Any, grid: float, rate: float = 1.0, added: bool = False) -> Any:
        return None

    def loss_size(self, rate: float = 1.0) -> tuple[float, float] | None:
        """The span of the privacy loss and its typical size; a Poisson sample lowers the typical size, not the span."""
        return None


@dataclass(frozen=True)
class _Normal(Event):
    noise_multiplier: float

    sampled = True

    def __post_init__(self) -> None:
        settle(self, "noise_multiplier", noise(self.noise_multiplier))

    def settled(self, neighbours: str) -> Iterator[tuple[Event | None, int]]:
        known = self.noise_multiplier >= _LEAST_NOISE
        yield type(self)(min(self.noise_multiplier, _MOST_NOISE)) if known else None, 1

    def stretched(self, number: float) -> Event:
        return type(self)(self.noise_multiplier / number)

    def renyi(self, orders: Orders, rate: float = 1.0) -> Any:
        from dp_accounting import dp_event

        return _divergences(dp_event.GaussianDpEvent(self.noise_multiplier), orders, rate)


@dataclass(frozen=True)
class Gaussian(_Normal):
    """Normal noise; `noise_multiplier` = standard deviation / L2 sensitivity. Zero costs infinity."""

    meaning = "Normal noise. `noise_multiplier`: its deviation over how far one unit can move the sum."

    @property
    def words(self) -> str:
        return (
            f"Gaussian noise with a deviation of {at_least_text(self.noise_multiplier)} times what one unit can change"
        )

    def mu(self, times: int) -> float:
        return math.sqrt(times) / self.noise_multiplier

    def loss(self, pld: Any, grid: float, rate: float = 1.0, added: bool = False) -> Any:
        from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

        law = partial(GaussianPrivacyLoss, self.noise_multiplier)
        return _losses(pld, law, lambda loss: -0.5 - loss * self.noise_multiplier**2, grid, rate, added)

    def loss_size(self, rate: float = 1.0) -> tuple[float, float]:
        mu = 1 / self.noise_multiplier
        return mu * mu / 2 + 10 * mu, _thinned(mu, rate)


@dataclass(frozen=True)
class DiscreteGaussian(_Normal):
    """Noise in whole steps, whose Renyi divergences are those of the continuous law (Canonne, Kamath and Steinke,
    NeurIPS 2020), under a Poisson sample at whole orders, where moments agree. Its (epsilon, delta) curve may be above.
    """

    meaning = "The same law on whole numbers."

    @property
    def words(self) -> str:
        least = at_least_text(self.noise_multiplier)
        return f"discrete Gaussian noise with a deviation of {least} times what one unit can change"

    def renyi(self, orders: Orders, rate: float = 1.0) -> Any:
        if rate == 1:
            return super().renyi(orders)
        import numpy as np

        whole = tuple(order for order in orders if order == int(order))
        known = dict(zip(whole, super().renyi(whole, rate), strict=True))
        return np.array([known.get(order, math.inf) for order in orders])


@dataclass(frozen=True)
class Laplace(Event):
    """Laplace noise; `scale` = b / L1 sensitivity, so one draw is (1/scale)-DP. Zero costs infinity."""

    meaning = "Laplace noise. `scale`: its scale over how far one unit can move the sum."

    scale: float

    sampled = True

    def __post_init__(self) -> None:
        settle(self, "scale", noise(self.scale))

    @property
    def words(self) -> str:
        return f"Laplace noise with a scale of {at_least_text(self.scale)} times what one unit can change"

    def settled(self, neighbours: str) -> Iterator[tuple[Event | None, int]]:
        yield Laplace(min(self.scale, _MOST_NOISE)) if self.scale >= _LEAST_NOISE else None, 1

    def stretched(self, number: float) -> Event:
        return Laplace(self.scale / number)

    def pure(self, rate: float = 1.0) -> float:
        return amplified(1 / self.scale, rate)

    def renyi(self, orders: Orders, rate: float = 1.0) -> Any:
        from dp_accounting import dp_event

        return _divergences(dp_event.LaplaceDpEvent(self.scale), orders) if rate == 1 else None

    def loss(self, pld: Any, grid: float, rate: float = 1.0, added: bool = False) -> Any:
        import numpy as np
        from dp_accounting.pld.privacy_loss_mechanism import LaplacePrivacyLoss

        def outcome(loss: Any) -> Any:
            inside = np.where(loss <= 1 / self.scale, 0.5 * (-1.0 - loss * self.scale), -math.inf)
            return np.where(loss <= -1 / self.scale, math.inf, inside)

        return _losses(pld, partial(LaplacePrivacyLoss, self.scale), outcome, grid, rate, added)

    def loss_size(self, rate: float = 1.0) -> tuple[float, float]:
        return self.pure(), _thinned(self.pure(), rate)


@dataclass(frozen=True)
class Response(Event):
    """Randomised response among `levels` values: the value is kept or replaced at random so that the probabilities of
    any answer under two inputs differ by a factor of at most e^epsilon (Kairouz, Bonawitz and Ramage 2016).
    """

    meaning = "One of `levels` answers, kept or replaced at random, which costs `epsilon`."

    epsilon: float
    levels: int

    pair = "inputs"

    def __post_init__(self) -> None:
        settle(self, "epsilon", valid_epsilon(self.epsilon))
        check_range("the levels of a response", self.levels, SEVERAL, "too-few-levels", error=InvalidBudget)
        settle(self, "levels", int(self.levels))

    @property
    def words(self) -> str:
        return f"randomised response with {self.levels} answers (epsilon {epsilon_text(self.epsilon, 4)} each)"

    @property
    def replaced(self) -> float:
        """The probability that the answer is drawn uniformly from all levels: levels / (levels - 1 + e^epsilon)."""
        return self.levels / (self.levels - 1 + math.exp(min(self.epsilon, 700.0)))

    def settled(self, neighbours: str) -> Iterator[tuple[Event | None, int]]:
        yield self, 1

    def pure(self, rate: float = 1.0) -> float:
        return amplified(self.epsilon, rate)

    def renyi(self, orders: Orders, rate: float = 1.0) -> Any:
        """Rényi divergences between two inputs a and b: the ratio of their probabilities is e^epsilon at one output,
        e^-epsilon at another, and 1 at all others. Only what the moment is above 1 is computed: beside the 1 a tiny
        epsilon would round away, and be called none.
        """
        if rate != 1:
            return None
        import numpy as np

        alpha, e = np.array(orders), self.epsilon
        other = -e - math.log1p((self.levels - 1) * math.exp(-e))  # log probability of an output that is not the input
        above = other + alpha * e + np.log(-np.expm1(-alpha * e)) + np.log(-np.expm1((1 - alpha) * e))
        return np.logaddexp(0, above) / (alpha - 1)

    def loss(self, pld: Any, grid: float, rate: float = 1.0, added: bool = False) -> Any:
        return pld.from_randomized_response(self.replaced, self.levels, value_discretization_interval=grid)

    def loss_size(self, rate: float = 1.0) -> tuple[float, float]:
        return self.pure(), self.pure()


def amplified(epsilon: float, rate: float) -> float:
    """Epsilon of a pure mechanism on a secret Poisson sample of rate q: ln(1 + q (e^eps - 1)), without an overflow of
    e^eps.
    """
    if epsilon < 30:
        return math.log1p(rate * math.expm1(epsilon))
    return epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon))


def _losses(
    pld: Any, law: Callable[..., Any], outcome: Callable[[Any], Any], grid: float, rate: float, added: bool
) -> Any:
    """Privacy loss distribution of a noise law, bit for bit that of dp-accounting, but vectorised and so faster.
    `outcome`: the noise value at which removing a unit, without sampling, has a given privacy loss.
    """
    import numpy as np
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType

    added = added and rate < 1  # without a sample both directions are one pair
    sign, least = -1 if added else 1, math.log1p(-rate) if rate < 1 else -math.inf
    made = law(sampling_prob=rate, adjacency_type=AdjacencyType.ADD if added else AdjacencyType.REMOVE)
    bounds = made.connect_dots_bounds()
    low, high = math.floor(bounds.epsilon_lower / grid), math.ceil(bounds.epsilon_upper / grid)
    epsilons = np.arange(low, high + 1) * grid
    inside = sign * epsilons > least  # beyond, one of the two laws is above the other everywhere
    deltas = np.zeros(len(epsilons)) if added else -np.expm1(epsilons)
    signed = sign * epsilons[inside]
    with np.errstate(divide="ignore", invalid="ignore"):  # what is not a number here is set below
        whole = signed + np.log(1 / rate)
        losses = whole + np.log1p(-np.exp(np.log(1 / rate - 1) - whole))  # without the sample
    losses[signed == 0] = np.log(1 / rate + (1 - 1 / rate))
    if rate < 1:
        losses[np.abs(signed - least) <= 1e-9 * np.maximum(np.abs(signed), abs(least))] = -math.inf
    x = (1 if added else 0) + outcome(sign * losses)
    deltas[inside] = made.mu_upper_cdf(x) - np.exp(epsilons[inside] + made.mu_lower_log_cdf(x))
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, low, high, np.clip(deltas, 0, 1))
    return pld.PrivacyLossDistribution(pmf)


def _thinned(typical: float, rate: float) -> float:
    return min(rate * math.exp(min(typical, 5.0) ** 2 / 2) * typical, typical) if rate < 1 else typical


def _divergences(of: Any, orders: Orders, rate: float = 1.0) -> Any:
    from dp_accounting import dp_event, rdp

    # the logarithm of a moment near 1 loses up to a quarter of this to rounding (measured), a tiny one all of itself
    hidden = [0.0 if rate == 1 else 1e-14 * rate * order**2 / (order - 1) for order in orders]
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)  # fractional orders that do not converge are left out, which needs no warning
    try:
        account = rdp.RdpAccountant(orders).compose(of if rate == 1 else dp_event.PoissonSampledDpEvent(rate, of))
        return hidden + account.rdp
    finally:
        log.setLevel(level)


def valid_epsilon(epsilon: float) -> float:
    """The epsilon, where it is finite and above zero; refused otherwise."""
    if not is_number(epsilon) or math.isnan(epsilon) or epsilon <= 0:
        raise InvalidBudget(
            f"epsilon is {epsilon!r}",
            why="it must be a number above 0: with epsilon 0 the result could not depend on the data at all",
            fix="set for example epsilon = 8",
            code="epsilon-not-positive",
        )
    if not math.isfinite(epsilon):
        raise InvalidBudget(
            "epsilon is infinite",
            why="an infinite epsilon promises nothing, so no noise can be computed from it",
            fix="to run without privacy, leave epsilon out",
            code="epsilon-not-finite",
        )
    return float(epsilon)


def valid_delta(delta: float, *, zero: bool = False) -> float:
    """The delta, where 0 < delta < 1; refused otherwise. 0 is allowed with `zero`, for a pure guarantee."""
    allowed = BELOW_ONE if zero else INSIDE
    check_range(
        "delta",
        delta,
        allowed,
        "delta-out-of-range",
        error=InvalidBudget,
        why="it should be well below 1 / (number of units)",
        fix="set for example delta = 1e-5",
    )
    return float(delta)


def check_multiplier(multiplier: float | None, fix: str, name: str = "noise multiplier") -> None:
    """Refuses a noise multiplier, set by the user, that is not above 0."""
    if multiplier is not None:
        why = "noise of size 0 protects nobody"
        check_range(name, multiplier, POSITIVE, "noise-not-positive", error=UnsoundGuarantee, why=why, fix=fix)


def noise(value: float) -> float:
    check_range("a noise level or rate", value, NOT_NEGATIVE, "noise-not-a-number", error=InvalidBudget)
    return float(value) + 0.0  # -0.0 becomes 0.0: equal events must have equal JSON


def settle(event: Event, field: str, value: object) -> None:
    object.__setattr__(event, field, value)
