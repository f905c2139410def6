"""PDP-Prox as published: what its sampling leaves unused, and where it overspends."""

from __future__ import annotations

import math

import pytest

from sordino.accounting.accountants import best, exact_multiplier
from sordino.accounting.events import Gaussian, Poisson, Repeat
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.budget.plans_by_budget import PublishedPlan
from sordino.sampling.by_budget import (
    included,
)
from tests.helpers.personal_budgets import DELTA, GROUPS, made
from tests.helpers.threshold_budgets import each


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


@pytest.mark.parametrize(("participations", "loss"), [(37.8, 0.587), (53, 0.706), (6.1, 0.218), (15, 0.355)])
def test_visible_participation_overspends(participations: float, loss: float) -> None:
    """Budgets of 0.5 (37.8 rounds expected of 100, 53 at 99.9%) and 0.1 (6.1 and 15) under the noise for tau = 1."""
    assert epsilon_of(math.sqrt(participations) / exact_multiplier(1, DELTA, 100), DELTA) == pytest.approx(
        loss, abs=1e-3
    )


def test_a_device_below_the_threshold_is_undercharged_as_published() -> None:
    """tau/R for each of ten participations is 0.1 of 1; what holds is 0.28."""
    z = exact_multiplier(1, DELTA, 100)
    assert epsilon_of(math.sqrt(10) / z, DELTA) == pytest.approx(0.2845, abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "loss"), [(0.5, 0.346), (0.1, 0.047)])
def test_hidden_and_redrawn_is_safe_and_wasteful(budget: float, loss: float) -> None:
    q = float(included(each(budget), 1.0)[0])
    event = Repeat(Poisson(q, Gaussian(exact_multiplier(1, DELTA, 100))), 100)
    assert best(event, DELTA, "zero_out").epsilon == pytest.approx(loss, abs=2e-3)


def test_literal_noise_is_louder_and_accounted_for() -> None:
    parts = made(
        {"name": "pdp_prox", "mechanism": "published", "literal": True}, {"name": "threshold_published"}, GROUPS
    )
    uplink = parts.setup.algorithm.uplink
    event = uplink.claims(1.0, lambda e, a: e)[0].event
    assert isinstance(event, Gaussian)
    assert epsilon_of(1 / event.noise_multiplier, DELTA) == pytest.approx(9.997, abs=2e-3)  # clip 1, noise of 1 * 0.5
    assert epsilon_of(1.0, DELTA) == pytest.approx(4.377, abs=1e-3)
