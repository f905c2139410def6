"""The plan: from a budget to one price per client and exposure, before any data is read.

A gate says what it could promise (`Offer`); the cohort says how often a client will be seen; the budget says what may be spent. The plan cuts the budget
into integers, one per exposure, turns each into a noise multiplier, and refuses what no longer fits. Everything in it is public. Clients are many and their
kinds are few: each kind is priced once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sordino.errors import InvalidBudget, UnsoundGuarantee
from sordino.ledger.currency import UNIT, ZCDP, Amount, Currency, cap, cost
from sordino.ledger.pricing import AsPublished, Classic, Exact, Pricing, Pure, best_order, counted
from sordino.ledger.schedules import Adaptive, Schedule, Uniform, integer_shares
from sordino.types import Offer


@dataclass(frozen=True)
class Budget:
    """What one client grants over the whole training."""

    epsilon: float
    delta: float
    schedule: Schedule | Adaptive

    def __post_init__(self) -> None:
        if isinstance(self.epsilon, bool) or not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise InvalidBudget(
                f"epsilon is {self.epsilon}",
                why="a budget is a finite number above 0",
                fix="for no privacy leave [privacy] epsilon out",
                code="epsilon-not-positive",
            )
        if not 0 < self.delta < 1:
            raise InvalidBudget(
                f"delta is {self.delta}",
                why="delta is a probability between 0 and 1",
                code="delta-out-of-range",
            )


class Price(NamedTuple):
    multiplier: float
    charge: Amount


@dataclass
class Plan:
    """Prices for one private gate, or for none (`offer` is None)."""

    offer: Offer | None
    pricing: Pricing | None
    budget: Budget | None
    fixed: float | None  # a multiplier typed by the user, where no budget is given
    exposures: Sequence[int]  # planned T_k per client (rounds where everyone pays)
    reads: Sequence[int]  # noisy reads per exposure, per client
    _shares: dict[int, list[Amount]] = field(default_factory=dict)
    _multipliers: dict[tuple[Amount, int], float] = field(default_factory=dict)

    @property
    def currency(self) -> Currency:
        return self.pricing.currency if self.pricing else ZCDP

    @property
    def cap(self) -> Amount | None:
        """Of one client, in the ledger's integers."""
        if self.budget is None or self.pricing is None:
            return None
        return cap(self.pricing.total(self.budget.epsilon, self.budget.delta))

    def price(
        self, client: int, exposure: int, spent: Amount, stalled: bool = False, last: Amount | None = None
    ) -> Price | None:
        """Of exposure 0, 1, ... of a client; None when the plan has nothing left for it and it must abstain.

        `spent` is the client's sum so far and `last` its latest charge: all that a price may depend on, so that a resumed run asks the same.
        """
        if self.pricing is None:
            return None
        if self.budget is None:
            assert self.fixed is not None
            reads = self.reads[client]
            return Price(self.fixed, cost([reads * part for part in self.pricing.cost(self.fixed)]))
        if exposure >= self.exposures[client]:
            return None
        charge = (
            self._adaptive(client, exposure, spent, stalled, last)
            if isinstance(self.budget.schedule, Adaptive)
            else self._share(client, exposure)
        )
        if not all(charge):
            return None
        return Price(self._multiplier(charge, self.reads[client]), charge)

    def rehearse(self) -> None:
        """Price every planned exposure once, so that what cannot be priced is refused before the first round."""
        if self.budget is not None and isinstance(self.budget.schedule, Adaptive):
            return  # known only on the way
        for times, _, client in kinds(self.exposures, self.reads):
            for exposure in range(times if self.budget is not None else 1):  # a typed price is the same for all
                self.price(client, exposure, self.currency.zero())

    def _multiplier(self, charge: Amount, reads: int) -> float:
        assert self.pricing is not None
        if (charge, reads) not in self._multipliers:
            self._multipliers[charge, reads] = self.pricing.multiplier([part / UNIT / reads for part in charge])
        return self._multipliers[charge, reads]

    def _share(self, client: int, exposure: int) -> Amount:
        times = self.exposures[client]
        if times not in self._shares:
            assert self.cap is not None
            assert self.budget is not None
            assert not isinstance(self.budget.schedule, Adaptive)
            parts = [integer_shares(self.budget.schedule.shares(times, self.budget.epsilon), part) for part in self.cap]
            self._shares[times] = list(zip(*parts, strict=True))
        return self._shares[times][exposure]

    def _adaptive(self, client: int, exposure: int, spent: Amount, stalled: bool, last: Amount | None) -> Amount:
        assert self.cap is not None
        assert self.budget is not None
        assert isinstance(self.budget.schedule, Adaptive)
        times = self.exposures[client]
        history = [] if last is None else [last[0] / self.cap[0]]
        share = self.budget.schedule.next_share(history, 1 - spent[0] / self.cap[0], times - exposure, stalled, times)
        return tuple(min(int(share * limit), limit - gone) for limit, gone in zip(self.cap, spent, strict=True))


