"""The plan: participations known before training, integer shares that never exceed a cap, and who pays in which round.

The formulas of shares, of Gaussian DP and of the Renyi loss are written anew here; the rounds are played without
training.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from sordino.accounting.claims import UNIT, Subject
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.accounting.pricing import Renyi
from sordino.accounting.statement import statement
from sordino.budget import Adaptive, Explicit, Geometric, LinearBack, LinearFront, Schedule, Uniform
from sordino.budget.plan import Budget, Plan, Price, draft
from sordino.errors import UnsoundGuarantee
from sordino.ledger.books import LedgerScope
from sordino.ledger.ledger import MEMORY, Ledger
from sordino.planning.accounts import Accounts
from sordino.planning.planner import Planner
from sordino.privacy.noise import GaussianNoise, LaplaceNoise
from sordino.runs.simulation import simulated
from sordino.types import Offer
from tests.budget.charged import experiment

quick = settings(deadline=None, derandomize=True, max_examples=60)


EXAMPLE = Subject(unit="example", neighbours="replace", adversary="server")
LAWS: dict[str, Offer] = {
    "pure": Offer(EXAMPLE, LaplaceNoise(), False),
    "classic": Offer(EXAMPLE, GaussianNoise("classic"), False),
    "exact": Offer(EXAMPLE, GaussianNoise(), False),
    "renyi": Offer(EXAMPLE.beside(neighbours="zero_out"), GaussianNoise(), False, rate=0.1),
}


# the share of participation j = 1..T, as printed in the source
SHARES: dict[str, tuple[Schedule, Callable[[int, int], Fraction]]] = {
    "uniform": (Uniform(), lambda j, t: Fraction(1, t)),
    "linear_front": (LinearFront(), lambda j, t: Fraction(2 * (t - j + 1), t * (t + 1))),
    "linear_back": (LinearBack(), lambda j, t: Fraction(2 * j, t * (t + 1))),
    "geometric": (Geometric(0.5), lambda j, t: Fraction(1, 2 ** (j - 1)) * Fraction(1, 2) / (1 - Fraction(1, 2**t))),
    "list": (
        Explicit(tuple(range(1, 31))),
        lambda j, t: Fraction(2 * j, t * (t + 1)),  # the weights 1, 2, ... of those that are used
    ),
}


def plan_of(
    law: str, epsilon: float, delta: float, schedule: Schedule | Adaptive, times: list[int], reads: int = 1
) -> Plan:
    return draft([(LAWS[law], None)], Budget(epsilon, delta, schedule), times, {"example": [reads] * len(times)})


def charges(plan: Plan, client: int) -> list[Price]:
    priced = [plan.price(client, j, plan.currency.zero()) for j in range(plan.participations[client])]
    assert plan.price(client, plan.participations[client], plan.currency.zero()) is None  # one more is refused
    return [price for price in priced if price is not None]


# shares and prices ----------------------------------------------------------------------------------------------------
@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("law", "schedule"), [pair for pair in itertools.product(LAWS, SHARES) if pair != ("renyi", "uniform")]
)
def test_shares_are_exact_and_fill_the_cap_to_the_last_unit(law: str, schedule: str) -> None:
    made, share = SHARES[schedule]
    # at the 30th halving a delta of 1e-5 has no whole unit left, and the participation is refused
    times = [1, 2, 4, 7, 30] if law != "classic" else [1, 2, 4, 7]
    plan = plan_of(law, 0.8, 1e-5, made, times)
    assert plan.cap is not None
    for client, t in enumerate(times):
        priced = charges(plan, client)
        for part, cap in enumerate(plan.cap):
            paid = [price.charge[part] for price in priced]
            assert sum(paid) == cap
            assert all(abs(p - cap * share(j, t)) <= 1 + cap * Fraction(1, 10**14) for j, p in enumerate(paid, 1))


def test_the_numbers_of_the_source() -> None:
    def shares(schedule: Schedule) -> list[float]:
        return [price.charge[0] / UNIT for price in charges(plan_of("pure", 1.0, 1e-5, schedule, [4]), 0)]

    assert shares(Geometric(0.5)) == pytest.approx([8 / 15, 4 / 15, 2 / 15, 1 / 15], abs=1e-11)
    assert shares(LinearFront()) == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=1e-11)

    def multiplier(law: str, epsilon: float, times: int) -> float:
        return charges(plan_of(law, epsilon, 1e-5, Uniform(), [times]), 0)[0].multiplier

    assert multiplier("exact", 1.0, 1) == pytest.approx(3.730632, rel=1e-6)
    assert multiplier("exact", 10.0, 20) == pytest.approx(2.2356, rel=2e-5)
    assert multiplier("classic", 10.0, 20) == pytest.approx(10.856077, rel=1e-6)  # 0.5 and 5e-7 a time
    assert multiplier("pure", 30.0, 20) * 2 * 0.1 * 50 / 600 == pytest.approx(0.01111111, rel=1e-6)
    equal = Explicit((1.0,) * 20)  # listed, so that it is priced release by release in Renyi loss
    sampled = draft([(LAWS["renyi"]._replace(rate=0.01), None)], Budget(1.0, 1e-5, equal), [20], {"example": [1]})
    assert charges(sampled, 0)[0].multiplier == pytest.approx(1.0322, rel=1e-4)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Balle and Wang 2018, by scipy."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)))


def renyi_loss(rate: float, z: float, order: int) -> float:
    """Mironov, Talwar and Zhang 2019, by summation."""
    terms = [
        math.comb(order, j) * (1 - rate) ** (order - j) * rate**j * math.exp(j * (j - 1) / (2 * z * z))
        for j in range(order + 1)
    ]
    return math.log(math.fsum(terms)) / (order - 1)


@quick
@given(
    st.floats(0.05, 20.0),
    st.sampled_from([1e-3, 1e-5, 1e-8]),
    st.integers(1, 25),
    st.integers(1, 5),
    st.sampled_from(sorted(SHARES)),
)
def test_what_a_client_is_charged_is_what_its_noise_costs(
    epsilon: float, delta: float, times: int, reads: int, schedule: str
) -> None:
    """All participations and reads of one client, composed anew, stay within the budget and use it up."""
    made, _ = SHARES[schedule]
    gauss = [p.multiplier for p in charges(plan_of("exact", epsilon, delta, made, [times], reads), 0)]
    mu = math.sqrt(reads * math.fsum(1 / z**2 for z in gauss))
    assert gaussian_delta(epsilon, mu) <= delta * (1 + 1e-9)
    assert gaussian_delta(epsilon, mu * 1.001) > delta
    laplace = [p.multiplier for p in charges(plan_of("pure", epsilon, delta, made, [times], reads), 0)]
    assert epsilon * (1 - 1e-9) <= reads * math.fsum(1 / b for b in laplace) <= epsilon


@pytest.mark.parametrize("law", ["pure", "exact"])
def test_a_typed_noise_pays_for_every_read(law: str, tmp_path: Path) -> None:
    """On a ledger whose cap is for four reads, a participation of five is refused, and one of four granted; the twin forgets
    its reads.
    """
    typed = [(LAWS[law], 2.0)]
    one, four, five = (
        draft(typed, None, [3], {"example": [reads]}).price(0, 0, (0,)).charge  # type: ignore[union-attr]
        for reads in (1, 4, 5)
    )
    (part,) = draft(typed, None, [3], {"example": [1]}).pricing.cost(2.0)  # type: ignore[union-attr]
    assert part == pytest.approx(0.5 if law == "pure" else 1 / 8)
    assert [charge[0] for charge in (one, four, five)] == [math.ceil(reads * part * UNIT) for reads in (1, 4, 5)]
    scope = LedgerScope("digits", EXAMPLE, 1e-5, draft(typed, None, [3], {"example": [1]}).currency)
    with Ledger.open(tmp_path / "ledger.sqlite", scope, {"0": four}) as ledger:
        assert not ledger.reserve("five", {"0": five}, b"")
        assert ledger.reserve("four", {"0": four}, b"")
        assert not ledger.reserve("one more", {"0": one}, b"")


@pytest.mark.parametrize(
    ("epsilon", "times", "reads"),
    [(8.0, 5, 1), *(pytest.param(*p, marks=pytest.mark.slow) for p in ((1.0, 20, 1), (4.0, 50, 3)))],
)
def test_sampled_noise_stays_within_its_budget(epsilon: float, times: int, reads: int) -> None:
    plan = plan_of("renyi", epsilon, 1e-5, LinearFront(), [times], reads)
    assert isinstance(plan.pricing, Renyi)
    order = plan.pricing.order
    loss = reads * math.fsum(renyi_loss(0.1, p.multiplier, order) for p in charges(plan, 0))
    total = loss + math.log1p(-1 / order) - math.log(1e-5 * order) / (order - 1)  # Canonne, Kamath and Steinke 2020
    assert epsilon * 0.999 < total <= epsilon


@pytest.mark.parametrize("rounds", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_fixed_plan_of_sampled_releases_counts_them(rounds: int) -> None:
    """Accounted as a whole it takes less noise than release by release, and every client pays with whole releases of
    its own plan.
    """

    def of(schedule: Schedule, times: list[int]) -> Plan:
        offer = LAWS["renyi"]._replace(rate=0.5)
        return draft([(offer, None)], Budget(8.0, 1e-3, schedule), times, {"example": [1] * len(times)})

    plan = of(Uniform(), [rounds, rounds // 2])
    one_by_one = of(Explicit((1.0,) * rounds), [rounds])
    assert plan.cap == (rounds * UNIT,)
    assert [price.charge for price in charges(plan, 0)] == [(UNIT,)] * rounds
    assert [price.charge for price in charges(plan, 1)] == [(2 * UNIT,)] * (
        rounds // 2
    )  # its turns are all it was granted
    z = {price.multiplier for client in (0, 1) for price in charges(plan, client)}
    assert len(z) == 1
    assert 0.5 * charges(one_by_one, 0)[0].multiplier < z.pop() < charges(one_by_one, 0)[0].multiplier


def test_the_step_size_does_not_change_the_price() -> None:
    prices = []
    for lr in (0.1, 0.05):
        parts = simulated(experiment({"name": "gaussian_gdp", "lr": lr}))
        prices.append([parts.setup.plan.price(k, 0, (0,)) for k in range(5)])
    assert prices[0] == prices[1]


def test_what_cannot_be_priced_is_refused_before_the_first_round() -> None:
    """Clients 3 and 4 have one participation: their share alone is above what the textbook formula is proved for."""
    parts = simulated(experiment({"name": "gaussian_simple"}, privacy={"epsilon": 1.5}))
    assert sorted(set(parts.setup.cohort.participations(4, 5))) == [1, 2]
    with pytest.raises(UnsoundGuarantee):
        _ = parts.setup.plan


# adaptive -------------------------------------------------------------------------------------------------------------
@quick
@given(
    st.lists(st.booleans(), min_size=1, max_size=40),
    st.sampled_from(["pure", "exact"]),
    st.floats(0.1, 1.0),
    st.floats(0.0, 5.0),
    st.floats(0.01, 0.1),
)
def test_adaptive_spending_never_exceeds_the_cap(
    stalls: list[bool], law: str, start: float, growth: float, floor: float
) -> None:
    times = len(stalls)
    plan = plan_of(law, 3.0, 1e-5, Adaptive(start, growth, floor), [times])
    assert plan.cap is not None
    spent: tuple[int, ...] = (0,)
    last: tuple[int, ...] | None = None
    for j, stalled in enumerate(stalls):
        price = plan.price(0, j, spent, stalled, last)
        assert price is not None  # the floor keeps something for everyone to come
        if last is not None:
            assert price.charge[0] <= last[0] * (1 + growth * stalled) + 2
        last, spent = price.charge, (spent[0] + price.charge[0],)
        assert spent[0] <= plan.cap[0]
    assert plan.price(0, times, spent, True, last) is None


def test_adaptive_spending_grows_after_a_stall_and_only_then() -> None:
    plan = plan_of("pure", 1.0, 1e-5, Adaptive(0.5, 0.5, 0.1), [10])
    paid: list[int] = []
    for j in range(4):
        price = plan.price(0, j, (sum(paid),), j == 2, (paid[-1],) if paid else None)
        assert price is not None
        paid.append(price.charge[0])
    assert [p / UNIT for p in paid] == pytest.approx([0.05, 0.05, 0.075, 0.075], abs=1e-11)


def lost(plan: Plan, printed: Callable[[float], float], delta: float, centre: float) -> float:
    """By how much the law of two adaptive rounds exceeds e^epsilon times its neighbour's, over delta. `printed`: the
    epsilon said once mu is known. The first round stalls where its output is within 1.1 deviations of 0.
    """
    first = plan.price(0, 0, (0,))
    assert first is not None
    y = np.linspace(-12, 20, 200_001) + centre
    here, there = norm.logpdf(y, centre + 1 / first.multiplier), norm.logpdf(y, centre)
    total = 0.0
    for stalled, region in ((True, np.abs(y) <= 1.1), (False, np.abs(y) > 1.1)):
        second = plan.price(0, 1, first.charge, stalled, first.charge)
        assert second is not None
        mu = 1 / second.multiplier
        left = printed(math.hypot(1 / first.multiplier, mu)) - here + there
        tail = np.exp(np.minimum(left, 700.0) + norm.logcdf(-mu / 2 - left / mu))
        exceeds = np.clip(norm.cdf(mu / 2 - left / mu) - tail, 0, 1)
        total += float(np.trapezoid(np.where(region, np.exp(here) * exceeds, 0.0), y))
    return total / delta


def test_what_an_adaptive_plan_has_spent_is_no_promise_and_its_budget_is() -> None:
    # integrated to 1e-6, and no draw: what was spent is known only from what was released
    plan, delta = plan_of("exact", 8.0, 1e-4, Adaptive(0.5, 5.0, 0.1), [2]), 1e-4
    assert lost(plan, partial(epsilon_of, delta=delta), delta, centre=-2.0) > 1.3
    assert 0.3 < lost(plan, lambda mu: 8.0, delta, centre=-2.0) <= 1
    assert "epsilon 8" in "".join(plan.conditions("example"))
    assert plan.conditions("client") == plan_of("exact", 8.0, 1e-4, Uniform(), [2]).conditions("example") == ()


def test_no_run_costs_more_than_an_adaptive_schedule_is_planned_to() -> None:
    """Whatever its releases look like: three rounds, after each of which training may have stalled or not."""
    table = {"name": "gaussian_gdp", "clip": 1.0}
    privacy = {"epsilon": 4.0, "schedule": {"name": "adaptive"}}
    phase = simulated(experiment(table, privacy=privacy, rounds=3, cohort={"name": "everyone"})).setup
    promise, found = Planner(phase).promise, []
    for stalls in itertools.product([False, True], repeat=2):
        books = phase.accounts(Accounts, "", MEMORY, "tried")
        for t, stalled in enumerate((False, *stalls)):
            now = books.open(t)
            books.reserve(now, books.prices(now, range(books.population), stalled))
        rows = statement([entry.note for entry in books.ledger.entries()], books.population, 1e-5)
        found.append(max(row.epsilon for row in rows if row.finite))
    assert promise is not None
    assert len({round(epsilon, 6) for epsilon in found}) == 4
    assert promise.epsilon == pytest.approx(max(found), rel=1e-9)


def test_secret_coins_may_draw_anybody() -> None:
    """In a cohort of coins where only the drawn pay, the plan is of a client that is drawn in every round, whichever
    way the coins fall while it is made. A plan of its own coins passes if they draw somebody in all six rounds, three
    times: with a chance of (5 * 0.3^6)^3 = 5e-8."""
    table = {"name": "whole_update", "radius": 0.5, "local_steps": 1, "batch_size": "full"}
    privacy = {"epsilon": 4.0, "delta": 1e-3, "noise": "system"}
    coins = experiment(table, privacy=privacy, rounds=6, cohort={"name": "poisson", "rate": 0.3})
    for _ in range(3):
        promise = Planner(simulated(coins).setup).promise
        assert promise is not None
        assert promise.epsilon == pytest.approx(4.0, rel=1e-6)


# a participation without a price --------------------------------------------------------------------------------------
@quick
@given(
    st.sampled_from(list(LAWS)),
    st.integers(-25, 1),
    st.sampled_from([Uniform(), Geometric(0.2), Geometric(30.0), Explicit((1.0, 1e-13, 1.0, *[1.0] * 9)), Adaptive()]),
    st.integers(1, 12),
)
def test_each_planned_participation_has_a_price_or_the_plan_is_refused(
    law: str, power: int, schedule: Schedule | Adaptive, times: int
) -> None:
    """A client without a price stays away, and takes part in no later round: its participations are not counted on."""
    try:
        plan = plan_of(law, 10.0**power, 1e-5, schedule, [times])
    except UnsoundGuarantee as refused:
        if refused.code not in ("budget-below-unit", "budget-below-conversion", "classic-gaussian-needs-small-epsilon"):
            raise
        return
    spent = plan.currency.zero()
    for participation in range(times):
        price = plan.price(0, participation, spent)
        assert price is not None
        spent = tuple(a + b for a, b in zip(spent, price.charge, strict=True))


@pytest.mark.parametrize("schedule", [Uniform(), Adaptive()], ids=["uniform", "adaptive"])
@pytest.mark.parametrize(
    ("law", "epsilon", "delta"),
    [("pure", 1e-12, 1e-5), ("classic", 1e-12, 1e-5), ("exact", 1e-13, 1e-5), ("exact", 1e-9, 1e-99)],
)
def test_a_budget_below_the_unit_is_refused(
    law: str, epsilon: float, delta: float, schedule: Schedule | Adaptive
) -> None:
    with pytest.raises(UnsoundGuarantee) as refused:
        plan_of(law, epsilon, delta, schedule, [2])
    assert refused.value.code == "budget-below-unit"
