"""Privacy plan: a budget divided into one price for each client and each round in which it takes part, before any data
are read.

An algorithm declares its noise mechanism (`Offer`), the cohort the number of rounds in which each client takes part,
the budget what may be spent. The plan divides the budget into integers, one per participation, turns each into a noise
multiplier, and refuses what no longer fits. Everything in it is public. Clients that are alike are priced once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import add
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sordino.accounting.claims import UNIT, ZCDP, Amount, Currency, cap, cost
from sordino.accounting.events import Gaussian, valid_delta
from sordino.accounting.pricing import Counted, Exact, NominalPrice, Pricing, Renyi, best_order, counted_phases
from sordino.budget import Adaptive, Schedule, Uniform, below_unit, integer_shares, lacks_delta
from sordino.errors import POSITIVE, InvalidBudget, UnsoundGuarantee, check_range
from sordino.types import Offer, Unit

ADAPTS = "no release decides what later rounds spend; epsilon {0.epsilon} per {1.unit} ({1.neighbours}) always holds"


@dataclass(frozen=True)
class Budget:
    """Privacy budget of one client for the whole run. Where clients have budgets of their own, `epsilon` is the
    largest."""

    epsilon: float
    delta: float
    schedule: Schedule | Adaptive
    personal: Sequence[float] | None = None  # the epsilon of each client
    lacking: float = 0.0  # of delta: for the deviation of real noise from its ideal law
    aside: float = 0.0  # of delta: the same on a ledger that several runs share, whatever their noise

    def __post_init__(self) -> None:
        fix = "for no privacy leave [privacy] epsilon out"
        check_range("epsilon", self.epsilon, POSITIVE, "epsilon-not-positive", error=InvalidBudget, fix=fix)
        valid_delta(self.delta, zero=True)  # 0 is for pure noise: see planning.prices
        if self.least * UNIT < 1:
            raise below_unit(self.least, self.delta)
        if self.lacking and not self.lacking < (self.aside or self.delta):
            raise lacks_delta(self.delta, self.lacking * (self.delta / self.aside if self.aside else 1.0))

    @property
    def ideal(self) -> float:
        """The part of delta at which noise is priced as if it followed its ideal law; the rest (`lacking`) pays for the
        small deviation of real noise from that law.
        """
        return self.delta - max(self.lacking, self.aside)

    def of(self, client: int) -> float:
        return self.epsilon if self.personal is None else float(self.personal[client])

    @property
    def least(self) -> float:
        """The smallest budget: an order of Renyi divergence that suits it leaves something to everybody."""
        return self.epsilon if self.personal is None else float(min(self.personal))

    @property
    def alike(self) -> bool:
        """True where one noise fits all: everybody grants the same epsilon, in equal parts for all rounds."""
        return self.personal is None and isinstance(self.schedule, Uniform)

    def levels(self) -> dict[float, list[int]]:
        """The clients with each budget, from the smallest budget to the largest; empty where all have the same."""
        if self.personal is None:
            return {}
        each = np.asarray(self.personal)
        return {float(level): np.flatnonzero(each == level).tolist() for level in np.unique(each)}


class Price(NamedTuple):
    """Price of one client's participation in one round: the noise multiplier, and the amount that the ledger charges
    for it."""

    multiplier: float
    charge: Amount


@dataclass
class Plan:
    """Prices (noise multiplier and charge) of all participations under one noise mechanism, the `offer`; without an
    offer there are none."""

    offer: Offer | None
    pricing: Pricing | None
    budget: Budget | None
    fixed: float | None  # multiplier set by the user, if no budget is given
    participations: Sequence[int]  # planned T_k per client (rounds where everyone pays)
    reads: Sequence[int]  # noisy reads per participation, per client
    portion: float = 1.0  # of every client's budget; the rest is for other phases of the run
    _shares: dict[tuple[Amount, int], list[Amount]] = field(default_factory=dict)
    _caps: dict[tuple[float, float], Amount] = field(default_factory=dict)
    _multipliers: dict[tuple[Amount, int], float] = field(default_factory=dict)

    individual: ClassVar[bool] = False  # each client has its own sampling rate, and so its own price
    claimed: ClassVar[bool] = False  # budgets are kept by a published claim only, without a proof

    @property
    def everyone_pays(self) -> bool:
        """True where each round charges every client, sampled or not, so that charges do not reveal who was sampled."""
        return self.offer is not None and self.offer.everyone_pays

    @property
    def one_price(self) -> bool:
        """True where everyone pays the same price: the ledger then needs one account for all clients."""
        return self.everyone_pays and not self.individual

    @property
    def adapts(self) -> bool:
        """True where earlier releases decide how much of the budget a round spends."""
        return self.budget is not None and isinstance(self.budget.schedule, Adaptive)

    def conditions(self, unit: Unit) -> tuple[str, ...]:
        """Extra conditions of a guarantee for this unit that follow from the plan, as with a schedule that adapts."""
        subject = self.offer and self.offer.subject
        return (ADAPTS.format(self.budget, subject),) if self.adapts and subject and subject.unit == unit else ()

    @property
    def currency(self) -> Currency:
        return self.pricing.currency if self.pricing else ZCDP

    def rates(self, t: int, spent: Mapping[int, Amount]) -> NDArray[np.float64] | None:
        """Probability that each client takes part in a round; None where the plan does not decide that. `spent`: what
        clients have spent so far.
        """
        return None

    @property
    def cap(self) -> Amount | None:
        """The most that a client may spend, in the ledger's integers; where budgets differ, for the largest budget."""
        if self.budget is None or self.pricing is None:
            return None
        return self._cap(self.budget.epsilon, self.budget.delta - self.budget.aside)

    def cap_of(self, client: int) -> Amount | None:
        if self.budget is None or self.pricing is None:
            return None
        return self._cap(self.budget.of(client), self.budget.delta - self.budget.aside)

    def _cap(self, epsilon: float, delta: float) -> Amount:
        if (epsilon, delta) not in self._caps:
            assert self.pricing is not None
            self._caps[epsilon, delta] = cap(self.pricing.total(epsilon, delta))
        return self._caps[epsilon, delta]

    def _limit(self, client: int) -> Amount | None:
        """The most that a client may spend in this phase, in the ledger's integers. Real noise leaves a little less, as
        it deviates from its ideal law."""
        if self.budget is None or self.pricing is None:
            return None
        limit = self._cap(self.budget.of(client), self.budget.ideal)
        if isinstance(self.pricing, Counted):
            return tuple(part if i == self.pricing.place else 0 for i, part in enumerate(limit))
        return limit if self.portion == 1 else tuple(int(part * self.portion) for part in limit)

    def price(
        self, client: int, participation: int, spent: Amount, stalled: bool = False, last: Amount | None = None
    ) -> Price | None:
        """Price of a client's participation (numbered from 0); None once its budget is used up: the client then stays
        away.

        `spent` is the client's total so far, `last` its latest charge; `stalled`: the last update was no larger than
        its noise, so an adaptive schedule spends more. Nothing else of the past enters a price, so a resumed run
        computes the same ones.
        """
        if self.pricing is None:
            return None
        if self.budget is None:
            assert self.fixed is not None
            reads = self.reads[client]
            return Price(self.fixed, cost([reads * part for part in self.pricing.cost(self.fixed)]))
        if participation >= self.participations[client]:
            return None
        charge = (
            self._adaptive(client, participation, spent, stalled, last)
            if self.adapts
            else self._share(client, participation)
        )
        if not (any if isinstance(self.pricing, Counted) else all)(charge):  # Counted: 0 for other phases
            return None
        return Price(self._multiplier(charge, self.reads[client]), charge)

    def rehearse(self) -> None:
        """Computes the price of every planned participation: an impossible one is refused before the first round."""
        for times, client in self._kinds():
            # a set multiplier is the same for all; later prices of a schedule that adapts follow from releases
            for participation in range(min(times, 1) if self.budget is None or self.adapts else times):
                if self.price(client, participation, self.currency.zero()) is None and self.budget is not None:
                    raise below_unit(self.budget.of(client), self.budget.delta)

    def prices(self, client: int) -> Iterator[Price]:
        """Prices of all of a client's planned participations, if it attends each one and spends as fast as it may."""
        spent, last = self.currency.zero(), None
        for participation in range(self.participations[client]):
            if (price := self.price(client, participation, spent, stalled=True, last=last)) is None:
                return
            spent, last = tuple(map(add, spent, price.charge)), price.charge
            yield price

    @property
    def different(self) -> list[int]:
        """One client for each group of clients that have the same prices."""
        levels = None if self.budget is None else self.budget.personal
        return [client for client, _ in kinds(self.participations, self.reads, *([] if levels is None else [levels]))]

    def _kinds(self) -> list[tuple[int, int]]:
        """Each group of clients with the same prices: their number of participations, and the first client."""
        return [(self.participations[client], client) for client in self.different]

    @cached_property
    def quietest(self) -> float:
        """The smallest noise multiplier of all planned participations."""
        if self.budget is None:
            assert self.fixed is not None
            return self.fixed
        priced = (
            self.price(client, participation, self.currency.zero())
            for times, client in self._kinds()
            for participation in range(times)
        )
        return min(price.multiplier for price in priced if price is not None)

    def precision(self, client: int) -> float:
        """Precision (inverse noise variance) of this client's upload, relative to that of the most precise client."""
        if self.budget is None or self.pricing is None:
            return 1.0
        return self._per_participation(client) / self._most

    def _per_participation(self, client: int) -> float:
        assert self.pricing is not None
        limit, times = self.cap_of(client), self.participations[client]
        if limit is None or not times:
            return 0.0
        return float(self.pricing.multiplier([part / UNIT / times / self.reads[client] for part in limit]) ** -2)

    @cached_property
    def _most(self) -> float:
        return max((self._per_participation(client) for times, client in self._kinds() if times), default=1.0)

    def _multiplier(self, charge: Amount, reads: int) -> float:
        assert self.pricing is not None
        if (charge, reads) not in self._multipliers:
            self._multipliers[charge, reads] = self.pricing.multiplier([part / UNIT / reads for part in charge])
        return self._multipliers[charge, reads]

    def _share(self, client: int, participation: int) -> Amount:
        times, limit = self.participations[client], self._limit(client)
        assert limit is not None
        if (limit, times) not in self._shares:
            assert self.budget is not None
            assert not isinstance(self.budget.schedule, Adaptive)
            shares = self.budget.schedule.shares(times, self.budget.of(client))
            self._shares[limit, times] = list(zip(*(integer_shares(shares, part) for part in limit), strict=True))
        return self._shares[limit, times][participation]

    def _adaptive(self, client: int, participation: int, spent: Amount, stalled: bool, last: Amount | None) -> Amount:
        limits = self._limit(client)
        assert limits is not None
        assert self.budget is not None
        assert isinstance(self.budget.schedule, Adaptive)
        times = self.participations[client]
        history = [] if last is None else [last[0] / limits[0]]
        share = self.budget.schedule.next_share(
            history, 1 - spent[0] / max(limits[0], 1), times - participation, stalled, times
        )
        return tuple(min(int(share * limit), limit - gone) for limit, gone in zip(limits, spent, strict=True))


