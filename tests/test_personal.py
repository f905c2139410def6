"""Personal budgets: the arithmetic of rates, thresholds and waste by closed forms and by enumeration, and how budgets
are read.

Numbers are those of the sources or of exact accountants; the published mechanism is held to what it really loses, not
to what it claims.
"""

from __future__ import annotations

import itertools
import math
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from personal_budgets import DELTA, GROUPS, MECHANISMS, ROBIN, made

from sordino import keys
from sordino.budget import client_budgets
from sordino.budget.plans_by_budget import PublishedPlan, ThresholdPlan
from sordino.errors import InvalidBudget
from sordino.ledger.accountants import best
from sordino.ledger.calibrate import exact_multiplier
from sordino.ledger.currency import UNIT
from sordino.ledger.events import Gaussian, Poisson, Repeat
from sordino.ledger.gaussian_dp import epsilon_of, mu_of
from sordino.ledger.thresholds import (
    Waste,
    amplified,
    balanced,
    included,
    planned,
    rates,
    spent,
    threshold,
    waste,
    wasted,
)


def each(*values: float) -> Any:
    return np.array(values)


# sampling by threshold ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "tau", "rate"),
    [(0.5, 1, 0.377541), (0.1, 1, 0.061207), (1, 2, 0.268941), (1, 4, 0.032059), (2, 1, 1), (1, 1, 1)],
)
def test_inclusion(budget: float, tau: float, rate: float) -> None:
    assert included(each(budget), tau)[0] == pytest.approx(rate, abs=5e-7)


@given(st.floats(1e-3, 8), st.floats(1e-3, 8))
def test_one_hidden_sample_costs_the_budget_and_no_more(budget: float, tau: float) -> None:
    assert amplified(float(included(each(budget), tau)[0]), tau) == pytest.approx(min(budget, tau), rel=1e-9)


def loss_ratio(outputs: tuple[int, ...], rate: float, tau: float, stops: bool) -> float:
    """ln of P[outputs | client in] / P[outputs | client out], for rounds of randomised response on a hidden sample.

    `stops`: the client is charged when it is drawn and, its budget used up, takes no part any more (as published); else
    it tosses in every round.
    """
    yes = math.exp(tau)  # P1(1)/P0(1), and P1(0)/P0(0) is its inverse
    each_round = [yes if o else 1 / yes for o in outputs]
    if not stops:
        return sum(math.log(1 - rate + rate * r) for r in each_round)
    untouched = (1 - rate) ** len(outputs)
    return math.log(untouched + sum((1 - rate) ** t * rate * r for t, r in enumerate(each_round)))


def worst(rate: float, tau: float, rounds: int, stops: bool) -> float:
    return max(loss_ratio(o, rate, tau, stops) for o in itertools.product((0, 1), repeat=rounds))


def recycled(rate: float, tau: float, rounds: int) -> float:
    """The pure loss if only those who were drawn are charged, and stop after their first round."""
    return math.log1p(-math.expm1(rounds * math.log1p(-rate)) * math.expm1(tau))


@pytest.mark.parametrize(("rounds", "loss"), [(1, 0.1), (2, 0.186), (5, 0.382), (10, 0.590), (20, 0.803), (50, 0.973)])
def test_recycling_loses_more_than_it_says(rounds: int, loss: float) -> None:
    rate = float(included(each(0.1), 1.0)[0])
    assert recycled(rate, 1.0, rounds) == pytest.approx(loss, abs=6e-4)
    if rounds <= 10:
        assert worst(rate, 1.0, rounds, stops=True) == pytest.approx(recycled(rate, 1.0, rounds), rel=1e-12)
    assert (recycled(rate, 1.0, rounds) > 0.1 + 1e-9) == (rounds > 1)  # it had promised 0.1


def test_the_enumeration_over_a_thousand_outputs() -> None:
    rate = float(included(each(0.1), 1.0)[0])
    assert worst(rate, 1.0, 10, stops=True) == pytest.approx(0.59034, abs=5e-6)
    assert worst(rate, 1.0, 8, stops=False) == pytest.approx(
        8 * 0.1, rel=1e-9
    )  # charging everybody every round is exact


