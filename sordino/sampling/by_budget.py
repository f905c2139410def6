"""Client sampling by personal budgets. The plan decides at which rate each client takes part (`Plan.rates`); the
cohorts below draw by these rates, which follow from public budgets alone.

    by_budget            one hidden coin each, all rounds alike, at the rate a client's budget affords (Boenisch et al.,
                         NeurIPS 2023)
    threshold            one hidden coin each, at rates that change with a threshold planned in advance (after
                         Jorgensen, Yu and Cormode, ICDE 2015)
    threshold_published  as printed in "Consideration of FedProx in Privacy Protection" (Electronics 12(20), 2023):
                         thresholds from what is left of the budgets, participation visible, only drawn clients pay. It
                         does not keep the budgets it names; the receipt says what holds.

Rates: each client takes part with a probability of its own, the smaller the smaller its budget (Boenisch et al.,
NeurIPS 2023). Threshold: a (tau, delta) mechanism on a Poisson sample in which a client with budget eps < tau takes
part with probability (e^eps - 1)/(e^tau - 1) costs that client exactly eps (Jorgensen, Yu and Cormode, ICDE 2015). This
is proved for a single run of the mechanism on a hidden sample under zero_out, and for nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sordino import sampling
from sordino.accounting.pricing import ORDERS
from sordino.errors import BELOW_ONE, ConfigError, InvalidBudget, Range, check_range, is_number
from sordino.sampling import Cohort, IndependentCohort, Rates, alike
from sordino.sampling.draws import SamplingWords

Floats = NDArray[np.float64]


class LostBudget(NamedTuple):
    """Weights, in the cost of a sampling threshold, of the budget that clients lose to rarer sampling and of the budget
    that they lose to larger noise.
    """

    rule: Literal["weighted", "sum", "fixed", "count"] = "weighted"
    weights: tuple[float, float] = (0.7, 0.3)  # of `fixed` and `count`


WEIGHTED = LostBudget()
_TIGHT = 1e-5  # of the logarithms of rates and multipliers
SEARCHES = 4  # intervals inside each gap between neighbouring budgets


def included(budgets: Floats, tau: float) -> Floats:
    """Probability of taking part at threshold tau: (e^eps - 1)/(e^tau - 1) for a budget eps below tau, 1 from tau
    on.
    """
    return np.where(budgets >= tau, 1.0, np.expm1(np.minimum(budgets, tau)) / math.expm1(tau))


def wasted(budgets: Floats, tau: float, count: Floats | float = 1.0) -> tuple[float, float]:
    """Budget that is left over: by clients below the threshold `tau`, which are sampled more rarely, and by clients
    above it, whose noise is larger than they asked for. `count` clients have each budget.
    """
    below, above = budgets < tau, budgets > tau
    sampling, noise = budgets * (1 - included(budgets, tau)) * count, (budgets - tau) * count
    return float(sampling[below].sum()), float(noise[above].sum())


def waste(budgets: Floats, tau: float, by: LostBudget = WEIGHTED, count: Floats | float = 1.0) -> float:
    """Cost of a threshold tau: the budget lost to sampling plus the budget lost to noise (see `wasted`), weighted by
    `by`. Rule `weighted`: each by its share of their sum. Rule `count`: the expected number of clients that stay away
    takes the place of the budget lost to sampling, as a public re-implementation does.
    """
    sampling, noise = wasted(budgets, tau, count)
    if by.rule == "weighted":
        return (sampling**2 + noise**2) / (sampling + noise) if sampling + noise else 0.0
    if by.rule == "count":
        sampling = float(((1 - included(budgets, tau)) * count)[budgets < tau].sum())
    first, second = (1.0, 1.0) if by.rule == "sum" else by.weights
    return first * sampling + second * noise


def threshold(budgets: Floats, by: LostBudget = WEIGHTED) -> float:
    """The threshold tau of least cost (see `waste`) between the smallest and the largest budget; the smallest one where
    several are equal. The cost is continuous but not convex, so every gap between budgets is searched.
    """
    from scipy.optimize import minimize_scalar

    levels, found = np.unique(budgets, return_counts=True)
    count = found.astype(np.float64)
    if not len(levels) or not 0 < levels[0] <= levels[-1] < math.inf:
        raise InvalidBudget(
            "there are no budgets left to choose a threshold from",
            why="every client's budget is used up",
            fix="run fewer rounds, or set larger budgets",
            code="threshold-without-budgets",
        )
    why = "it promises nothing, and e to its power is no number any more"
    check_range("a budget", float(levels[-1]), Range(most=700), "budget-too-large", error=InvalidBudget, why=why)
    tried = [(waste(levels, float(level), by, count), float(level)) for level in levels]
    ends = np.linspace(levels[:-1], levels[1:], SEARCHES + 1, axis=1)
    low, high = ends[:, :-1].ravel(), ends[:, 1:].ravel()
    far = waste_at_least(levels, low, high, by, count) > min(tried)[0] + 1e-9 * float((levels * count).sum())
    for a, b in zip(low[~far].tolist(), high[~far].tolist(), strict=True):
        inside = minimize_scalar(
            lambda t: waste(levels, float(t), by, count), bounds=(a, b), method="bounded", options={"xatol": 1e-9}
        )
        tried.append((float(inside.fun), float(inside.x)))
    least = min(value for value, _ in tried)
    return min(tau for value, tau in tried if value <= least * (1 + 1e-12))


def waste_at_least(levels: Floats, low: Floats, high: Floats, by: LostBudget, count: Floats) -> Floats:
    """A lower bound of `waste` on each of many intervals that lie between neighbouring budgets. There the budget lost
    to sampling grows with tau and that lost to noise falls, and each rule is linear or convex in the two. A convex cost
    lies above its tangent in the middle of an interval.
    """
    lost = count if by.rule == "count" else levels * count
    sums = np.cumsum([count, levels * count, lost, lost * np.expm1(levels)], axis=1)  # over a budget and all smaller
    clients, budget, all_lost, sampled = sums[:, np.searchsorted(levels, low, "right") - 1]
    sampling = np.stack([all_lost - sampled / np.expm1(tau) for tau in (low, high)])
    noise = np.stack([sums[1, -1] - budget - (sums[0, -1] - clients) * tau for tau in (low, high)])
    if by.rule != "weighted":
        first, second = (1.0, 1.0) if by.rule == "sum" else by.weights
        return np.asarray(first * sampling.min(0) + second * noise.min(0))
    s, n = sampling.mean(0), noise.mean(0)
    falls = np.abs(s**2 + 2 * s * n - n**2) * np.ptp(sampling, axis=0) / 2
    falls += np.abs(n**2 + 2 * s * n - s**2) * np.ptp(noise, axis=0) / 2
    return np.asarray((s**2 + n**2) / (s + n) - falls / (s + n) ** 2)


def rates(budgets: Sequence[float], delta: float, multiplier: float, rounds: int) -> Floats:
    """The largest sampling rate at which each client's budget lasts for all rounds; 0 where no rate does."""
    levels, which = np.unique(np.asarray(budgets), return_inverse=True)
    low, high = np.full(len(levels), math.log(1e-9)), np.zeros(len(levels))
    whole = spent(np.ones(len(levels)), delta, multiplier, rounds) <= levels
    never = spent(np.exp(low), delta, multiplier, rounds) > levels
    while float((high - low).max()) > _TIGHT:
        middle = (low + high) / 2
        kept = spent(np.exp(middle), delta, multiplier, rounds) <= levels
        low, high = np.where(kept, middle, low), np.where(kept, high, middle)
    each: Floats = np.where(whole, 1.0, np.where(never, 0.0, np.exp(low)))
    return each[which]