def kinds(*columns: Sequence[float]) -> list[tuple[int, int]]:
    """Groups of clients with equal values in all columns: the first client and the size of each group."""
    first, kind = grouped(*columns)
    return list(zip(first, np.bincount(kind).tolist(), strict=True))


def grouped(*columns: Sequence[float]) -> tuple[list[int], NDArray[np.int64]]:
    """The first client of each group of clients with equal values in all columns, and the group of each client."""
    kind = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, which = np.unique(np.asarray(column), return_inverse=True)
        kind = np.unique(kind * len(values) + which, return_inverse=True)[1]  # stays below the number of clients
    return np.unique(kind, return_index=True)[1].tolist(), kind


def draft(
    offers: Sequence[tuple[Offer, float | None]],
    budget: Budget | None,
    participations: Sequence[int],
    reads: Mapping[str, Sequence[int]],
    published: float | None = None,
    portion: float = 1.0,
    currency: Pricing | None = None,
) -> Plan:
    """Computes an algorithm's privacy plan. `offers`: its noise mechanisms, each with the noise multiplier that the
    user set (None: to be calibrated to the budget).

    `portion`: the part of the budget for this phase of a run; `currency`: how noise is priced in all phases that share
    a budget.
    """
    _check_one_promise(offers, budget)
    if not offers:
        return Plan(None, None, None, None, participations, once(participations))
    offer, typed = next((pair for pair in offers if pair[1] is None), offers[0])
    per_round = reads["example"] if offer.subject.unit != "client" else once(participations)
    longest = max(
        (participations[client] * per_round[client] for client, _ in kinds(participations, per_round)), default=1
    )
    pricing = currency or _pricing(offer, budget, max(longest, 1), published)
    plan = Plan(offer, pricing, budget, typed, participations, per_round, portion)
    plan.rehearse()
    return plan