# what a threshold wastes ----------------------------------------------------------------------------------------------


def test_waste_at_the_budgets_themselves() -> None:
    phi = each(0.1, 0.5, 1.0)
    assert [waste(phi, t) for t in phi] == pytest.approx([1.3, 0.440263, 0.405109], abs=5e-7)


@pytest.mark.parametrize(
    ("phi", "least", "at"),
    [((0.1, 0.5, 1), 0.276723, 0.768719), ((1, 2, 4), 1.555495, 2.247193), ((0.5, 0.5, 0.5, 1), 0.359299, 0.581067)],
)
def test_the_least_waste(phi: tuple[float, ...], least: float, at: float) -> None:
    tau = threshold(each(*phi))
    assert tau == pytest.approx(at, abs=2e-6)
    assert waste(each(*phi), tau) == pytest.approx(least, abs=5e-7)


def test_its_parts_and_the_other_rules() -> None:
    phi = each(0.1, 0.5, 1.0)
    assert wasted(phi, 0.768719) == pytest.approx((0.310564, 0.231281), abs=2e-6)
    assert waste(phi, 0.7687, Waste("sum")) == pytest.approx(0.5418, abs=1e-4)
    assert waste(phi, 1.0, Waste("sum")) == pytest.approx(
        0.4051, abs=1e-4
    )  # less: the weighted rule favours equal parts, not little waste
    assert threshold(phi, Waste("sum")) == pytest.approx(1.0)
    assert waste(phi, 0.5, Waste("count")) == pytest.approx(0.7 * (1 - float(included(phi, 0.5)[0])) + 0.3 * 0.5)


@given(st.lists(st.floats(0.05, 8), min_size=1, max_size=6), st.sampled_from(["weighted", "sum", "fixed", "count"]))
@settings(max_examples=25, deadline=None)
def test_no_grid_point_wastes_less(phi: list[float], name: Any) -> None:
    grid, rule = np.linspace(min(phi), max(phi), 301), Waste(name, (0.4, 0.6))
    assert (
        waste(each(*phi), threshold(each(*phi), rule), rule)
        <= min(waste(each(*phi), float(t), rule) for t in grid) + 1e-6
    )


def test_equal_budgets_waste_nothing_and_none_are_refused() -> None:
    assert threshold(each(0.7, 0.7)) == 0.7
    assert waste(each(0.7, 0.7), 0.7) == 0
    for bad in (each(), each(0.0, 1.0), each(math.nan)):
        with pytest.raises(InvalidBudget) as refusal:
            threshold(bad)
        assert refusal.value.code == "threshold-without-budgets"


# noise and rates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "rounds", "z"), [(1, 100, 37.3063), (2, 100, 19.9381), (4, 100, 10.8116), (1, 10, 11.7973)]
)
def test_noise_of_unsampled_exposures(epsilon: float, rounds: int, z: float) -> None:
    assert exact_multiplier(epsilon, DELTA, rounds) == pytest.approx(z, rel=1e-5)


@pytest.mark.parametrize(
    ("epsilon", "mu"), [(0.1, 0.03252), (0.5, 0.14221), (1, 0.26805), (2, 0.50155), (4, 0.92493), (8, 1.66603)]
)
def test_the_gaussian_parameter_of_a_budget(epsilon: float, mu: float) -> None:
    assert mu_of(epsilon, DELTA) == pytest.approx(mu, abs=6e-6)


@pytest.mark.parametrize(("epsilon", "q"), [(1, 0.0415), (2, 0.0790), (4, 0.149)])
def test_rates_by_budget(epsilon: float, q: float) -> None:
    assert rates([epsilon], DELTA, 2.0, 100)[0] == pytest.approx(q, rel=0.01)


def test_the_vector_of_losses_is_that_of_the_accountant() -> None:
    for q, z in ((0.1, 1.0), (0.02, 3.0), (1.0, 5.0)):
        event = Repeat(Poisson(q, Gaussian(z)) if q < 1 else Gaussian(z), 60)
        mine = float(spent(each(q), DELTA, z, 60)[0])
        exact = best(event, DELTA, "add_remove").epsilon
        assert exact <= mine * (1 + 1e-9)
        assert mine < exact * 1.25