def kinds(exposures: Sequence[int], reads: Sequence[int]) -> list[tuple[int, int, int]]:
    """Every (exposures, reads per exposure) that occurs, and the first client it occurs at."""
    times, each = np.asarray(exposures, np.int64), np.asarray(reads, np.int64)
    width = int(each.max(initial=0)) + 1
    found, first = np.unique(times * width + each, return_index=True)
    return [(*divmod(pair, width), client) for pair, client in zip(found.tolist(), first.tolist(), strict=True)]


def draft(
    offers: Sequence[tuple[Offer, float | None]],
    budget: Budget | None,
    exposures: Sequence[int],
    reads: Mapping[str, Sequence[int]],
    published: float | None = None,
) -> Plan:
    """The plan for the private gates of an algorithm, given with the multiplier typed into each (None: the budget decides)."""
    open_ended = [offer for offer, typed in offers if typed is None]
    if len(open_ended) > 1:
        raise UnsoundGuarantee(
            "two gates want to be priced by one budget",
            why="a record's and a client's promise are different promises, each with its own budget",
            fix="type the multiplier of one of them",
            code="two-promises-one-budget",
        )
    if budget is not None and not open_ended:
        raise UnsoundGuarantee(
            "a privacy budget is given, but nothing in this algorithm adds noise that it could size",
            why="epsilon is a property of a mechanism; without one the promise would be empty",
            fix="choose a private algorithm (sordino algorithms), give it a reader or uplink with noise, or drop [privacy] epsilon",
            code="budget-without-mechanism",
        )
    if budget is None and open_ended:
        raise UnsoundGuarantee(
            "a private algorithm without a budget",
            why="the noise is computed from epsilon and delta",
            fix="set privacy.epsilon and privacy.delta, or type a noise multiplier",
            code="mechanism-without-budget",
        )
    if not offers:
        return Plan(None, None, None, None, exposures, _once(exposures))
    offer, typed = next((pair for pair in offers if pair[1] is None), offers[0])
    per_round = reads["example"] if offer.unit == "example" else _once(exposures)
    longest = max((times * each for times, each, _ in kinds(exposures, per_round)), default=1)
    pricing = _pricing(offer, budget, max(longest, 1), published)
    plan = Plan(offer, pricing, budget, typed, exposures, per_round)
    plan.rehearse()
    return plan


def _once(exposures: Sequence[int]) -> Sequence[int]:
    """One read per exposure, for everybody."""
    return np.broadcast_to(np.int64(1), len(exposures)).data


def _pricing(offer: Offer, budget: Budget | None, longest: int, published: float | None) -> Pricing:
    if published is not None:
        return AsPublished(published)
    if offer.rate < 1 and offer.mechanism.calibration != "pure":  # sampled Laplace is charged as if it were not sampled
        epsilon, delta = (budget.epsilon, budget.delta) if budget else (1.0, 1e-5)
        fixed = budget is not None and isinstance(budget.schedule, Uniform)
        return (counted if fixed else best_order)(offer.rate, epsilon, delta, longest)
    return PRICINGS[offer.mechanism.calibration]


PRICINGS: dict[str, Pricing] = {
    "pure": Pure(),
    "exact": Exact(),
    "classic": Classic(),
    "classic_checked": Classic(checked=True),
}
