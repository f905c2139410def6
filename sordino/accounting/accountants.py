"""Accountants: epsilon of a composition of events, by every accountant that can bound it, side by side; and
calibration, their inverse: the smallest noise multiplier within a given (epsilon, delta).

gdp   exact for unsampled Gaussians: mu^2 adds up (Dong, Roth & Su 2022).
pure  Laplace noise and randomised response only: epsilons add up; a Poisson sample leaves ln(1 + q (e^eps - 1)) (Balle,
      Barthe & Gaboardi 2018).
rdp   Renyi DP (Mironov 2017; Mironov, Talwar & Zhang 2019; conversion of Canonne, Kamath & Steinke 2020).
pld   privacy loss distributions, pessimistic (Doroshenko et al. 2022).

A discrete Gaussian is accounted for by Renyi divergences alone: the curve of epsilon and delta of the continuous law
does not hold for it. Under a Poisson sample its divergences are known at whole orders, where the moments of both laws
agree term by term.

rdp and pld are computed by dp-accounting from inputs that this module prepares. Loss distributions of sampled Gaussians
are computed here, faster and bit for bit the same. Each number is an upper bound of its own, so the smallest is valid
too, and two that differ by more than their looseness reveal a bug.

Neighbours. Noise in an event is already relative to the sensitivity under the neighbours named, so an unsampled
mechanism is the pair (noise, noise + 1) under every relation, which dp-accounting calls ADD_OR_REMOVE_ONE. A Poisson
sample is different: replacing a record moves both mixtures at once, so only `zero_out` is accepted there. A unit that
is drawn but contributes zero leaves the law of the sum of the others, as an absent unit does where the denominator is
constant: the pair (noise, mixture of noise and noise + 1) of ADD_OR_REMOVE_ONE.

The numbers are for plans fixed in advance. A plan that adapts to outputs is admitted by the ledger, with a privacy
filter.

Calibration. Classic Gaussian: Dwork & Roth 2014, Theorem A.1. Exact Gaussian: Balle & Wang 2018; over several releases
mu^2 adds up (Dong, Roth & Su 2022). Sampled Gaussian: bisection on an accountant; the returned end is one that the
accountant found to be within budget, so a search that stops early costs extra noise, never privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from sordino.accounting.claims import check_neighbours
from sordino.accounting.events import (
    ComposedEvents,
    Event,
    Gaussian,
    Orders,
    Poisson,
    Repeat,
    reduce,
    valid_delta,
    valid_epsilon,
)
from sordino.accounting.gaussian_dp import delta_of, epsilon_of, integrated, mu_of
from sordino.errors import COUNT, InvalidBudget, UnsoundGuarantee, UnsupportedEvent, check_range

Accountant: TypeAlias = Callable[[ComposedEvents, float, Orders], float | None]
EXACT = "gdp"  # the accountant that is exact wherever it can be asked
LIMITS = "integrated, losses rounded down", "integrated, losses rounded up"

# a large epsilon is attained at a small order, a small one at a large order; fractions below 12 gain up to 1%
ORDERS: Orders = (*(1 + k / 10 for k in range(1, 110) if k % 10), *range(2, 257))

MANY = 10**6  # releases from which on a loss distribution would take minutes; Renyi divergences just add up
# of delta, for each release: rounding error of the Fourier transforms in a composition (measured: 2^-54, mu to 12)
ROUNDING = 2.0**-50

# e^loss must stay a finite float; with a larger loss there is no privacy, and no need for a tight bound
_WIDEST_LOSS = 700.0
_FEW_ORDERS = (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)


@dataclass(frozen=True)
class EpsilonBound:
    """An (epsilon, delta) guarantee at a given delta, and the accountant that computed it."""

    accountant: str
    epsilon: float


def bounds(event: Event, delta: float, neighbours: str, *, orders: Sequence[float] = ORDERS) -> list[EpsilonBound]:
    """Upper bounds on epsilon, one from every accountant that supports the event; infinite if a part of the event has
    no protection. `delta = 0` is allowed: a pure guarantee.
    """
    delta, reduced = valid_delta(delta, zero=True), _reduce(event, neighbours)
    if not reduced.private:
        return [EpsilonBound("none", math.inf)]
    pure = _pure(reduced, delta, tuple(orders))
    if pure is not None and pure > _WIDEST_LOSS:
        return [EpsilonBound("pure", pure)]
    asked = {name: accountant(reduced, delta, tuple(orders)) for name, accountant in _ACCOUNTANTS.items()}
    found = [EpsilonBound(name, epsilon) for name, epsilon in asked.items() if epsilon not in (None, math.inf)]
    return found or [EpsilonBound("none", math.inf)]


def needed(event: Event, delta: float, neighbours: str) -> list[EpsilonBound]:
    """Bounds of epsilon that a guarantee needs: for plain Gaussians the exact one alone, since the other accountants
    are slow to import and can only give larger ones; otherwise one from every accountant (`bounds`).
    """
    reduced = _reduce(event, neighbours)
    if reduced.private and (exact := _gdp(reduced, valid_delta(delta, zero=True), ORDERS)) is not None:
        return [EpsilonBound(EXACT, exact)]
    return bounds(event, delta, neighbours)


def checked(event: Event, delta: float, neighbours: str) -> list[EpsilonBound]:
    """The bounds of `needed`; beside an exact epsilon also a lower and an upper limit for it, from a numerical integral
    that shares no formula with it."""
    found = needed(event, delta, neighbours)
    gaussian = _reduce(event, neighbours).gaussian
    if found[0].accountant != EXACT or gaussian is None or delta == 0:
        return found
    return [*found, *map(EpsilonBound, LIMITS, integrated(1 / gaussian.noise_multiplier, delta))]


def best(event: Event, delta: float, neighbours: str) -> EpsilonBound:
    """The smallest of the epsilon bounds that the accountants give; each is valid."""
    return min(needed(event, delta, neighbours), key=lambda bound: bound.epsilon)


def epsilon_by(
    accountant: str,
    event: Event,
    delta: float,
    neighbours: str,
    *,
    orders: Sequence[float] = ORDERS,
    guess: bool = False,
) -> float:
    """The epsilon by one accountant alone, chosen by name. A `guess` takes half the time, proves nothing, and is nearly
    always the same number: calibration searches by guesses, and asks for what it has found in full.
    """
    delta, reduced = valid_delta(delta, zero=True), _reduce(event, neighbours)
    if not reduced.private:
        return math.inf
    ask = (_GUESSES if guess else _ACCOUNTANTS).get(accountant)
    epsilon = ask(reduced, delta, tuple(orders)) if ask else None
    if epsilon is None:
        raise UnsupportedEvent(
            f"the accountant {accountant!r} cannot bound this event",
            fix=f"use another accountant; there are {', '.join(_ACCOUNTANTS)}",
            code="accountant-does-not-apply",
        )
    return epsilon


def _reduce(event: Event, neighbours: str) -> ComposedEvents:
    check_neighbours(neighbours)
    return reduce(event, neighbours)


def _gdp(reduced: ComposedEvents, delta: float, orders: Orders) -> float | None:
    if reduced.others:
        return None
    return epsilon_of(1 / reduced.gaussian.noise_multiplier, delta) if reduced.gaussian else 0.0


def composed_at(delta: float, releases: int) -> float:
    """The delta at which to evaluate the loss distribution of this number of releases: `delta` minus what rounding
    errors may hide; 0 where the releases are too many for `delta`, or for a computer.
    """
    lost = ROUNDING * releases
    return delta - lost if lost < delta / 2 and releases <= MANY else 0.0


def _pure(reduced: ComposedEvents, delta: float, orders: Orders) -> float | None:
    found = [(event.pure(), count) for event, count in reduced.counted]
    known = [count * epsilon for epsilon, count in found if epsilon is not None]
    return math.fsum(known) if len(known) == len(found) else None


def _rdp(reduced: ComposedEvents, delta: float, orders: Orders) -> float | None:
    curves = [] if delta == 0 else [_curve(event, orders) for event, _ in reduced.counted]
    if delta == 0 or any(curve is None for curve in curves):
        return None
    import numpy as np
    from dp_accounting.rdp import rdp_privacy_accountant

    total = np.zeros(len(orders))
    for curve, (_, count) in zip(curves, reduced.counted, strict=True):
        total += count * curve
    # an order that lost all its digits comes out negative or nan: leave it out instead of calling it private
    usable = (total >= 0) & np.isfinite(total)
    if not usable.any():
        return math.inf
    epsilon, _ = rdp_privacy_accountant.compute_epsilon(np.array(orders)[usable], total[usable], delta)
    return float(epsilon)


@lru_cache(maxsize=4096)
def _curve(event: Event, orders: Orders) -> Any:
    return event.renyi(orders)


def _pld(reduced: ComposedEvents, delta: float, orders: Orders) -> float | None:
    removed = _one_way(reduced, delta, orders)
    if removed is None or not any(isinstance(event, Poisson) for event, _ in reduced.counted):
        return removed
    added = _one_way(reduced, delta, orders, added=True)
    return None if added is None else max(removed, added)


@lru_cache(maxsize=512)
def _one_way(reduced: ComposedEvents, delta: float, orders: Orders, added: bool = False) -> float | None:
    """Epsilon under removal of a unit, or with `added` under its addition. The guarantee is the larger of the two, so
    both must be computed. Removal gave the larger one for every sampled noise that we have tried; nobody has proved it
    for compositions.
    """
    sizes = [size for event, _ in reduced.counted if (size := event.loss_size())]
    spans, typical = zip((0.0, math.inf), *sizes, strict=True)
    pairs = {event.pair for event, _ in reduced.counted}  # dp-accounting composes pairs of inputs or of sums, not both
    kept = composed_at(delta, sum(count for _, count in reduced.counted))
    if not kept or len(sizes) < len(reduced.counted) or len(pairs) > 1:
        return None
    if max(spans) > _WIDEST_LOSS:
        return math.inf
    rough = min(
        (e for e in (_pure(reduced, delta, orders), _rdp(reduced, delta, _FEW_ORDERS)) if e is not None),
        default=0.0,
    )
    step = _interval(max(*spans, rough), min(typical), len(spans))
    # the step is a power of two, so that statements which ask for several deltas of the same events find the loss
    # distribution in the cache
    return max(0.0, float(_losses(reduced, 2.0 ** round(math.log2(step)), added).get_epsilon_for_delta(kept)))


@lru_cache(maxsize=16)
def _losses(reduced: ComposedEvents, step: float, added: bool = False) -> Any:
    """Composed privacy loss distribution of all events, on a grid of this step, where a unit is removed or, with
    `added`, added. dp-accounting's own accountant is not used: version 0.6 counts repeated randomised responses once.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    total = pld.identity(step)
    for event, count in reduced.counted:
        total = total.compose(event.loss(pld, step, added=added).self_compose(count))
    return total


