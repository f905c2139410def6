"""Noise from budgets: printed numbers, and the two laws of calibration: never overshoot, waste at most 1%."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from sordino.accounting import accountants
from sordino.accounting.accountants import (
    classic_multiplier,
    epsilon_by,
    exact_multiplier,
    sampled_multiplier,
)
from sordino.accounting.events import Gaussian, Poisson, Repeat
from sordino.accounting.gaussian_dp import delta_of
from sordino.accounting.pricing import sampled_gaussian
from sordino.accounting.published import NOMINAL_ORDERS, nominal_multiplier
from sordino.errors import InvalidBudget, SordinoError, UnsoundGuarantee
from tests.accounting.fixed_subsets import fixed_subset, subset_delta

INTEGERS = tuple(range(2, 257))
FEW_ORDERS = (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def spent(
    z: float, delta: float, rate: float, times: int, accountant: str = "rdp", orders: tuple[float, ...] = INTEGERS
) -> float:
    return epsilon_by(accountant, Repeat(Poisson(rate, Gaussian(z)), times), delta, "zero_out", orders=orders)


def test_classic_numbers() -> None:
    assert classic_multiplier(1.0, 1e-5, checked=True) == pytest.approx(4.844805, rel=1e-6)
    assert classic_multiplier(0.5, 5e-7) == pytest.approx(10.856077, rel=1e-6)
    assert classic_multiplier(0.05, 5e-7) == pytest.approx(108.560771, rel=1e-6)


@pytest.mark.parametrize("epsilon", [1.0, 1.5, 10.0])
def test_classic_refuses_from_one_on(epsilon: float) -> None:
    with pytest.raises(UnsoundGuarantee) as caught:
        classic_multiplier(epsilon, 5e-7)
    assert caught.value.code == "classic-gaussian-needs-small-epsilon"


@pytest.mark.parametrize(("delta", "fails_at"), [(1e-5, 8.42), (5e-7, 8.88), (1e-3, 7.47)])
def test_classic_checked_accepts_until_the_formula_fails(delta: float, fails_at: float) -> None:
    assert classic_multiplier(fails_at - 0.01, delta, checked=True) > 0
    with pytest.raises(UnsoundGuarantee):
        classic_multiplier(fails_at + 0.01, delta, checked=True)


def test_exact_numbers() -> None:
    assert exact_multiplier(1, 1e-5) == pytest.approx(3.730632, rel=1e-6)
    assert exact_multiplier(0.5, 5e-7) == pytest.approx(8.348320, rel=1e-6)
    assert exact_multiplier(10, 1e-5) == pytest.approx(0.499889, rel=1e-6)
    too_small = math.sqrt(2 * math.log(1.25e5)) / 10
    assert too_small == pytest.approx(0.484481, rel=1e-5)
    assert delta_of(10, 1 / too_small) == pytest.approx(2.265e-5, rel=1e-3)
    assert exact_multiplier(10, 1e-5, 20) == pytest.approx(2.2356, abs=5e-5)
    for epsilon, std in ((1, 0.05561), (5, 0.01330), (10, 0.00745), (20, 0.00432), (30, 0.00320)):
        assert 2 * exact_multiplier(epsilon, 1e-5, 20) / 600 == pytest.approx(std, abs=6e-6)


@given(st.floats(1e-3, 50), st.floats(1e-12, 0.3), st.integers(1, 500))
@settings(max_examples=50, deadline=None)
def test_exact_noise_never_overshoots_and_is_tight(epsilon: float, delta: float, times: int) -> None:
    mu = math.sqrt(times) / exact_multiplier(epsilon, delta, times)
    assert delta_of(epsilon, mu) <= delta * (1 + 1e-9)
    assert delta_of(epsilon, 1.001 * mu) > delta


def test_sampled_numbers() -> None:
    orders = INTEGERS[:63]  # the best order is near 20: 65..256 change nothing
    assert sampled_multiplier(1, 1e-5, 0.01, 20, orders=orders) == pytest.approx(1.0322, abs=5e-5)
    assert sampled_multiplier(1, 1e-5, 0.01, 2000, orders=orders) == pytest.approx(1.9813, abs=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "z"), [(5, 0.5551), (10, 0.4110), (20, 0.3119), (30, 0.2598)])
def test_more_sampled_numbers(epsilon: float, z: float) -> None:
    assert sampled_multiplier(epsilon, 1e-5, 0.01, 20, orders=NOMINAL_ORDERS) == pytest.approx(z, abs=6e-5)
    assert sampled_multiplier(epsilon, 1e-5, 0.01, 20) <= z  # our finer orders need no more noise


@pytest.mark.slow
def test_loss_distributions_need_less_noise_than_renyi() -> None:
    by_pld = sampled_multiplier(2.0, 1e-5, 0.05, 50, accountant="pld")
    assert spent(by_pld, 1e-5, 0.05, 50, "pld") <= 2.0 < spent(0.99 * by_pld, 1e-5, 0.05, 50, "pld")
    assert by_pld < sampled_multiplier(2.0, 1e-5, 0.05, 50, orders=FEW_ORDERS)


@given(st.floats(-9, -0.01), st.floats(-1, 6), st.sampled_from((2, 3, 8, 32, 256)))
@settings(max_examples=50, deadline=None)
def test_the_price_of_a_sample_is_no_smaller_than_its_divergence(log_rate: float, log_z: float, order: int) -> None:
    """However tiny it is: a moment next to 1 would lose it, here to as little as 1e-33."""
    rate, z = 10**log_rate, 10**log_z
    with mpmath.workdps(60):
        q, square = mpmath.mpf(rate), mpmath.mpf(z) ** 2
        chances = [mpmath.binomial(order, j) * q**j * (1 - q) ** (order - j) for j in range(order + 1)]
        moment = mpmath.fsum(chance * mpmath.exp(j * (j - 1) / (2 * square)) for j, chance in enumerate(chances))
        divergence = float(mpmath.log(moment) / (order - 1))
    assert sampled_gaussian(rate, z, order) == pytest.approx(divergence, rel=1e-12, abs=0)


@pytest.mark.slow
def test_a_guess_that_is_too_small_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guess looks at one direction of neighbours; where the other one costs more, the search is made in full."""
    right = sampled_multiplier.__wrapped__(2.0, 1e-5, 0.1, 20, "pld")
    assert epsilon_by("pld", Repeat(Poisson(0.1, Gaussian(right)), 20), 1e-5, "zero_out") <= 2.0
    small = {**accountants._GUESSES, "pld": lambda *asked: 0.8 * accountants._pld(*asked)}
    monkeypatch.setattr(accountants, "_GUESSES", small)
    assert sampled_multiplier.__wrapped__(2.0, 1e-5, 0.1, 20, "pld") == right
    trusting = {**accountants._ACCOUNTANTS, "pld": small["pld"]}  # the twin takes the guess
    monkeypatch.setattr(accountants, "_ACCOUNTANTS", trusting)
    assert sampled_multiplier.__wrapped__(2.0, 1e-5, 0.1, 20, "pld") < 0.95 * right


