"""Personal budgets: the arithmetic of rates, thresholds and waste by closed forms and by enumeration, and the runs that keep (or, as published, break) them.

Numbers are those of the sources or of exact accountants; the published mechanism is held to what it really loses, not to what it claims.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.traces import differences, finished, killed_at, trace

from sordino import budgets, config, keys, tree
from sordino.algorithms.dp_prox import dp_prox
from sordino.assemble import Parts
from sordino.errors import ConfigError, InvalidBudget, SordinoError, UnsoundGuarantee
from sordino.ledger.accountants import best
from sordino.ledger.calibrate import exact_multiplier, sampled_multiplier
from sordino.ledger.events import Gaussian, Poisson, Repeat
from sordino.ledger.gaussian_dp import epsilon_of, mu_of
from sordino.ledger.ledger import Ledger
from sordino.ledger.personal import (
    Waste,
    amplified,
    balanced,
    included,
    planned,
    rates,
    recycled,
    spent,
    threshold,
    waste,
    wasted,
)
from sordino.personal_plans import PublishedPlan, ThresholdPlan
from sordino.privacy.sources import for_client, for_round
from sordino.receipt import opened, receipt, verify
from sordino.results import open_run
from sordino.round import one_round
from sordino.training import resume, start
from sordino.types import Grant

DELTA = 1e-5
GROUPS = {"groups": {"1": 0.54, "2": 0.37, "4": 0.09}}


def each(*values: float) -> Any:
    return np.array(values)


# sampling by threshold --------------------------------------------------------------------------------------------------


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

    `stops`: the client is charged when it is drawn and, its budget used up, takes no part any more (as published); else it tosses in every round.
    """
    yes = math.exp(tau)  # P1(1)/P0(1), and P1(0)/P0(0) is its inverse
    each_round = [yes if o else 1 / yes for o in outputs]
    if not stops:
        return sum(math.log(1 - rate + rate * r) for r in each_round)
    untouched = (1 - rate) ** len(outputs)
    return math.log(untouched + sum((1 - rate) ** t * rate * r for t, r in enumerate(each_round)))


def worst(rate: float, tau: float, rounds: int, stops: bool) -> float:
    return max(loss_ratio(o, rate, tau, stops) for o in itertools.product((0, 1), repeat=rounds))


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


# what a threshold wastes ------------------------------------------------------------------------------------------------


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


# noise and rates --------------------------------------------------------------------------------------------------------


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


def test_a_plan_of_thresholds_pays_no_more_than_was_granted() -> None:
    granted = np.array([1.0] * 27 + [2.0] * 18 + [4.0] * 5)
    rows = planned(granted, np.full(20, 1 / 20))
    paid = sum(payment for _, _, payment in rows)
    assert (paid <= granted * (1 + 1e-12)).all()
    for tau, q, payment in rows:
        lost = [amplified(float(rate), tau) for rate in q]  # of one hidden release
        assert (np.array(lost) <= payment * (1 + 1e-9)).all()
    assert exact_multiplier(0.01, 1e-7) == pytest.approx(362, rel=0.01)


# as published -----------------------------------------------------------------------------------------------------------


def published(cost: str, rounds: int = 100, granted: float = 1.0) -> tuple[list[float], list[float], list[float]]:
    """Left after each round, the noise of each round, and the true epsilon so far: everybody grants the same, so everybody takes part."""
    parts = made(
        {"name": "pdp_prox", "mechanism": "published"},
        {"name": "threshold_published", "cost": cost, "retire_below": 0.0},
        granted,
        rounds,
    )
    plan, paid, lost, left, noise, true = parts.plan, (0,), 0.0, [], [], []
    assert isinstance(plan, PublishedPlan)
    everybody = range(len(parts.sizes))
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