@pytest.mark.slow
@pytest.mark.parametrize("expected", [6.0, pytest.param(40.0, marks=pytest.mark.slow)])
def test_balanced_rates_add_up_and_keep_every_budget(expected: float) -> None:
    granted = [1.0] * 27 + [2.0] * 18 + [4.0] * 5
    z, q = balanced(granted, DELTA, 50, expected)
    assert q.sum() == pytest.approx(expected, rel=1e-3)
    for level, rate in dict(zip(granted, q.tolist(), strict=True)).items():
        assert best(Repeat(Poisson(rate, Gaussian(z)), 50), DELTA, "add_remove").epsilon <= level
    assert q[0] < q[30] <= q[-1]
    with pytest.raises(InvalidBudget):
        balanced(granted, DELTA, 50, 51.0)


@pytest.mark.parametrize(
    ("granted", "why"),
    [([0.01] * 10, "too small for so many rounds"), ([0.01] * 2 + [4.0] * 8, "affords no rate at all")],
    ids=["everybody's", "somebody's"],
)
def test_budgets_below_the_conversion_buy_no_rate(granted: list[float], why: str) -> None:
    """At delta 1e-5 no order up to 256 turns even a divergence of nothing into an epsilon of 0.01."""
    with pytest.raises(InvalidBudget) as refusal:
        balanced(granted, DELTA, 20, 2.0)
    assert refusal.value.code == "budget-out-of-reach"
    assert why in str(refusal.value)
    _, q = balanced([max(level, 0.1) for level in granted], DELTA, 20, 2.0)  # control: ten times as much does
    assert (q > 0).all()


def test_a_plan_of_thresholds_pays_no_more_than_was_granted() -> None:
    granted = np.array([1.0] * 27 + [2.0] * 18 + [4.0] * 5)
    rows = planned(granted.tolist(), np.full(20, 1 / 20))
    paid = sum(payment for _, _, payment in rows)
    assert (paid <= granted * (1 + 1e-12)).all()
    for tau, q, payment in rows:
        lost = [amplified(float(rate), tau) for rate in q]  # of one hidden release
        assert (np.array(lost) <= payment * (1 + 1e-9)).all()
    assert exact_multiplier(0.01, 1e-7) == pytest.approx(362, rel=0.01)


def thresholds(granted: list[float], rounds: int) -> ThresholdPlan:
    budget = {"clients": {str(k): level for k, level in enumerate(granted)}}
    plan = made(
        {"name": "pdp_prox", "mechanism": "threshold"}, MECHANISMS["threshold"], budget, rounds, len(granted)
    ).setup.plan
    assert isinstance(plan, ThresholdPlan)
    return plan


@given(st.lists(st.sampled_from([0.3, 1.0, 2.0, 4.0]), min_size=2, max_size=6), st.integers(1, 12))
@settings(max_examples=15, deadline=None)
def test_a_plan_of_thresholds_never_charges_above_the_cap(granted: list[float], rounds: int) -> None:
    plan = thresholds(granted, rounds)
    for client in range(len(granted)):
        limit, gone = plan.cap_of(client), plan.currency.zero()
        assert limit is not None
        for t in range(rounds):
            price = plan.price(client, t, gone)
            assert price is not None
            owed = float(plan.rows[t][2][client]) * UNIT
            assert owed - rounds <= price.charge[0] <= owed + 1  # every round is rounded up, the last ones pay for it
            gone = tuple(map(add, gone, price.charge))
        assert plan.currency.fits(gone, limit)
        assert plan.price(client, rounds, gone) is None  # nothing is planned beyond


def test_who_spent_more_than_planned_is_refused_and_not_charged_less() -> None:
    plan = thresholds([1.0, 2.0, 4.0], 8)
    for client in range(3):
        limit = plan.cap_of(client)
        assert limit is not None
        for t in range(8):
            sound = plan.price(client, t, plan.currency.zero())
            assert sound is not None
            for part in range(2):
                short = [0, 0]
                short[part] = limit[part] - sound.charge[part] // 2  # half of what the round costs is left
                assert plan.price(client, t, tuple(short)) is None
                short[part] = limit[part] + 1
                assert plan.price(client, t, tuple(short)) is None
                short[part] = limit[part] - sound.charge[part]
                assert plan.price(client, t, tuple(short)) == sound  # control: just enough


