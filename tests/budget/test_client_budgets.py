"""Personal budgets: the arithmetic of rates, thresholds and waste by closed forms and by enumeration, and how budgets
are read.

Numbers are those of the sources or of exact accountants; the published mechanism is held to what it really loses, not
to what it claims.
"""

from __future__ import annotations

import math
import tomllib
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino import budget, config, keys
from sordino.accounting.accountants import best, exact_multiplier
from sordino.accounting.claims import UNIT
from sordino.accounting.events import Gaussian, Poisson, Repeat, amplified
from sordino.accounting.gaussian_dp import mu_of
from sordino.budget.plans_by_budget import ThresholdPlan
from sordino.errors import InvalidBudget, SordinoError
from sordino.planning.planner import Planner
from sordino.runs.simulation import simulated
from sordino.sampling.by_budget import (
    balanced,
    planned,
    rates,
    spent,
)
from tests.budget.charged import experiment
from tests.helpers.personal_budgets import DELTA, GROUPS, MECHANISMS, ROBIN, made
from tests.helpers.threshold_budgets import each

PERSONAL = {"clients": {"0": 2.0, "1": 5.0, "2": 8.0}}


# noise and rates ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("epsilon", "rounds", "z"), [(1, 100, 37.3063), (2, 100, 19.9381), (4, 100, 10.8116), (1, 10, 11.7973)]
)
def test_noise_of_unsampled_participations(epsilon: float, rounds: int, z: float) -> None:
    assert exact_multiplier(epsilon, DELTA, rounds) == pytest.approx(z, rel=1e-5)


@pytest.mark.parametrize(
    ("epsilon", "mu"), [(0.1, 0.03252), (0.5, 0.14221), (1, 0.26805), (2, 0.50155), (4, 0.92493), (8, 1.66603)]
)
def test_the_gaussian_parameter_of_a_budget(epsilon: float, mu: float) -> None:
    assert mu_of(epsilon, DELTA) == pytest.approx(mu, abs=6e-6)


@pytest.mark.parametrize(("epsilon", "q"), [(1, 0.0415), (2, 0.0790), (4, 0.149)])
def test_rates_by_budget(epsilon: float, q: float) -> None:
    assert rates([epsilon], DELTA, 2.0, 100)[0] == pytest.approx(q, rel=0.01)


@pytest.mark.slow
def test_the_vector_of_losses_is_that_of_the_accountant() -> None:
    for q, z in ((0.1, 1.0), (0.02, 3.0), (1.0, 5.0)):
        event = Repeat(Poisson(q, Gaussian(z)) if q < 1 else Gaussian(z), 60)
        mine = float(spent(each(q), DELTA, z, 60)[0])
        exact = best(event, DELTA, "zero_out").epsilon
        assert exact <= mine * (1 + 1e-9)
        assert mine < exact * 1.25


@pytest.mark.slow
@pytest.mark.parametrize("expected", [6.0, pytest.param(40.0, marks=pytest.mark.slow)])
def test_balanced_rates_add_up_and_keep_every_budget(expected: float) -> None:
    granted = [1.0] * 27 + [2.0] * 18 + [4.0] * 5
    z, q = balanced(granted, DELTA, 50, expected)
    assert q.sum() == pytest.approx(expected, rel=1e-3)
    for level, rate in dict(zip(granted, q.tolist(), strict=True)).items():
        assert best(Repeat(Poisson(rate, Gaussian(z)), 50), DELTA, "zero_out").epsilon <= level
    assert q[0] < q[30] <= q[-1]
    with pytest.raises(InvalidBudget):
        balanced(granted, DELTA, 50, 51.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("granted", "why"),
    [([0.01] * 10, "too small for so many rounds"), ([0.01] * 2 + [4.0] * 8, "cannot take part at all")],
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


@pytest.mark.one_fast
@pytest.mark.parametrize("schedule", ["uniform", "linear_back", "adaptive"])
@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "dp_sgd", "rate": 0.3},
        {"name": "gaussian_gdp"},
        {"name": "dp_scaffold", "local_steps": 3, "rate": 0.2},
        {"name": "pdp_prox", "mechanism": "local"},
        {"name": "laplace"},
    ],
    ids=lambda algorithm: algorithm["name"],
)
def test_nobody_is_planned_to_lose_more_than_it_granted(algorithm: dict[str, Any], schedule: str) -> None:
    """By the releases themselves. A sampled reader at equal shares once had one noise for all, that of the largest
    budget: who had granted 2 lost 8."""
    table: dict[str, Any] = {
        "rounds": 3,
        "data": {"source": "synthetic", "clients": 3, "largest": 60},
        "partition": {"scheme": "natural"},
        "algorithm": algorithm,
        "privacy": {"epsilon": PERSONAL, "delta": DELTA, "schedule": {"name": schedule}},
    }
    phase = simulated(config.validate(table)).setup
    offer, found = phase.plan.offer, {}
    assert offer is not None
    for level, (clients, row) in Planner(phase).by_budget(offer.subject).items():
        assert len(clients) == 1
        found[level] = row.epsilon
        assert row.delta <= DELTA
        assert row.epsilon <= level * (1 + 1e-6)
    assert list(found) == [2.0, 5.0, 8.0]
    assert found[2.0] < found[5.0] < found[8.0]  # and a larger budget buys something