@pytest.mark.parametrize(("budget", "loss"), [(0.5, 0.346), (0.1, 0.047)])
def test_hidden_and_redrawn_is_safe_and_wasteful(budget: float, loss: float) -> None:
    q = float(included(each(budget), 1.0)[0])
    event = Repeat(Poisson(q, Gaussian(exact_multiplier(1, DELTA, 100))), 100)
    assert best(event, DELTA, "add_remove").epsilon == pytest.approx(loss, abs=2e-3)


# runs -------------------------------------------------------------------------------------------------------------------


def made(
    algorithm: dict[str, Any],
    cohort: dict[str, Any],
    epsilon: Any,
    rounds: int = 6,
    clients: int = 22,
    clip: float | None = 0.5,
    **tables: Any,
) -> Parts:
    effort = {"lr": 0.05} | ({} if "local_steps" in algorithm else {"local_epochs": 2})
    table: dict[str, Any] = {
        "rounds": rounds,
        "data": {"source": "synthetic", "clients": clients, "largest": 60},
        "partition": {"scheme": "natural"},
        "model": {"name": "logistic"},
        "cohort": cohort,
        "algorithm": effort | ({} if clip is None else {"clip": clip}) | algorithm,
        "privacy": {"epsilon": epsilon, "delta": DELTA},
        "evaluation": {"every": rounds, "final": 1},
    }
    return Parts(config.validate(table | tables))


ROBIN = {"name": "round_robin", "size": 11}
MECHANISMS: dict[str, dict[str, Any]] = {
    "bounds": ROBIN,
    "local": ROBIN,
    "rates": {"name": "by_budget", "size": 8},
    "threshold": {"name": "threshold"},
}


def ran(parts: Parts, folder: Path) -> dict[str, Any]:
    start(parts.experiment, folder)
    assert verify(folder) == []
    return open_run(folder).receipt


@pytest.mark.parametrize("mechanism", ["bounds", "local", "rates", pytest.param("threshold", marks=pytest.mark.slow)])
def test_every_budget_holds_and_is_used(mechanism: str, tmp_path: Path) -> None:
    made_ = made({"name": "pdp_prox", "mechanism": mechanism}, MECHANISMS[mechanism], GROUPS)
    groups = ran(made_, tmp_path / "run")["budget"]["groups"]
    assert [g["granted"] for g in groups] == [1.0, 2.0, 4.0]
    assert [g["clients"] for g in groups] == [12, 8, 2]
    for group in groups:
        assert group["status"] == "proved"
        assert group["spent"] <= group["granted"] * (1 + 1e-6)
        if mechanism in ("bounds", "local"):  # exact composition over known counts: all of it
            assert group["spent"] == pytest.approx(group["granted"], rel=1e-3)


@pytest.mark.parametrize(
    "cost", ["one_round", *(pytest.param(c, marks=pytest.mark.slow) for c in ("share", "full_round"))]
)
def test_published_budgets_are_claimed_and_what_holds_is_said(cost: str, tmp_path: Path) -> None:
    parts = made(
        {"name": "pdp_prox", "mechanism": "published"}, {"name": "threshold_published", "cost": cost}, GROUPS, rounds=12
    )
    found = ran(parts, tmp_path / "run")
    groups = found["budget"]["groups"]
    _, federation = opened(tmp_path / "run")
    with federation.ledger as ledger:
        events: dict[int, float] = {}
        for entry in ledger.entries():
            for group in json.loads(entry.note):
                z = next(c["event"] for c in group["claims"] if c["unit"] == "client" and c["adversary"] == "server")
                for k in group["clients"]:
                    events[k] = events.get(k, 0.0) + z["noise_multiplier"] ** -2
    levels = parts.plan.budget.levels()  # type: ignore[union-attr]
    for group in groups:
        true = max(epsilon_of(math.sqrt(events.get(k, 0.0)), DELTA) for k in levels[group["granted"]])
        assert group["spent"] == pytest.approx(true, rel=1e-3)
        assert group["claimed"] <= group["granted"] * (1 + 1e-9)


