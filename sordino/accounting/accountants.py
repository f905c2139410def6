"""How much a list of events costs: every accountant that can say so, side by side.

gdp   exact for unsampled Gaussians: mu^2 adds up (Dong, Roth & Su 2022).
pure  Laplace noise and randomised response only: epsilons add up; a Poisson sample leaves ln(1 + q (e^eps - 1)) (Balle,
      Barthe & Gaboardi 2018).
rdp   Renyi DP (Mironov 2017; Mironov, Talwar & Zhang 2019; conversion of Canonne, Kamath & Steinke 2020).
pld   privacy loss distributions, pessimistic (Doroshenko et al. 2022).

A discrete Gaussian has Renyi divergences and nothing else: the curve of the continuous law is not its own. Under a
Poisson sample these are known at whole orders,
where the moments of both laws agree term by term.

rdp and pld are dp-accounting's; what is ours is what is put into them. Each number is an upper bound of its
own, so the smallest is valid too, and two that disagree by more than their looseness betray a bug.

Neighbours. Noise in an event is already relative to the sensitivity under the neighbours named, so an
unsampled mechanism is the pair (noise, noise + 1) under every relation, which dp-accounting calls
ADD_OR_REMOVE_ONE. A Poisson sample is different: replacing a record moves both mixtures at once, so only
`zero_out` is accepted there. A unit that is drawn and counts for nothing leaves the law of the others' sum, as one that
is away does where the denominator is a constant: the pair (noise, mixture of noise and noise + 1) of ADD_OR_REMOVE_ONE.

The numbers are for plans fixed in advance. Admission while a plan adapts to outputs is the ledger's, by a filter.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from sordino.accounting.claims import check_neighbours
from sordino.accounting.events import (
    DiscreteGaussian,
    Event,
    Gaussian,
    Laplace,
    NonPrivate,
    Poisson,
    Response,
    leaves,
    to_dp_event,
    valid_delta,
)
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.errors import UnsupportedEvent

EXACT = "gdp"  # the accountant that is exact wherever it can be asked

# small orders decide when epsilon is large, large ones when it is small; fractions below 12 are worth up to 1%
ORDERS: tuple[float, ...] = (*(1 + k / 10 for k in range(1, 110) if k % 10), *range(2, 257))

# outside these the next worse level is charged: no overflow inside an accountant, and never an underestimate
_LEAST_NOISE, _MOST_NOISE = 1e-6, 1e9

MANY = 10**6  # releases of which a loss distribution would take minutes; Renyi divergences are sums

# e^loss must stay a float; where a loss can be wider there is no privacy left that would deserve more digits
_WIDEST_LOSS = 700.0
_FEW_ORDERS = (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)


@dataclass(frozen=True)
class EpsilonBound:
    """An (epsilon, delta) guarantee at the delta asked for, and who computed it."""

    accountant: str
    epsilon: float


_Simple: TypeAlias = Gaussian | DiscreteGaussian | Laplace | Response
_Other: TypeAlias = DiscreteGaussian | Laplace | Response | Poisson


class _Reduced(NamedTuple):
    """Events reduced to what accountants understand; all plain Gaussians are one Gaussian of the same mu."""

    gaussian: Gaussian | None
    others: tuple[tuple[_Other, int], ...]
    private: bool


def bounds(event: Event, delta: float, neighbours: str, *, orders: Sequence[float] = ORDERS) -> list[EpsilonBound]:
    """One bound from every accountant that supports the event; infinite if anything in it is unprotected.

    `delta = 0` is allowed and asks for a pure guarantee.
    """
    delta, reduced = valid_delta(delta, zero=True), _reduce(event, neighbours)
    if not reduced.private:
        return [EpsilonBound("none", math.inf)]
    pure = _pure(reduced, delta, tuple(orders))
    if pure is not None and pure > _WIDEST_LOSS:
        return [EpsilonBound("pure", pure)]
    asked = {name: accountant(reduced, delta, tuple(orders)) for name, accountant in _ACCOUNTANTS.items()}
    found = [EpsilonBound(name, epsilon) for name, epsilon in asked.items() if epsilon is not None]
    return found or [EpsilonBound("none", math.inf)]


def needed(event: Event, delta: float, neighbours: str) -> list[EpsilonBound]:
    """Those of `bounds` that a promise needs. Of plain Gaussians one is exact, and the others are not asked: they load
    half of scipy to come out above it.
    """
    reduced = _reduce(event, neighbours)
    if reduced.private and (exact := _gdp(reduced, valid_delta(delta, zero=True), ORDERS)) is not None:
        return [EpsilonBound(EXACT, exact)]
    return bounds(event, delta, neighbours)


def best(event: Event, delta: float, neighbours: str) -> EpsilonBound:
    """The smallest valid bound of all accountants."""
    return min(needed(event, delta, neighbours), key=lambda bound: bound.epsilon)


def epsilon_by(
    accountant: str, event: Event, delta: float, neighbours: str, *, orders: Sequence[float] = ORDERS
) -> float:
    """The epsilon by one accountant alone, chosen by name. Calibration asks for it many times."""
    delta, reduced = valid_delta(delta, zero=True), _reduce(event, neighbours)
    if not reduced.private:
        return math.inf
    ask = _ACCOUNTANTS.get(accountant)
    epsilon = ask(reduced, delta, tuple(orders)) if ask else None
    if epsilon is None:
        raise UnsupportedEvent(
            f"the accountant {accountant!r} cannot bound this event",
            fix=f"use another accountant; there are {', '.join(_ACCOUNTANTS)}",
            code="accountant-does-not-apply",
        )
    return epsilon


def amplified(epsilon: float, rate: float) -> float:
    """What a secret sample of rate q leaves of an epsilon: ln(1 + q (e^eps - 1)), where e^eps cannot overflow."""
    if epsilon < 30:
        return math.log1p(rate * math.expm1(epsilon))
    return epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon))


def _reduce(event: Event, neighbours: str) -> _Reduced:
    check_neighbours(neighbours)
    mus: list[float] = []
    others: dict[_Other, int] = {}
    private = True

    def take(leaf: Event, count: int) -> None:
        nonlocal private
        if isinstance(leaf, Poisson) and leaf.rate == 1.0:  # everyone takes part: nothing is sampled
            for inner, n in leaves(leaf.event).items():
                take(inner, n * count)
        elif isinstance(leaf, Poisson):
            inside = _reduce(leaf.event, neighbours)
            private = private and inside.private
            if inside.private and (read := _single(inside)):
                _only_zero_out(neighbours)
                sampled = Poisson(leaf.rate, read)
                others[sampled] = others.get(sampled, 0) + count
        elif isinstance(leaf, Gaussian) and leaf.noise_multiplier >= _LEAST_NOISE:
            mus.append(math.sqrt(count) / min(leaf.noise_multiplier, _MOST_NOISE))
        elif isinstance(leaf, DiscreteGaussian) and leaf.noise_multiplier >= _LEAST_NOISE:
            stepped = DiscreteGaussian(min(leaf.noise_multiplier, _MOST_NOISE))
            others[stepped] = others.get(stepped, 0) + count
        elif isinstance(leaf, Laplace) and leaf.scale >= _LEAST_NOISE:
            clamped = Laplace(min(leaf.scale, _MOST_NOISE))
            others[clamped] = others.get(clamped, 0) + count
        elif isinstance(leaf, Response):
            others[leaf] = others.get(leaf, 0) + count
        else:
            assert isinstance(leaf, NonPrivate | Gaussian | DiscreteGaussian | Laplace)
            private = False

    for leaf, count in leaves(event).items():
        take(leaf, count)
    return _Reduced(Gaussian(1 / math.hypot(*mus)) if mus else None, tuple(others.items()), private)


def _only_zero_out(neighbours: str) -> None:
    if neighbours != "zero_out":
        raise UnsupportedEvent(
            f"Poisson sampling with {neighbours} neighbours",
            why="the price of a Poisson sample is proved only for one unit that is counted or not",
            fix='use neighbours = "zero_out"',
            code="poisson-needs-zero-out",
        )


def _single(inside: _Reduced) -> Gaussian | DiscreteGaussian | Laplace | None:
    """The one mechanism that reads a sample: Gaussians on it add up to a Gaussian, anything richer is refused."""
    if not inside.others:
        return inside.gaussian
    (event, count), *more = inside.others
    if more or count > 1 or inside.gaussian or isinstance(event, Poisson | Response):
        raise UnsupportedEvent(
            "one Poisson sample is read by several different mechanisms",
            why="no accountant here has a proof for it",
            fix="give each mechanism its own sample, or use Gaussian noise only",
            code="sampled-event-not-supported",
        )
    return event


def _gdp(reduced: _Reduced, delta: float, orders: tuple[float, ...]) -> float | None:
    if reduced.others:
        return None
    return epsilon_of(1 / reduced.gaussian.noise_multiplier, delta) if reduced.gaussian else 0.0


def _pure(reduced: _Reduced, delta: float, orders: tuple[float, ...]) -> float | None:
    if reduced.gaussian or not all(isinstance(_core(event), Laplace | Response) for event, _ in reduced.others):
        return None
    return math.fsum(count * _pure_epsilon(event) for event, count in reduced.others)


def _rdp(reduced: _Reduced, delta: float, orders: tuple[float, ...]) -> float | None:
    if delta == 0 or any(isinstance(e, Poisson) and isinstance(e.event, Laplace) for e, _ in reduced.others):
        return None
    import numpy as np
    from dp_accounting.rdp import rdp_privacy_accountant

    total = np.zeros(len(orders))
    for event, count in _counted(reduced):
        total += count * _rdp_curve(event, orders)
    # an order that lost all its digits comes out negative or nan: leave it out instead of calling it private
    usable = (total >= 0) & np.isfinite(total)
    if not usable.any():
        return math.inf
    epsilon, _ = rdp_privacy_accountant.compute_epsilon(np.array(orders)[usable], total[usable], delta)
    return float(epsilon)


@lru_cache(maxsize=4096)
def _rdp_curve(event: _Simple | Poisson, orders: tuple[float, ...]) -> Any:
    if isinstance(event, Response):
        return _response_curve(event, orders)
    if isinstance(event, Poisson) and isinstance(event.event, DiscreteGaussian):
        import numpy as np

        whole = tuple(order for order in orders if order == int(order))
        known = dict(
            zip(whole, _rdp_curve(Poisson(event.rate, Gaussian(event.event.noise_multiplier)), whole), strict=True)
        )
        return np.array([known.get(order, math.inf) for order in orders])
    from dp_accounting.rdp import RdpAccountant

    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)  # fractional orders that do not converge are left out, which needs no warning
    try:
        return RdpAccountant(orders).compose(to_dp_event(event)).rdp
    finally:
        log.setLevel(level)


def _response_curve(event: Response, orders: tuple[float, ...]) -> Any:
    """Of two inputs a and b: one output is as likely as e^epsilon to one, one the other way round, and all others are
    equally likely.
    """
    import numpy as np

    alpha, e = np.array(orders), event.epsilon
    other = -e - math.log1p((event.levels - 1) * math.exp(-e))  # log probability of an output that is not the input
    rare = math.log(event.levels - 2) if event.levels > 2 else -math.inf
    return (other + np.logaddexp(np.logaddexp(alpha * e, (1 - alpha) * e), rare)) / (alpha - 1)


@lru_cache(maxsize=512)
def _pld(reduced: _Reduced, delta: float, orders: tuple[float, ...]) -> float | None:
    spans, typical = zip((0.0, math.inf), *(_loss_scale(event) for event, _ in _counted(reduced)), strict=True)
    answers = [event for event, _ in reduced.others if isinstance(event, Response)]
    stepped = any(isinstance(_core(event), DiscreteGaussian) for event, _ in reduced.others)
    many = sum(count for event, count in _counted(reduced)) > MANY
    if (
        delta == 0
        or max(spans) > _WIDEST_LOSS
        or stepped
        or many
        or (answers and len(answers) < len(_counted(reduced)))
    ):
        return None  # a response is a pair of inputs, noise a pair of sums: dp-accounting composes the one or the other
    rough = min(
        (e for e in (_pure(reduced, delta, orders), _rdp(reduced, delta, _FEW_ORDERS)) if e is not None),
        default=0.0,
    )
    step = _interval(max(*spans, rough), min(typical), len(spans))
    # statements ask for several deltas of the same events: a grid from a coarse set of grids is one that is there
    # already
    return max(0.0, float(_losses(reduced, 2.0 ** round(math.log2(step))).get_epsilon_for_delta(delta)))


@lru_cache(maxsize=16)
def _losses(reduced: _Reduced, step: float) -> Any:
    """The privacy loss distribution of all events together. Not by the accountant of dp-accounting 0.6, which takes a
    response that is repeated for a single one.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    total = pld.identity(step)
    for event, count in _counted(reduced):
        total = total.compose(_loss(pld, event, step).self_compose(count))
    return total