@pytest.mark.slow
def test_other_rates_for_the_same_clients_are_another_currency() -> None:
    """Else two runs on one ledger count their rounds under one cap, though who had the small budget has the large one
    in the next, and loses more than it grants there."""

    def currency(*granted: float) -> str:
        budgets = {"clients": {str(k): level for k, level in enumerate(granted)}}
        algorithm = {"name": "pdp_prox", "mechanism": "rates"}
        return made(algorithm, {"name": "by_budget", "size": 2}, budgets, 2, 4).setup.plan.currency.name

    assert currency(1.0, 1.0, 4.0, 4.0) == currency(1.0, 1.0, 4.0, 4.0)
    assert currency(1.0, 1.0, 4.0, 4.0) != currency(4.0, 4.0, 1.0, 1.0)


def test_a_plan_of_thresholds_pays_no_more_than_was_granted() -> None:
    granted = np.array([1.0] * 27 + [2.0] * 18 + [4.0] * 5)
    rows = planned(granted.tolist(), np.full(20, 1 / 20))
    paid = sum(payment for _, _, payment in rows)
    assert (paid <= granted * (1 + 1e-12)).all()
    for tau, q, payment in rows:
        lost = [amplified(tau, float(rate)) for rate in q]  # of one hidden release
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
        budget.personal(rule, 3, keys.root(1))
    assert refusal.value.code == code
    assert refusal.value.fix


def test_clients_with_names_are_not_meant_by_numbers() -> None:
    """Numbers would follow the order of names, which nobody sees: 1 would be Ost, and perhaps Süd is meant."""
    names = ("Nord", "Ost", "Süd")
    with pytest.raises(InvalidBudget) as refusal:
        budget.personal({"clients": {"0": 1.0, "1": 2.0, "2": 3.0}}, 3, keys.root(1), names)
    assert refusal.value.code == "budget-unknown-client"
    assert "Nord, Ost, Süd" in str(refusal.value.why)
    named = budget.personal({"clients": {"Süd": 2.0, "Ost": 1.0, "Nord": 3.0}}, 3, keys.root(1), names)
    assert named.tolist() == [3.0, 1.0, 2.0]


def test_a_file_of_budgets(tmp_path: Path) -> None:
    file = tmp_path / "budgets.csv"
    file.write_text("client, epsilon\n1, 2.5\n0, 1\n2, 4e0\n")
    assert budget.personal({"file": str(file)}, 3, keys.root(1)).tolist() == [1.0, 2.5, 4.0]
    file.write_text("client,epsilon\n0,1\n1,\n2,1\n")
    with pytest.raises(InvalidBudget, match="budget of ''"):
        budget.personal({"file": str(file)}, 3, keys.root(1))
    file.write_text("who,much\n0,1\n")
    with pytest.raises(InvalidBudget, match="columns"):
        budget.personal({"file": str(file)}, 3, keys.root(1))


@given(st.integers(1, 200), st.integers(0, 9))
@settings(max_examples=20)
def test_groups_are_dealt_by_the_seed(clients: int, seed: int) -> None:
    one = budget.personal(GROUPS, clients, keys.root(seed))
    assert len(one) == clients
    assert one.tolist() == budget.personal(GROUPS, clients, keys.root(seed)).tolist()
    assert abs((one == 1).sum() - 0.54 * clients) <= 1
    levels = budget.personal({"linspace": [1, 4], "levels": 4}, clients, keys.root(seed))
    assert set(levels) <= {1.0, 2.0, 3.0, 4.0}


BY_BUDGETS: list[dict[str, Any]] = [
    {"name": "by_budget", "size": 2},
    {"name": "threshold"},
    {"name": "threshold_published"},
]


@pytest.mark.parametrize("cohort", BY_BUDGETS, ids=lambda cohort: cohort["name"])
def test_what_a_personal_cohort_advises_fits_it(cohort: dict[str, Any]) -> None:
    """A method with other noise is refused, and the one that the refusal names is planned."""
    noise = "bounds" if cohort["name"] == "threshold_published" else "local"
    more: dict[str, Any] = {"cohort": cohort, "privacy": {"epsilon": {"linspace": [2.0, 8.0]}, "delta": 1e-3}}
    with pytest.raises(SordinoError) as refusal:
        _ = simulated(experiment({"name": "pdp_prox", "mechanism": noise}, **more)).setup.plan
    assert refusal.value.code == "personal-cohort-needs-its-noise"
    advice = refusal.value.fix.removeprefix("use algorithm = ").partition(", and no")[0]
    assert simulated(experiment(tomllib.loads(f"a = {advice}")["a"], **more)).setup.plan.budget is not None


def test_a_budget_that_no_threshold_counts_is_refused_before_the_first_round() -> None:
    made = {"name": "pdp_prox", "mechanism": "published"}
    privacy = {"epsilon": {"groups": {"1": 0.4, "720": 0.6}}, "delta": 1e-3}
    with pytest.raises(SordinoError) as refusal:
        _ = simulated(experiment(made, cohort={"name": "threshold_published"}, privacy=privacy)).setup.plan
    assert refusal.value.code == "budget-too-large"
