"""The Gaussian curve at 60 digits, and both of its inverses."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.accounting.accountants import epsilon_by
from sordino.accounting.events import Gaussian, Poisson, Repeat
from sordino.accounting.gaussian_dp import delta_of, epsilon_of, integrated, mu_of
from sordino.errors import InvalidBudget
from tests.accounting.priced import by


@pytest.mark.parametrize(
    ("rate", "noise"), [(10**-2.5, 10**6.5), (10**-9.5, 1e3), (1e-8, 10**3.5), (1e-5, 1e5), (0.5, 1e6), (0.1, 1.0)]
)
def test_a_tiny_divergence_of_a_sample_is_not_lost_to_rounding(rate: float, noise: float) -> None:
    """The logarithm of a moment near 1 was a thousandth of what it is: epsilon 0 at half of the delta that is lost."""
    mp = pytest.importorskip("mpmath")
    orders = (2, 3, 5, 8, 18, 106, 256)
    curve, short = Poisson(rate, Gaussian(noise)).renyi(orders), []
    with mp.workdps(60):
        q, z = mp.mpf(rate), mp.mpf(noise)
        for order, found in zip(orders, map(float, curve), strict=True):
            terms = (
                mp.binomial(order, j) * (1 - q) ** (order - j) * q**j * mp.exp(mp.mpf(j * (j - 1)) / (2 * z * z))
                for j in range(order + 1)
            )
            short.append(mp.mpf(found) < mp.log(mp.fsum(terms)) / (order - 1))
        total_variation = float(q * (2 * mp.ncdf(1 / (2 * z)) - 1))
    assert not any(short)
    assert epsilon_by("rdp", Poisson(rate, Gaussian(noise)), total_variation / 2, "zero_out") > 0


# ---------------------------------------------------------------------------------------- exact Gaussian privacy
def test_delta_of_is_the_formula_at_60_digits() -> None:
    mp = pytest.importorskip("mpmath")
    rng, compared = random.Random(1), 0
    with mp.workdps(60):
        for _ in range(500):
            sigma, epsilon = 10 ** rng.uniform(-1.5, 3), 10 ** rng.uniform(-3, 2.5)
            m, e = 1 / mp.mpf(sigma), mp.mpf(epsilon)
            exact = mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)
            if exact > 1e-280:
                compared += 1
                assert delta_of(epsilon, 1 / sigma) == pytest.approx(float(exact), rel=1e-9, abs=0)
    assert compared > 250


def test_a_tiny_mu_is_not_lost_to_rounding() -> None:
    """As a difference of two tails, delta is 0 at mu = 1e-17."""
    mp = pytest.importorskip("mpmath")
    rng = random.Random(2)
    with mp.workdps(60):
        for _ in range(200):
            mu, x = 10 ** rng.uniform(-17, -4), rng.uniform(0, 30)
            m, e = mp.mpf(mu), mp.mpf(mu * x)
            exact = mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)
            assert delta_of(mu * x, mu) == pytest.approx(float(exact), rel=2e-9, abs=0)
    assert delta_of(1e-310, 1e-310) > 0 == delta_of(1.0, 1e-310)


@pytest.mark.parametrize("lacks", [1e-6, 1e-9, 1e-12, 2.0**-53])
@pytest.mark.parametrize("mu", [20.0, 50.0, 300.0])
def test_a_delta_next_to_one_is_not_lost_to_rounding(mu: float, lacks: float) -> None:
    """As 1 minus a tail, delta keeps no digit of the tail: at mu = 20, delta = 1 - 2^-53 epsilon was 1.2% too small."""
    mp = pytest.importorskip("mpmath")
    epsilon = epsilon_of(mu, 1 - lacks)
    with mp.workdps(60):

        def delta(at: float, m: Any) -> Any:
            return mp.ncdf(m / 2 - at / m) - mp.exp(at) * mp.ncdf(-m / 2 - at / m)

        e, m, wanted = mp.mpf(epsilon), mp.mpf(mu), mp.mpf(1 - lacks)
        assert delta(e * (1 + mp.mpf(1e-12)), m) <= wanted < delta(e * (1 - mp.mpf(1e-9)), m)
        assert delta(e, mp.mpf(mu_of(epsilon, 1 - lacks)) * (1 - mp.mpf(1e-12))) <= wanted


@given(st.floats(1e-3, 30), st.floats(1e-12, 0.4))
@settings(max_examples=100, deadline=None)
def test_both_inverses_keep_the_promise_and_waste_nothing(mu: float, delta: float) -> None:
    epsilon = epsilon_of(mu, delta)
    assert delta_of(epsilon, mu) <= delta * (1 + 1e-9)
    if epsilon > 1e-6:
        assert delta_of(epsilon * (1 - 1e-6), mu) > delta
        assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-5)
        assert delta_of(epsilon, mu_of(epsilon, delta)) <= delta * (1 + 1e-9)


@pytest.mark.slow
@given(st.floats(-4, 2.5), st.floats(-12, -0.3))
@settings(max_examples=60, deadline=None)
def test_integration_holds_the_exact_epsilon_between_two_numbers(log_mu: float, log_delta: float) -> None:
    mu, delta = 10**log_mu, 10**log_delta
    low, high = integrated(mu, delta)
    epsilon = epsilon_of(mu, delta)
    assert low <= epsilon * (1 + 1e-9) + 1e-12
    assert epsilon <= high * (1 + 1e-9) + 1e-12
    if epsilon > 0.01:
        assert high - low < 0.01 * epsilon


def test_integration_where_numbers_end() -> None:
    for mu, delta in ((1e6, 1e-5), (1e-9, 1e-5), (1.0, 1e-300), (1.0, 0.9999), (300.0, 0.5)):
        low, high = integrated(mu, delta)
        assert low <= epsilon_of(mu, delta) <= high


def test_gaussian_numbers() -> None:
    assert epsilon_of(0.5, 1e-5) == pytest.approx(1.99309, abs=1e-5)
    assert epsilon_of(1.0, 1e-5) == pytest.approx(4.37718, abs=1e-5)
    assert epsilon_of(2.0, 1e-5) == pytest.approx(9.99726, abs=1e-5)
    assert by("gdp", Repeat(Gaussian(2.0), 2), 1e-5) == pytest.approx(2.94323, abs=1e-5)  # not 3.98618
    for epsilon, mu in ((1, 0.26805), (5, 1.12124), (10, 2.00045), (20, 3.44778), (30, 4.65722)):
        assert mu_of(epsilon, 1e-5) == pytest.approx(mu, abs=5e-6)


def test_gaussian_ends() -> None:
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert delta_of(1.0, 0.0) == 0.0
    assert epsilon_of(math.inf, 1e-5) == math.inf == epsilon_of(1.0, 0.0)
    assert epsilon_of(1e6, 1e-5) == pytest.approx(5e11 + 4.2648908e6, rel=1e-9)  # mu^2/2 - mu ndtri(delta)
    assert math.isfinite(epsilon_of(1e100, 1e-5))
    assert delta_of(0.0, 1.0) == pytest.approx(math.erf(0.5 / math.sqrt(2)), rel=1e-12)  # total variation distance


@pytest.mark.parametrize("call", [lambda: epsilon_of(-1, 1e-5), lambda: epsilon_of(math.nan, 1e-5),
                                  lambda: epsilon_of(1, 1.0), lambda: delta_of(-1, 1), lambda: mu_of(0, 1e-5),
                                  lambda: mu_of(1, 0)])  # fmt: skip
def test_gaussian_refusals(call: Callable[[], float]) -> None:
    with pytest.raises(InvalidBudget):
        call()