def test_personal_noise_is_weighed_by_its_inverse_variance() -> None:
    parts = made(
        {"name": "pdp_prox", "mechanism": "local"},
        ROBIN | {"size": 3},
        {"clients": {"0": 1.0, "1": 4.0, "2": 8.0}},
        rounds=10,
        clients=3,
    )
    z = [parts.setup.plan.price(k, 0, (0,)).multiplier for k in range(3)]  # type: ignore[union-attr]
    # noise for replacing a client's data: twice the clip
    assert [2 * v for v in z] == pytest.approx([23.595, 6.838, 3.796], rel=1e-3)
    weights = np.array([parts.setup.plan.precision(k) for k in range(3)])
    assert weights / weights.sum() == pytest.approx(np.array(z) ** -2 / (np.array(z) ** -2).sum(), rel=1e-6)
    assert weights.max() == pytest.approx(1.0)


# as published ---------------------------------------------------------------------------------------------------------


def published(cost: str, rounds: int = 100, granted: float = 1.0) -> tuple[list[float], list[float], list[float]]:
    """Left after each round, the noise of each round, and the true epsilon so far: everybody grants the same, so
    everybody takes part.
    """
    parts = made(
        {"name": "pdp_prox", "mechanism": "published"},
        {"name": "threshold_published", "cost": cost, "retire_below": 0.0},
        granted,
        rounds,
    )
    plan, paid, lost, left, noise, true = parts.setup.plan, (0,), 0.0, [], [], []
    assert isinstance(plan, PublishedPlan)
    everybody = range(len(parts.setup.public.sizes))
    for t in range(rounds):
        plan.rates(t, dict.fromkeys(everybody, paid))
        price = plan.price(0, t, paid)
        if price is None:
            break
        paid, lost = (paid[0] + price.charge[0],), lost + price.multiplier**-2
        left.append(granted - paid[0] / 1e12)
        noise.append(price.multiplier)
        true.append(epsilon_of(math.sqrt(lost), DELTA))
    return left, noise, true


def test_share_leaves_a_third_unused() -> None:
    left, _, true = published("share")
    assert left[-1] == pytest.approx(0.99**100, abs=1e-6) == pytest.approx(0.3660, abs=1e-4)
    assert true[-1] == pytest.approx(0.655, abs=1e-3)


def test_one_round_decays() -> None:
    left, noise, true = published("one_round")
    assert left[8] == pytest.approx(0.469, abs=2e-3)  # before round 10
    assert [noise[i] for i in (0, 9, 49)] == pytest.approx([37.3, 74.6, 1331], rel=0.01)
    assert true[-1] == pytest.approx(0.235, abs=1e-3)


@pytest.mark.parametrize(("exposures", "loss"), [(37.8, 0.587), (53, 0.706), (6.1, 0.218), (15, 0.355)])
def test_visible_participation_overspends(exposures: float, loss: float) -> None:
    """Budgets of 0.5 (37.8 exposures expected of 100, 53 at 99.9 %) and 0.1 (6.1 and 15) under the noise for tau = 1."""
    assert epsilon_of(math.sqrt(exposures) / exact_multiplier(1, DELTA, 100), DELTA) == pytest.approx(loss, abs=1e-3)


def test_a_device_below_the_threshold_is_undercharged_as_published() -> None:
    """tau/R for each of ten exposures is 0.1 of 1; what holds is 0.28."""
    z = exact_multiplier(1, DELTA, 100)
    assert epsilon_of(math.sqrt(10) / z, DELTA) == pytest.approx(0.2845, abs=2e-4)


@pytest.mark.parametrize(("budget", "loss"), [(0.5, 0.346), (0.1, 0.047)])
def test_hidden_and_redrawn_is_safe_and_wasteful(budget: float, loss: float) -> None:
    q = float(included(each(budget), 1.0)[0])
    event = Repeat(Poisson(q, Gaussian(exact_multiplier(1, DELTA, 100))), 100)
    assert best(event, DELTA, "add_remove").epsilon == pytest.approx(loss, abs=2e-3)