def _loss(pld: Any, event: _Simple | Poisson, step: float) -> Any:
    """Privacy loss of one draw, for a record that is counted or not."""
    core, grid = _core(event), {"value_discretization_interval": step}
    if isinstance(core, Response):
        return pld.from_randomized_response(core.replaced, core.levels, **grid)
    rate = event.rate if isinstance(event, Poisson) else 1.0
    if isinstance(core, Laplace):
        return pld.from_laplace_mechanism(core.scale, sampling_prob=rate, **grid)
    return pld.from_gaussian_mechanism(core.noise_multiplier, sampling_prob=rate, **grid)


_ACCOUNTANTS: dict[str, Callable[[_Reduced, float, tuple[float, ...]], float | None]] = {
    EXACT: _gdp,
    "pure": _pure,
    "rdp": _rdp,
    "pld": _pld,
}
UPPER = frozenset(_ACCOUNTANTS) - {EXACT}  # those that come out above it


def _interval(widest: float, typical: float, events: int) -> float:
    """Grid step of a loss distribution: every step is pessimistic, this one keeps the work near a second.

    Fine enough to resolve one draw's typical loss (that error is multiplied by the count), but at most 300,000
    points across the widest loss or the whole epsilon, and fewer when many different events are convolved.
    """
    if widest == 0.0:
        return 1e-4
    return max(min(widest / 5e4, typical / 10), widest / 3e5) * max(1.0, events / 10)


def _loss_scale(event: _Simple | Poisson) -> tuple[float, float]:
    """(span, typical size) of the privacy loss of one draw; a sample thins the typical loss, not the span."""
    if isinstance(event, Poisson):
        span, typical = _loss_scale(_core(event))
        return span, min(event.rate * math.exp(min(typical, 5.0) ** 2 / 2) * typical, typical)
    if isinstance(event, Laplace | Response):
        return _pure_epsilon(event), _pure_epsilon(event)
    mu = 1 / event.noise_multiplier
    return mu * mu / 2 + 10 * mu, mu


def _counted(reduced: _Reduced) -> list[tuple[_Simple | Poisson, int]]:
    return [*([(reduced.gaussian, 1)] if reduced.gaussian else []), *reduced.others]


def _core(event: _Simple | Poisson) -> _Simple:
    inner = event.event if isinstance(event, Poisson) else event
    assert isinstance(inner, _Simple), "plans hold nothing richer"
    return inner


def _pure_epsilon(event: _Other) -> float:
    inner = _core(event)
    assert isinstance(inner, Laplace | Response)
    epsilon = inner.epsilon if isinstance(inner, Response) else 1 / inner.scale
    return amplified(epsilon, event.rate if isinstance(event, Poisson) else 1.0)