def spent(each: Floats, delta: float, multiplier: float, rounds: int) -> Floats:
    """The epsilon of `rounds` Poisson-sampled Gaussian releases at each of several sampling rates, at integer Renyi
    orders (Mironov, Talwar and Zhang 2019).
    """
    order, j = np.array(ORDERS)[:, None], np.arange(max(ORDERS) + 1)
    q = np.clip(each, 0, 1 - 1e-15)[:, None, None]
    terms = _log_binomials() + j * np.log(q) + (order - j) * np.log1p(-q) + j * (j - 1) / (2 * multiplier**2)
    terms = np.where(j <= order, terms, -np.inf)
    top = terms.max(2)
    losses = (top + np.log(np.exp(terms - top[:, :, None]).sum(2))) / (order[:, 0] - 1)
    losses = np.where(each[:, None] == 1, order[:, 0] / (2 * multiplier**2), np.maximum(losses, 0))
    conversion = np.log1p(-1 / order[:, 0]) - np.log(delta * order[:, 0]) / (order[:, 0] - 1)
    return np.asarray(np.maximum((rounds * losses + conversion).min(1), 0.0))


@cache
def _log_binomials() -> Floats:
    from scipy.special import gammaln

    order, j = np.array(ORDERS)[:, None], np.arange(max(ORDERS) + 1)
    found: Floats = gammaln(order + 1) - gammaln(j + 1) - gammaln(np.maximum(order - j, 0) + 1)
    return found


