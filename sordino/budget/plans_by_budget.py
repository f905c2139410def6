"""Plans for cohorts sampled by personal budgets: rates, noise and payments of each round (cohorts:
`sampling.by_budget`).

Everything is computed from public numbers. `RatesPlan` and `ThresholdPlan` are fixed before training; `PublishedPlan`
depends on what is left of the budgets, as its publication does, and proves nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sordino.accounting.accountants import exact_multiplier
from sordino.accounting.claims import APPROX, UNIT, Amount, Currency, cap, cost
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.accounting.pricing import NUDGE, Counted, Exact
from sordino.budget import Adaptive, Uniform
from sordino.budget.plan import Budget, Plan, Price, exactly_gaussian, once
from sordino.errors import UnsoundGuarantee
from sordino.sampling.by_budget import (
    ByBudget,
    Personal,
    Threshold,
    ThresholdPublished,
    balanced,
    included,
    planned,
    threshold,
)
from sordino.types import Offer

Floats = NDArray[np.float64]
Spent = Mapping[int, tuple[int, ...]]


@dataclass
class RatesPlan(Plan):
    """Plan with the same noise multiplier for all clients, and a sampling rate for each; every client pays in every
    round.
    """

    each: Floats = field(default_factory=lambda: np.empty(0))

    def rates(self, t: int, spent: Spent) -> Floats:
        return self.each


@dataclass
class ThresholdPlan(Plan):
    """Plan of personal budgets by a threshold epsilon (Jorgensen, Yu and Cormode, ICDE 2015), above which clients are
    always sampled. Threshold, sampling rates and payments of each round are fixed in advance; every client pays an
    (epsilon, delta) of its own in every round, sampled or not.
    """

    rows: list[tuple[float, Floats, Floats]] = field(default_factory=list)  # tau, rates, payments
    individual: ClassVar[bool] = True

    currency = APPROX

    @property
    def _delta(self) -> float:
        assert self.budget is not None
        return self.budget.ideal / len(self.rows)

    def _cap(self, epsilon: float, delta: float) -> Amount:
        return cap((epsilon, delta))

    def rates(self, t: int, spent: Spent) -> Floats:
        return self.rows[t][1] if t < len(self.rows) else np.zeros_like(self.rows[0][1])

    def price(
        self, client: int, participation: int, spent: Amount, stalled: bool = False, last: Amount | None = None
    ) -> Price | None:
        if participation >= len(self.rows):
            return None
        tau, rates, paid = self.rows[participation]
        limit = self.cap_of(client)
        assert limit is not None
        wanted = cost((float(paid[client]), float(rates[client]) * self._delta))
        left = [granted - gone for granted, gone in zip(limit, spent, strict=True)]
        if any(part - rest > len(self.rows) for part, rest in zip(wanted, left, strict=True)):
            return None  # not rounding: this budget is spent
        charge = tuple(map(min, wanted, left))  # every round was rounded up by less than a pico-unit
        return Price(exact_multiplier(tau, self._delta) * NUDGE, charge)

    def rehearse(self) -> None:
        pass


@dataclass
class PublishedPlan(Plan):
    """Plan as published, whose thresholds and noise depend on what is left of the budgets. Only sampled clients pay;
    the publication can be read in three ways, which differ in what they pay.
    """

    cohort: ThresholdPublished = field(default_factory=ThresholdPublished)
    rounds: int = 1
    _tau: float = math.nan
    claimed: ClassVar[bool] = True

    currency = Currency("published epsilon", ("epsilon",), "all")

    def _cap(self, epsilon: float, delta: float) -> Amount:
        return cap((epsilon,))

    def rates(self, t: int, spent: Spent) -> Floats:
        left = self.left(spent)
        active = left > self.cohort.retire_below * self._granted.min()
        if not active.any():
            return np.zeros_like(left)
        self._tau = threshold(left[active], self.cohort.by)
        return np.where(active, included(left, self._tau), 0.0)

    def left(self, spent: Spent) -> Floats:
        gone = np.zeros_like(self._granted)
        for client, amount in spent.items():
            gone[client] = amount[0] / UNIT
        return np.maximum(self._granted - gone, 0.0)

    @cached_property
    def _granted(self) -> Floats:
        assert self.budget is not None
        return np.array([self.budget.of(client) for client in range(len(self.participations))])

    def price(
        self, client: int, participation: int, spent: Amount, stalled: bool = False, last: Amount | None = None
    ) -> Price | None:
        assert self.budget is not None
        limit = self.cap_of(client)
        assert limit is not None
        if math.isnan(self._tau) or limit[0] <= spent[0]:
            return None
        multiplier = exact_multiplier(self._tau, self.budget.ideal, self.rounds)
        charge = {
            "one_round": epsilon_of(1 / multiplier, self.budget.ideal),
            "share": self._tau / self.rounds,
            "full_round": self._tau,
        }[self.cohort.cost]
        return Price(multiplier, (min(cost((charge,))[0], limit[0] - spent[0]),))

    def rehearse(self) -> None:
        pass


def draft_personal(
    cohort: Personal,
    offers: Sequence[tuple[Offer, float | None]],
    budget: Budget | None,
    rounds: int,
    clients: int,
) -> Plan:
    """Computes the plan of a cohort with personal budgets, for an algorithm's central noise (or, as published, for
    noise at clients).
    """
    offer, budget = _fitting(cohort, offers, budget)
    budgets, participations = [budget.of(client) for client in range(clients)], cohort.participations(rounds, clients)
    common = (offer, Exact(), budget, None, participations, once(participations))
    if isinstance(cohort, ByBudget):
        multiplier, each = balanced(budgets, budget.ideal, rounds, cohort.size)
        who = hashlib.sha256(each.tobytes()).hexdigest()[:8]  # other rates for the same clients are another plan
        pricing = Counted(f"rates by budget {who} z={multiplier:.9g}", multiplier, (rounds,))
        return RatesPlan(offer, pricing, budget, None, participations, once(participations), each=each)
    if isinstance(cohort, Threshold):
        assert not isinstance(budget.schedule, Adaptive), "refused above"
        return ThresholdPlan(*common, rows=planned(budgets, budget.schedule.shares(rounds, budget.epsilon), cohort.by))
    assert isinstance(cohort, ThresholdPublished)
    threshold(np.array(budgets), cohort.by)  # that of the first round, which refuses before it begins
    return PublishedPlan(*common, cohort=cohort, rounds=rounds)


def _fitting(
    cohort: Personal, offers: Sequence[tuple[Offer, float | None]], budget: Budget | None
) -> tuple[Offer, Budget]:
    """The only noise mechanism, and the budget; an error if either is not what a cohort with personal budgets needs."""
    if len(offers) != 1 or offers[0][1] is not None:
        raise UnsoundGuarantee(
            f"a {type(cohort).__name__} cohort with {len(offers)} sources of noise"
            + (", one of them with a multiplier set by hand" if any(typed is not None for _, typed in offers) else ""),
            why="this cohort keeps every client within budget by choosing the size of the noise, and it can do so "
            "for exactly one noise",
            fix="use one private uplink without a multiplier of its own, and an open reader",
            code="personal-cohort-needs-its-noise",
        )
    offer = offers[0][0]
    if budget is None:
        raise UnsoundGuarantee(
            "this cohort is drawn by budgets, but no budget is given",
            why="who takes part is computed from epsilon and delta",
            fix='set privacy.epsilon to a number, or to a rule such as {groups = {"1" = 0.5, "4" = 0.5}}',
            code="mechanism-without-budget",
        )
    local, published = offer.subject.adversary == "server", isinstance(cohort, ThresholdPublished)
    if offer.subject.unit != "client" or not exactly_gaussian(offer) or local != published:
        raise UnsoundGuarantee(
            f"a {type(cohort).__name__} cohort does not fit this noise",
            why="in the published method each client adds noise to its own upload, and all parties see who takes part"
            if published
            else "personal rates amplify only central Gaussian noise on sums of clipped updates that hides the cohort",
            fix='use algorithm = {name = "pdp_prox", mechanism = "%s"}, and no uplink of its own'
            % ("published" if published else "rates" if isinstance(cohort, ByBudget) else "threshold"),
            code="personal-cohort-needs-its-noise",
        )
    if isinstance(budget.schedule, Adaptive):
        raise UnsoundGuarantee(
            "an adaptive schedule, with rates that were planned in advance",
            why="rates that depend on earlier releases would reveal who took part",
            fix='set schedule = {name = "uniform"}, or use a visible cohort',
            code="personal-schedule",
        )
    if isinstance(cohort, ByBudget) and not isinstance(budget.schedule, Uniform):
        raise UnsoundGuarantee(
            "rates by budget, with a schedule that is not uniform",
            why="the rates were computed for the same noise in every round",
            fix='set schedule = {name = "uniform"}, or cohort = {name = "threshold"}',
            code="personal-schedule",
        )
    return offer, budget