def test_a_device_below_the_threshold_is_undercharged_as_published(tmp_path: Path) -> None:
    """tau/R for each of ten exposures is 0.1 of 1; what holds is 0.28."""
    z = exact_multiplier(1, DELTA, 100)
    assert pytest.approx(0.1) == 10 * 1 / 100
    assert epsilon_of(math.sqrt(10) / z, DELTA) == pytest.approx(0.2845, abs=2e-4)


def test_personal_bounds_are_in_the_ratio_of_what_budgets_buy() -> None:
    parts = made(
        {"name": "pdp_prox", "clip": 1.0},
        ROBIN | {"size": 4},
        {"clients": {"0": 0.5, "1": 1.0, "2": 2.0, "3": 4.0}},
        rounds=10,
        clients=4,
    )
    federation = parts.federation(":memory:", "run")
    with federation.ledger:
        prices = federation.prices([0, 1, 2, 3], stalled=False)
        federation.reserve(0, prices)
        reach = [federation.grant(0, k, prices[k], None).reach for k in range(4)]
        assert reach == pytest.approx([0.15375, 0.28981, 0.54226, 1.0], abs=1e-5)
        assert federation._central == pytest.approx(prices[3].multiplier)  # type: ignore[union-attr]


def test_personal_noise_is_weighed_by_its_inverse_variance() -> None:
    parts = made(
        {"name": "pdp_prox", "mechanism": "local"},
        ROBIN | {"size": 3},
        {"clients": {"0": 1.0, "1": 4.0, "2": 8.0}},
        rounds=10,
        clients=3,
    )
    z = [parts.plan.price(k, 0, (0,)).multiplier for k in range(3)]  # type: ignore[union-attr]
    # noise for replacing a client's data: twice the clip
    assert [2 * v for v in z] == pytest.approx([23.595, 6.838, 3.796], rel=1e-3)
    weights = np.array([parts.plan.precision(k) for k in range(3)])
    assert weights / weights.sum() == pytest.approx(np.array(z) ** -2 / (np.array(z) ** -2).sum(), rel=1e-6)
    assert weights.max() == pytest.approx(1.0)


def test_a_client_beyond_its_own_bound_adds_nothing(tmp_path: Path) -> None:
    parts = made(
        {"name": "pdp_prox", "clip": 1.0}, {"name": "everyone"}, {"clients": {"0": 1.0, "1": 4.0}}, rounds=2, clients=2
    )
    uplink = parts.algorithm.uplink
    zero = {"w": torch.zeros(3)}
    full = {"w": torch.tensor([0.9, 0.0, 0.0])}
    whole = uplink.sum({0: full, 1: full}, zero, None, lambda k: 1.0)
    bounded = uplink.sum({0: full, 1: full}, zero, None, lambda k: 0.3 if k == 0 else 1.0)
    assert float(whole.total["w"][0]) == pytest.approx(1.8)
    assert float(bounded.total["w"][0]) == pytest.approx(0.9)


@pytest.mark.slow
def test_ten_thousand_rounds_take_nobody_over_its_cap() -> None:
    parts = made(
        {"name": "pdp_prox"}, {"name": "random", "size": 20, "t_plan": 40}, {"linspace": [0.3, 6.0], "levels": 20},
        rounds=10_000, clients=1000, data={"source": "quadratic", "clients": 1000, "dim": 2},
    )  # fmt: skip
    federation = parts.federation(":memory:", "run")
    with federation.ledger as ledger:
        for t in range(10_000):
            federation.reserve(t, federation.prices(federation.draw(t), stalled=False))
        exhausted = 0
        for k in range(1000):
            gone, limit = ledger.spent(str(k))[0], parts.plan.cap_of(k)
            assert limit is not None
            assert gone <= limit[0]
            exhausted += federation.exposures.get(k, 0) == 40
        assert exhausted > 900
        ledger.check()