def balanced(budgets: Sequence[float], delta: float, rounds: int, expected: float) -> tuple[float, Floats]:
    """One noise multiplier for all, and sampling rates of the clients that add up to the expected cohort: (multiplier,
    rates).
    """
    clients = len(budgets)
    allowed, why = Range(above=0, most=clients), "each client takes part with a probability: at most all are expected"
    fix = f"set a size above 0 and at most {clients}"
    check_range(
        "cohort.size", expected, allowed, "cohort-larger-than-population", error=InvalidBudget, why=why, fix=fix
    )

    def enough(log_multiplier: float) -> bool:
        return bool(rates(budgets, delta, math.exp(log_multiplier), rounds).sum() >= expected * (1 - 1e-9))

    low, high = math.log(1e-2), math.log(1e-2)
    while not enough(high):
        low, high = high, high + math.log(4)
        if high > math.log(1e7):
            raise InvalidBudget(
                f"even a noise multiplier of 1e7 does not let {expected:g} of {clients} clients take part",
                why="the budgets are too small for so many rounds",
                fix="run fewer rounds, or set a smaller cohort or larger budgets",
                code="budget-out-of-reach",
            )
    while high - low > _TIGHT:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    found = math.exp(high)
    each = rates(budgets, delta, found, rounds)
    if not each.all():
        raise InvalidBudget(
            f"a client with the budget {min(budgets):g} cannot take part at all, at delta {delta:g}",
            why="the conversion from Renyi divergence to epsilon alone costs more",
            fix="raise the smallest budgets or delta, or use a visible cohort",
            code="budget-out-of-reach",
        )
    return found, each


def planned(
    budgets: Sequence[float], shares: Sequence[float] | Floats, by: LostBudget = WEIGHTED
) -> list[tuple[float, Floats, Floats]]:
    """Threshold tau, sampling rates and payments of each round. A round's allowance is its share of each budget and
    what is carried over; a client pays at most tau of it, and carries the rest to the next round.

    All clients pay in every round, sampled or not, and only unpaid budget is carried over, so payments never exceed
    budgets.
    """
    each = np.asarray(budgets, dtype=np.float64)
    carried, rounds = np.zeros_like(each), []
    for share in np.asarray(shares, dtype=np.float64):
        allowance: Any = each * share + carried
        tau = threshold(allowance, by)
        paid = np.minimum(allowance, tau)
        rounds.append((tau, included(allowance, tau), paid))
        carried = allowance - paid
    return rounds


@dataclass(frozen=True)
class Personal(IndependentCohort):
    """Client sampling with a rate of its own for each client, by its personal budget."""

    personal: ClassVar[bool] = True

    def toss(self, population: int, coins: SamplingWords, rates: Rates | None = None) -> list[int]:
        assert rates is not None, "the plan of personal budgets says the rates"
        tossed = ((coins.words(population) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        return np.flatnonzero(tossed < rates).tolist()

    def participations(self, rounds: int, population: int) -> Sequence[int]:
        return alike(rounds, population)

    def expected(self, population: int) -> float:
        return float(population)  # at most; the plan knows the rates of each round


@dataclass(frozen=True)
class ByBudget(Personal):
    """A hidden cohort: each client is drawn at the rate that its own budget affords."""

    hidden: ClassVar[bool] = True
    size: float  # expected

    def expected(self, population: int) -> float:
        return self.size


@dataclass(frozen=True)
class _ByThreshold(Personal):
    waste: Literal["weighted", "sum", "fixed", "count"] = "weighted"
    waste_weights: Sequence[float] = (0.7, 0.3)  # of sampling and of noise, where waste is "fixed" or "count"

    def __post_init__(self) -> None:
        if len(self.waste_weights) != 2 or not all(is_number(w) and 0 <= w < math.inf for w in self.waste_weights):
            raise ConfigError(
                f"waste_weights = {self.waste_weights!r}",
                why="they weigh the loss by sampling and the loss by noise: two numbers, neither of them negative",
                fix="set for example waste_weights = [0.7, 0.3]",
                code="waste-weights",
            )

    @property
    def by(self) -> LostBudget:
        first, second = self.waste_weights
        return LostBudget(self.waste, (float(first), float(second)))


@dataclass(frozen=True)
class Threshold(_ByThreshold):
    """Hidden cohort in which all clients share a round's noise multiplier, and those with a budget below its threshold
    are drawn less often.
    """

    hidden: ClassVar[bool] = True


@dataclass(frozen=True)
class ThresholdPublished(_ByThreshold):
    """Threshold sampling of PDP-Prox as published; it is not proved to keep the budgets."""

    cost: Literal["one_round", "share", "full_round"] = "one_round"
    retire_below: float = 0.01  # share of the smallest budget; with less left a client leaves

    def __post_init__(self) -> None:
        super().__post_init__()
        why = "it is a share of the smallest budget"
        check_range("retire_below", self.retire_below, BELOW_ONE, "share-out-of-range", why=why)


COHORTS: dict[str, type[Cohort]] = {
    **sampling.COHORTS,
    "by_budget": ByBudget,
    "threshold": Threshold,
    "threshold_published": ThresholdPublished,
}
