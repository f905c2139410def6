"""The numbers that CUAG-PFL prints, and what its own formula gives once its rounds are composed."""

from __future__ import annotations

import math

import pytest

from sordino.accounting.accountants import best
from sordino.accounting.events import Gaussian, Poisson, Repeat
from sordino.accounting.gaussian_dp import delta_of, epsilon_of, mu_of
from sordino.accounting.published import (
    PublishedSetting,
    adaptive_scale,
    composed,
    limit_mu,
    prifedsync_mu,
    relative_noise,
    scaffold_epsilon,
    udp_multiplier,
)
from sordino.errors import InvalidBudget

DELTA = 1e-5
SCALES = {
    1: (0.7105, 0.0284), 2: (0.8400, 0.0336), 5: (1.1105, 0.0444), 10: (1.4352, 0.0574), 30: (2.2987, 0.0919), 50: (2.9138, 0.1166),
    100: (4.0614, 0.1625), 150: (4.9494, 0.1980), 200: (5.7007, 0.2280), 300: (6.9641, 0.2786),
}  # fmt: skip


@pytest.mark.parametrize("t", SCALES)
def test_scales_over_rounds(t: int) -> None:
    scale = adaptive_scale(0.25, t)
    assert (round(scale, 4), round(relative_noise(scale), 4)) == SCALES[t]
    assert limit_mu(PublishedSetting().product, t * 25, scale) == pytest.approx(0.25)  # what it was solved for


@pytest.mark.parametrize(
    ("mu", "first", "last"),
    [
        (0.1, 1.2011, 17.335),
        (0.15, 0.9211, 11.569),
        (0.2, 0.7882, 8.689),
        (0.5, 0.5540, 3.535),
        (1, 0.4655, 1.864),
        (2, 0.4085, 1.086),
    ],
)
def test_scales_of_other_budgets(mu: float, first: float, last: float) -> None:
    assert adaptive_scale(mu, 1) == pytest.approx(first, abs=6e-5)
    assert adaptive_scale(mu, 300) == pytest.approx(last, abs=6e-4)


@pytest.mark.parametrize(
    ("mu", "epsilon"),
    [
        (0.1, 0.3407),
        (0.15, 0.5299),
        (0.2, 0.7255),
        (0.25, 0.9263),
        (0.2484, 0.9200),
        (0.5, 1.9931),
        (1, 4.3772),
        (2, 9.9973),
    ],
)
def test_budgets_in_epsilon(mu: float, epsilon: float) -> None:
    assert epsilon_of(mu, DELTA) == pytest.approx(epsilon, abs=2e-4)
    assert mu_of(epsilon_of(mu, DELTA), DELTA) == pytest.approx(mu, rel=1e-6)
    assert delta_of(epsilon_of(mu, DELTA), mu) == pytest.approx(DELTA, rel=1e-6)


def test_epsilon_grows_with_mu_and_stays_finite() -> None:
    found = [epsilon_of(mu, DELTA) for mu in (0.1, 1, 5, 20)]
    assert found == sorted(found)
    assert math.isfinite(found[-1])


@pytest.mark.parametrize(
    ("t", "epsilon"),
    [(1, 0.41), (17, 1.93), (18, 1.99), (22, 2.23), (23, 2.28), (53, 3.66), (296, 10.15), (299, 10.21), (300, 10.24)],
)
def test_prifedsync_is_another_formula(t: int, epsilon: float) -> None:
    assert round(epsilon_of(prifedsync_mu(t), DELTA), 2) == epsilon


@pytest.mark.parametrize(
    ("t", "epsilon"), [(1, 1.5174), (11, 5.03), (101, 15.25), (108, 15.77), (236, 23.31), (300, 26.2826)]
)
def test_dp_scaffold(t: int, epsilon: float) -> None:
    assert scaffold_epsilon(t, DELTA) == pytest.approx(epsilon, abs=6e-3)


def test_udp() -> None:
    assert udp_multiplier(1, 10, DELTA) == pytest.approx(0.1517, abs=6e-5)
    assert udp_multiplier(300, 10, DELTA) == pytest.approx(2.6283, abs=6e-5)


def test_the_schedule_composed_costs_more_than_it_says() -> None:
    assert composed(0.25, 300) == pytest.approx(0.6266, abs=6e-5)
    assert epsilon_of(composed(0.25, 300), DELTA) == pytest.approx(2.567, abs=2e-3)
    assert [composed(mu, 300) for mu in (0.1, 1, 2)] == pytest.approx([0.2507, 2.507, 5.013], abs=6e-4)


@pytest.mark.slow
def test_prifedsync_by_an_exact_accountant() -> None:
    """Granting it Poisson samples of rate 0.01: 4.13 after one step where 0.41 is claimed, 12.0 after 300."""
    for steps, epsilon in ((1, 4.13), (300, 12.0)):
        event = Repeat(Poisson(0.01, Gaussian(0.45)), steps)
        assert best(event, DELTA, "zero_out").epsilon == pytest.approx(epsilon, rel=0.02)


@pytest.mark.parametrize("mu", [0.0, -1.0, math.nan, math.inf])
def test_a_budget_is_a_number_above_0(mu: float) -> None:
    with pytest.raises(InvalidBudget):
        adaptive_scale(mu, 1)