def test_an_exhausted_client_changes_no_bit() -> None:
    """Three exposures are planned and six rounds played: what a client holds after its last exposure is never looked at."""

    def model(poison: bool) -> torch.Tensor:
        parts = made({"name": "pdp_prox"}, {"name": "random", "size": 22, "t_plan": 3}, GROUPS)
        federation, clients = parts.federation(":memory:", "run"), parts.clients("run")
        server = parts.state("server")
        with federation.ledger:
            for t in range(6):
                if t == 3 and poison:
                    clients.shards = {k: clients.shards[k]._replace(x=clients.shards[k].x * 0 + 7) for k in range(22)}
                server = one_round(federation, server, t, clients).server
        return tree.flat(server.x)

    assert torch.equal(model(poison=False), model(poison=True))


# bad input --------------------------------------------------------------------------------------------------------------


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
        budgets.personal(rule, 3, keys.root(1))
    assert refusal.value.code == code
    assert refusal.value.fix


def test_a_file_of_budgets(tmp_path: Path) -> None:
    file = tmp_path / "budgets.csv"
    file.write_text("client, epsilon\n1, 2.5\n0, 1\n2, 4e0\n")
    assert budgets.personal({"file": str(file)}, 3, keys.root(1)).tolist() == [1.0, 2.5, 4.0]
    file.write_text("client,epsilon\n0,1\n1,\n2,1\n")
    with pytest.raises(InvalidBudget, match="budget of ''"):
        budgets.personal({"file": str(file)}, 3, keys.root(1))
    file.write_text("who,much\n0,1\n")
    with pytest.raises(InvalidBudget, match="columns"):
        budgets.personal({"file": str(file)}, 3, keys.root(1))


@given(st.integers(1, 200), st.integers(0, 9))
@settings(max_examples=20)
def test_groups_are_dealt_by_the_seed(clients: int, seed: int) -> None:
    one = budgets.personal(GROUPS, clients, keys.root(seed))
    assert len(one) == clients
    assert one.tolist() == budgets.personal(GROUPS, clients, keys.root(seed)).tolist()
    assert abs((one == 1).sum() - 0.54 * clients) <= 1
    levels = budgets.personal({"linspace": [1, 4], "levels": 4}, clients, keys.root(seed))
    assert set(levels) <= {1.0, 2.0, 3.0, 4.0}