def _check_one_promise(offers: Sequence[tuple[Offer, float | None]], budget: Budget | None) -> None:
    """Refuses a budget without a noise mechanism to calibrate, a budget with two of them, and noise with neither a
    multiplier nor a budget."""
    open_ended = [offer for offer, typed in offers if typed is None]
    if len(open_ended) > 1:
        raise UnsoundGuarantee(
            "privacy.epsilon would have to set the noise of two gates",
            why="the promise about a record and the promise about a client are different, and each needs its own "
            "budget",
            fix="set the noise multiplier of one of the gates by hand",
            code="two-promises-one-budget",
        )
    if budget is not None and not open_ended:
        raise UnsoundGuarantee(
            f"privacy.epsilon is {budget.epsilon:g}, and nothing in this algorithm adds noise that it could size",
            why="the noise has a multiplier of its own"
            if offers
            else "epsilon is a property of noise; without noise the promise would be empty",
            fix="set privacy={} to run without a budget (the default experiment has one); or choose a private "
            "algorithm (`sordino algorithms` lists them), or add a reader or an uplink with noise",
            code="budget-without-mechanism",
        )
    if budget is None and open_ended:
        raise UnsoundGuarantee(
            "a private algorithm without a budget",
            why="the size of the noise is computed from epsilon and delta",
            fix="set privacy.epsilon and privacy.delta, or set a noise multiplier by hand",
            code="mechanism-without-budget",
        )
    if budget is not None and budget.personal is not None and any(offer.everyone_pays for offer in open_ended):
        raise UnsoundGuarantee(
            "personal budgets in a hidden cohort with one sampling rate for all",
            why="all clients are drawn and charged alike, so no client could spend more than the smallest budget "
            "allows",
            fix='set cohort = {name = "by_budget", size = ...}, or give one epsilon for all',
            code="personal-budgets-one-rate",
        )