@pytest.mark.one_fast
@pytest.mark.parametrize("case", [(0.1, 1e-6, 0.01, 1), (3.0, 1e-8, 0.1, 100), (40.0, 1e-5, 0.9, 3)])
def test_the_central_limit_is_near_the_noise(case: tuple[float, float, float, int]) -> None:
    assert accountants._near(*case) / 4 <= sampled_multiplier(*case, "pld") <= 4 * accountants._near(*case)


def check_calibration(calibrated: Callable[..., float], case: tuple[float, float, float, int]) -> None:
    """(epsilon, delta, rate, times): within budget; 1% less noise is not."""
    epsilon, delta, rate, times = case
    z = calibrated(epsilon, delta, rate, times, orders=FEW_ORDERS)
    assert spent(z, delta, rate, times, orders=FEW_ORDERS) <= epsilon
    assert spent(0.99 * z, delta, rate, times, orders=FEW_ORDERS) > epsilon


CASES = st.tuples(
    st.floats(-1, 1.5).map(lambda x: 10**x), st.floats(-9, -3).map(lambda x: 10**x),
    st.floats(-3, 0).map(lambda x: 10**x), st.floats(0, 3.5).map(lambda x: int(10**x)),
)  # fmt: skip


def within_reach(case: tuple[float, float, float, int]) -> None:
    epsilon, delta, *_ = case
    # below this the conversion of the largest order alone exceeds epsilon: no noise can help this accountant
    assume(math.log1p(-1 / 64) - math.log(delta * 64) / 63 < 0.99 * epsilon)
    check_calibration(sampled_multiplier, case)


@given(CASES)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_sampled_noise_never_overshoots(case: tuple[float, float, float, int]) -> None:
    within_reach(case)


@pytest.mark.slow
@given(CASES)
@settings(max_examples=1000, deadline=None)
def test_sampled_noise_never_overshoots_in_1000_cases(case: tuple[float, float, float, int]) -> None:
    within_reach(case)