@pytest.mark.parametrize(
    ("algorithm", "cohort", "epsilon", "code"),
    [
        ({"name": "dp_prox"}, {"name": "poisson", "rate": 0.5}, GROUPS, "personal-budgets-one-rate"),
        ({"name": "dp_prox"}, ROBIN, 1.0, "add-remove-needs-poisson"),
        ({"name": "pdp_prox"}, {"name": "by_budget", "size": 5}, GROUPS, "poisson-needs-add-remove"),
        (
            {"name": "pdp_prox", "mechanism": "local"},
            {"name": "by_budget", "size": 5},
            GROUPS,
            "personal-cohort-needs-its-noise",
        ),
        (
            {"name": "pdp_prox", "mechanism": "rates"},
            {"name": "by_budget", "size": 5},
            None,
            "mechanism-without-budget",
        ),
        (
            {"name": "pdp_prox", "mechanism": "rates"},
            {"name": "by_budget", "size": 50},
            GROUPS,
            "cohort-larger-than-population",
        ),
        ({"name": "pdp_prox", "mechanism": "published", "returns": "printed"}, ROBIN, 1.0, "un-noised-update"),
        ({"name": "pdp_prox", "mechanism": "bounds", "literal": True}, ROBIN, 1.0, "literal-without-published"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    algorithm: dict[str, Any], cohort: dict[str, Any], epsilon: Any, code: str
) -> None:
    with pytest.raises(SordinoError) as refusal:
        _ = made(algorithm, cohort, epsilon, privacy={"epsilon": epsilon} if epsilon else {}).plan
    assert refusal.value.code == code
    assert refusal.value.fix


@pytest.mark.parametrize(
    ("mechanism", "schedule"),
    [("rates", "adaptive"), ("rates", "linear_back"), ("threshold", "adaptive"), ("bounds", "adaptive")],
)
def test_rates_need_equal_rounds_and_clips_a_plan(mechanism: str, schedule: str) -> None:
    with pytest.raises(UnsoundGuarantee) as refusal:
        _ = made(
            {"name": "pdp_prox", "mechanism": mechanism},
            MECHANISMS[mechanism],
            GROUPS,
            privacy={"epsilon": GROUPS, "schedule": {"name": schedule}},
        ).plan
    assert refusal.value.code == "personal-schedule"


def test_weights_of_waste_are_two_numbers() -> None:
    phi = each(0.1, 0.5, 1.0)
    sampling, noise = wasted(phi, 0.6)
    assert waste(phi, 0.6, Waste("fixed", (2.0, 3.0))) == pytest.approx(2 * sampling + 3 * noise)
    for bad in ([1.0], [1.0, -1.0], [1.0, math.inf], ["a", "b"]):
        with pytest.raises(ConfigError):
            _ = made(
                {"name": "pdp_prox", "mechanism": "threshold"}, {"name": "threshold", "waste_weights": bad}, GROUPS
            ).plan


def test_a_share_beyond_the_whole_is_refused() -> None:
    with pytest.raises(ConfigError) as refusal:
        _ = made(
            {"name": "pdp_prox", "mechanism": "published"}, {"name": "threshold_published", "retire_below": 1.0}, GROUPS
        ).plan
    assert refusal.value.code == "share-out-of-range"


def test_nobody_answers_and_the_noise_comes_all_the_same() -> None:
    parts = made(
        {"name": "pdp_prox", "mechanism": "rates"},
        MECHANISMS["rates"],
        GROUPS,
        stragglers={"share": 1.0, "policy": "drop"},
    )
    federation, clients, server = parts.federation(":memory:", "run"), parts.clients("run"), parts.state("server")
    with federation.ledger:
        outcome = one_round(federation, server, 0, clients)
    assert outcome.answered == []
    moved = tree.flat(tree.sub(outcome.server.x, server.x))
    z, q = parts.plan.quietest, federation._rates
    assert q is not None
    assert float(moved.double().std()) == pytest.approx(z * 0.5 / q.sum(), rel=0.15)  # 610 coordinates
    assert isinstance(federation.ledger, Ledger)


@pytest.mark.parametrize("placement", ["once", "per_client"])
def test_noise_comes_once_a_round_or_with_every_update(placement: str) -> None:
    """std of the noise in a mean: z C / den, or z C sqrt(|S|) / den; 10^5 coordinates, so 1 % is 4.5 standard errors."""
    clip, z, cohort = 0.5, 0.8, 9
    uplink = dp_prox(clip, noise_placement=placement, multiplier=z).uplink  # type: ignore[arg-type]
    zero = {"w": torch.zeros(100_000)}
    grants = [Grant(k, 1, 1, for_client("counter", 7, 0, k), z) for k in range(cohort)]
    sent = {k: uplink.encode(zero, grant) for k, grant in enumerate(grants)}
    mean = uplink.receive(sent, zero, [1.0] * cohort, cohort, z, for_round("counter", 7, 0)).mean["w"]
    wanted = z * clip * (math.sqrt(cohort) if placement == "per_client" else 1) / cohort
    assert float(mean.double().std()) == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize(
    "faults",
    [{"drop": 0.9, "slow": 0.1}, *(pytest.param(f, marks=pytest.mark.slow) for f in ({"drop": 0.5}, {"slow": 0.5}))],
)
@pytest.mark.parametrize("mechanism", ["rates", "bounds", "local"])
def test_faults_never_take_noise_away(mechanism: str, faults: dict[str, float]) -> None:
    """What the server releases is at least as noisy as the plan says, however many clients are lost or late; and they have paid."""
    algorithm = {"name": "pdp_prox", "mechanism": mechanism, "clip": 1e-6}  # hardly any signal: what is left is noise
    heard: list[list[float]] = []
    accounts: list[dict[int, Any]] = []
    for chaos in ({}, faults):
        parts = made(algorithm, MECHANISMS[mechanism], GROUPS, rounds=3, chaos=chaos)
        federation, clients, server = parts.federation(":memory:", "run"), parts.clients("run"), parts.state("server")
        stds = []
        with federation.ledger:
            for t in range(3):
                outcome = one_round(federation, server, t, clients)
                moved, server = tree.flat(tree.sub(outcome.server.x, server.x)), outcome.server
                stds.append(float(moved.double().std()) / 1e-6)
                if chaos:
                    assert len(outcome.answered) < max(2, len(outcome.active))
            accounts.append({k: federation.spent.get(federation.payer(k)) for k in range(22)})
        heard.append(stds)
    assert accounts[0] == accounts[1]
    for sound, faulty in zip(*heard, strict=True):
        assert faulty == 0 or faulty > sound * 0.85  # nobody answered a local round: nothing is released


def test_one_step_does_not_feel_mu_and_no_mu_is_fedavg() -> None:
    def model(**algorithm: Any) -> torch.Tensor:
        parts = made(algorithm, {"name": "everyone"}, None, rounds=2, clip=None, uplink={"client": []}, privacy={})
        federation, clients, server = parts.federation(":memory:", "run"), parts.clients("run"), parts.state("server")
        with federation.ledger:
            for t in range(2):
                server = one_round(federation, server, t, clients).server
        return tree.flat(server.x)

    assert torch.equal(model(name="fedprox", mu=0.0, local_epochs=2), model(name="fedavg", local_epochs=2))
    one = {"local_steps": 1, "batch_size": "full"}
    assert torch.equal(model(name="fedprox", mu=5.0, **one), model(name="fedavg", **one))
    start_ = tree.flat(made({"name": "fedavg"}, ROBIN, None, clip=None, privacy={}).state("server").x)
    far = [float((model(name="fedprox", mu=mu, local_epochs=5) - start_).norm()) for mu in (0.0, 1.0, 10.0)]
    assert far[0] > far[1] > far[2]  # the larger mu, the nearer to the start


@pytest.mark.slow
def test_a_killed_run_keeps_every_account(tmp_path: Path) -> None:
    parts = made(
        {"name": "pdp_prox"}, {"name": "random", "size": 11}, GROUPS, stragglers={"share": 0.5, "policy": "keep"}
    )
    whole = finished(parts.experiment, tmp_path / "whole")
    with killed_at("computed", 3):
        start(parts.experiment, tmp_path / "run")
    resume(tmp_path / "run")
    assert differences(whole, trace(tmp_path / "run")) == []


def test_literal_noise_is_louder_and_accounted_for() -> None:
    parts = made(
        {"name": "pdp_prox", "mechanism": "published", "literal": True}, {"name": "threshold_published"}, GROUPS
    )
    uplink = parts.algorithm.uplink
    event = uplink.claims(1.0, lambda e, a: e)[0].event
    assert epsilon_of(1 / event.noise_multiplier, DELTA) == pytest.approx(9.997, abs=2e-3)  # clip 1, noise of 1 * 0.5
    assert epsilon_of(1.0, DELTA) == pytest.approx(4.377, abs=1e-3)


def test_a_hidden_plan_of_thresholds_charges_everybody() -> None:
    parts = made({"name": "pdp_prox", "mechanism": "threshold"}, MECHANISMS["threshold"], GROUPS)
    assert isinstance(parts.plan, ThresholdPlan)
    federation, clients, server = parts.federation(":memory:", "run"), parts.clients("run"), parts.state("server")
    with federation.ledger as ledger:
        for t in range(6):
            server = one_round(federation, server, t, clients).server
        for entry in ledger.entries():
            assert len(entry.charges) == 22
        assert receipt(parts, federation)["budget"]["exposures_used"]["min"] == 6
    assert sampled_multiplier(1.0, DELTA, 0.1, 100) == pytest.approx(4.278, rel=0.01)