def test_literal_noise_is_louder_and_accounted_for() -> None:
    parts = made(
        {"name": "pdp_prox", "mechanism": "published", "literal": True}, {"name": "threshold_published"}, GROUPS
    )
    uplink = parts.setup.algorithm.uplink
    event = uplink.claims(1.0, lambda e, a: e)[0].event
    assert epsilon_of(1 / event.noise_multiplier, DELTA) == pytest.approx(9.997, abs=2e-3)  # clip 1, noise of 1 * 0.5
    assert epsilon_of(1.0, DELTA) == pytest.approx(4.377, abs=1e-3)


# budgets as they are given --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ({"clients": {"0": 1.0}}, "budget-missing"),
        ({"clients": {"0": 1.0, "1": 1.0, "2": 1.0, "9": 1.0}}, "budget-unknown-client"),
        ({"clients": {"0": 1.0, "00": 2.0, "1": 1.0}}, "budget-unknown-client"),
        ({"clients": {"0": 0.0, "1": 1.0, "2": 1.0}}, "epsilon-not-positive"),
        ({"clients": {"0": -1.0, "1": 1.0, "2": 1.0}}, "epsilon-not-positive"),
        ({"clients": {"0": math.nan, "1": 1.0, "2": 1.0}}, "epsilon-not-positive"),
        ({"clients": {"0": math.inf, "1": 1.0, "2": 1.0}}, "epsilon-not-positive"),
        ({"clients": {"0": True, "1": 1.0, "2": 1.0}}, "budget-malformed"),
        ({"clients": [1.0, 2.0, 3.0]}, "budget-malformed"),
        ({"groups": {"1": 0.5, "2": 0.4}}, "budget-malformed"),
        ({"groups": {"one": 1.0}}, "budget-malformed"),
        ({"groups": {"1": "all"}}, "budget-malformed"),
        ({"linspace": [1.0]}, "budget-malformed"),
        ({"linspace": [1.0, 2.0], "levels": 0}, "budget-malformed"),
        ({"linspace": [0.0, 2.0]}, "epsilon-not-positive"),
        ({"groups": {"1": 1.0}, "levels": 3}, "budget-rule"),
        ({"groups": {"1": 1.0}, "linspace": [1.0, 2.0]}, "budget-rule"),
        ({}, "budget-rule"),
        ({"file": "nowhere.csv"}, "budget-file"),
    ],
)
def test_budgets_that_are_none(rule: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidBudget) as refusal:
        client_budgets.personal(rule, 3, keys.root(1))
    assert refusal.value.code == code
    assert refusal.value.fix


def test_a_file_of_budgets(tmp_path: Path) -> None:
    file = tmp_path / "budgets.csv"
    file.write_text("client, epsilon\n1, 2.5\n0, 1\n2, 4e0\n")
    assert client_budgets.personal({"file": str(file)}, 3, keys.root(1)).tolist() == [1.0, 2.5, 4.0]
    file.write_text("client,epsilon\n0,1\n1,\n2,1\n")
    with pytest.raises(InvalidBudget, match="budget of ''"):
        client_budgets.personal({"file": str(file)}, 3, keys.root(1))
    file.write_text("who,much\n0,1\n")
    with pytest.raises(InvalidBudget, match="columns"):
        client_budgets.personal({"file": str(file)}, 3, keys.root(1))


@given(st.integers(1, 200), st.integers(0, 9))
@settings(max_examples=20)
def test_groups_are_dealt_by_the_seed(clients: int, seed: int) -> None:
    one = client_budgets.personal(GROUPS, clients, keys.root(seed))
    assert len(one) == clients
    assert one.tolist() == client_budgets.personal(GROUPS, clients, keys.root(seed)).tolist()
    assert abs((one == 1).sum() - 0.54 * clients) <= 1
    levels = client_budgets.personal({"linspace": [1, 4], "levels": 4}, clients, keys.root(seed))
    assert set(levels) <= {1.0, 2.0, 3.0, 4.0}