@pytest.mark.parametrize("epsilon", [1e4, 1e300])
def test_a_budget_above_every_loss_that_is_computed_is_kept(epsilon: float) -> None:
    z = sampled_multiplier(epsilon, 1e-5, 0.1, 100, "pld")
    assert spent(z, 1e-5, 0.1, 100, "pld") <= min(epsilon, 7e4)  # 100 releases, no loss of which is above 700
    assert spent(z / 1.01, 1e-5, 0.1, 100, "pld") > 9_990  # more than 1e4, or not computed
    assert spent(z / 2, 1e-5, 0.1, 100, "pld") == math.inf
    assert [bound.accountant for bound in accountants.bounds(Poisson(0.1, Gaussian(1e-3)), 1e-5, "zero_out")] == ["rdp"]


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_a_calibration_off_by_two_percent_is_caught(factor: float) -> None:
    def twin(epsilon: float, delta: float, rate: float, times: int, orders: tuple[float, ...]) -> float:
        return factor * sampled_multiplier(epsilon, delta, rate, times, orders=orders)

    with pytest.raises(AssertionError):
        check_calibration(twin, (2.0, 1e-5, 0.1, 100))


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: exact_multiplier(0.0, 1e-5), "epsilon-not-positive"),
        (lambda: classic_multiplier(-1.0, 1e-5), "epsilon-not-positive"),
        (lambda: exact_multiplier(math.nan, 1e-5), "epsilon-not-positive"),
        (lambda: sampled_multiplier(math.inf, 1e-5, 0.1, 1), "epsilon-not-finite"),
        (lambda: exact_multiplier(1.0, 0.0), "delta-out-of-range"),
        (lambda: classic_multiplier(0.5, 1.0), "delta-out-of-range"),
        (lambda: sampled_multiplier(1.0, math.nan, 0.1, 1), "delta-out-of-range"),
        (lambda: exact_multiplier(1.0, 1e-5, 0), "releases-not-positive"),
        (lambda: sampled_multiplier(1.0, 1e-5, 0.1, True), "releases-not-positive"),
        (lambda: sampled_multiplier(1.0, 1e-5, 1.5, 3), "rate-out-of-range"),
        (lambda: sampled_multiplier(1.0, 1e-5, -0.1, 3), "noise-not-a-number"),
        (lambda: sampled_multiplier(0.001, 1e-9, 0.1, 1, orders=FEW_ORDERS), "budget-out-of-reach"),
    ],
)
def test_refusals(call: Callable[[], float], code: str) -> None:
    with pytest.raises(SordinoError) as caught:
        call()
    assert caught.value.code == code
    assert isinstance(caught.value, InvalidBudget | UnsoundGuarantee)


# -------------------------------------------------------------------------- the publication's fixed subset

PEER = [  # nominal epsilon, noise std, proved bound, bound for a known member, lower bound, fresh-sample epsilon
    (1, 0.330217, 17.2, 27.0, 3.8, 0.215),
    (5, 0.132284, 85.6, 102.8, 25.7, 1.91),
    (10, 0.104674, 128.8, 149.4, 38.7, 3.45),
    (20, 0.084161, 189.6, 214.1, 56.4, 6.14),
    (30, 0.074786, 234.2, 261.1, 69.2, 8.05),
]


@pytest.mark.parametrize(
    ("nominal", "std", "proved", "member", "least", "fresh"),
    [pytest.param(*row, marks=[pytest.mark.slow] * (row not in PEER[::4])) for row in PEER],
)
def test_published_table(nominal: float, std: float, proved: float, member: float, least: float, fresh: float) -> None:
    z = nominal_multiplier(nominal, 1e-5, 0.01, 20)
    assert z * 0.1 * 10 / 6 == pytest.approx(std, abs=6e-7)
    true = fixed_subset(z, 1e-5, 0.01, 20, decay=0.995)
    assert true.at_most == pytest.approx(proved, abs=0.06)
    assert true.in_subset == pytest.approx(member, abs=0.06)
    assert true.at_least == pytest.approx(least, abs=0.06)
    assert nominal < true.at_least <= true.at_most <= true.in_subset
    assert spent(z, 1e-5, 0.01, 20, orders=NOMINAL_ORDERS) == pytest.approx(fresh, abs=6e-3)


def test_nominal_multiplier_at_one() -> None:
    assert nominal_multiplier(1, 1e-5, 0.01, 20) == pytest.approx(1.9813, abs=5e-5)


def test_two_neighbours_break_the_nominal_promise() -> None:
    mu = [2 * math.sqrt(sum(0.995 ** (2 * j) for j in range(20))) / (6 * std) for _, std, *_ in PEER]
    assert subset_delta(1, mu[0], 0.01) == pytest.approx(5.0e-4, rel=0.01)
    assert subset_delta(10, mu[2], 0.01) == pytest.approx(8.6e-3, rel=0.01)


@pytest.mark.parametrize(("epsilon", "mu", "rate"), [(0.5, 1.0, 0.3), (3.0, 4.0, 0.01), (0.0, 2.0, 0.9)])
def test_two_neighbours_by_integration(epsilon: float, mu: float, rate: float) -> None:
    y = np.linspace(-20, 20, 400_001)
    bell, up, down = (np.exp(-((y - c) ** 2) / 2) / math.sqrt(2 * math.pi) for c in (0, mu / 2, -mu / 2))
    p, q = (1 - rate) * bell + rate * up, (1 - rate) * bell + rate * down
    integral = np.maximum(p - math.exp(epsilon) * q, 0).sum() * (y[1] - y[0])
    assert subset_delta(epsilon, mu, rate) == pytest.approx(integral, rel=1e-6)


def test_a_subset_of_everything_is_the_plain_gaussian() -> None:
    whole = fixed_subset(4.0, 1e-5, 1.0 - 1e-12, 1)
    assert whole.at_least == pytest.approx(whole.in_subset, rel=1e-6)
    assert whole.at_most == pytest.approx(whole.in_subset, rel=1e-6)
    assert ndtr(0.25) - math.exp(0) * ndtr(-0.25) == pytest.approx(subset_delta(0.0, 0.5, 1 - 1e-12), rel=1e-6)