_ACCOUNTANTS: dict[str, Accountant] = {
    EXACT: _gdp,
    "pure": _pure,
    "rdp": _rdp,
    "pld": _pld,
}
_GUESSES: dict[str, Accountant] = {**_ACCOUNTANTS, "pld": _one_way}


def _interval(widest: float, typical: float, events: int) -> float:
    """Grid step of a loss distribution. Any step gives a pessimistic bound; this one keeps the work near a second.

    Fine enough to resolve one draw's typical loss (that error is multiplied by the count), but at most 300,000 points
    across the widest loss or the whole epsilon, and fewer when many different events are convolved.
    """
    if widest == 0.0:
        return 1e-4
    return max(min(widest / 5e4, typical / 10), widest / 3e5) * max(1.0, events / 10)


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
                raise UnsoundGuarantee(
                    f"no noise multiplier below 1e9 gives ({epsilon:g}, {delta:g}) by the {accountant} accountant",
                    why="the conversion of this accountant to epsilon alone costs more than the whole budget",
                    fix="set a larger epsilon or delta, or plan fewer releases",
                    code="budget-out-of-reach",
                )
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


def of_one_change(promise: Callable[[float], tuple[float, float]], delta: float, number: int) -> tuple[float, float]:
    """Group privacy, inverted: the (epsilon, delta) that one change must have, so that `number` changes in a row are
    (number epsilon, `delta`)-private. Deltas grow: each later change multiplies the earlier ones by e^epsilon.
    `promise` maps a wanted delta to the epsilon of one change and the delta at which it holds. Epsilon is infinite if
    no delta suffices."""
    smaller = delta
    for _ in range(40):
        epsilon, held = promise(smaller)
        if not epsilon * (number - 1) < 300:
            break
        if math.fsum(math.exp(i * epsilon) for i in range(number)) * held <= delta:
            return epsilon, smaller
        smaller = delta / math.fsum(math.exp(i * epsilon * 1.01) for i in range(number))
    return math.inf, delta