def shared_currency(
    offers: Sequence[tuple[Offer, int]], portions: Sequence[float], budget: Budget, alone: bool
) -> Sequence[Pricing]:
    """Pricing for each of several phases that share one budget, in a measure of privacy loss that adds up over all of
    them. `offers`: the noise mechanism of each phase and its number of releases; `portions`: the part of the budget for
    each phase. Without client or example sampling each phase is priced exactly. With sampling their releases are
    accounted for together, if all clients have the same budget, in equal shares for all rounds, and no other run pays
    from the same ledger (`alone`); otherwise by Renyi divergence at one order."""
    epsilon, delta = budget.least, budget.ideal
    sampled = [(offer.rate, longest) for offer, longest in offers if offer.rate < 1]
    if not sampled:
        return [offer.mechanism.pricing for offer, _ in offers]
    if alone and budget.alike:
        phases = ((o.rate, times, part) for (o, times), part in zip(offers, portions, strict=True))
        return counted_phases(tuple(phases), epsilon, delta)
    rate, longest = max(sampled, key=lambda pair: pair[1])
    order = best_order(rate, epsilon, delta, longest).order
    return [Renyi(offer.rate, order) for offer, _ in offers]


def exactly_gaussian(offer: Offer) -> bool:
    """True for noise that is priced and accounted for as exact Gaussian noise."""
    return offer.mechanism.pricing == Exact() and offer.mechanism.event(1.0) == Gaussian(1.0)


def once(participations: Sequence[int]) -> Sequence[int]:
    """Number of times that each client's data are read in one participation, for mechanisms that read once: 1 for every
    client.
    """
    return np.broadcast_to(np.int64(1), len(participations)).data


def _pricing(offer: Offer, budget: Budget | None, longest: int, published: float | None) -> Pricing:
    if published is not None:
        return NominalPrice(published)
    pricing = offer.mechanism.pricing
    if offer.rate == 1:
        return pricing
    epsilon, delta = (budget.least, budget.ideal) if budget else (1.0, 1e-5)
    return pricing.sampled(offer.rate, epsilon, delta, longest, budget is not None and budget.alike)
