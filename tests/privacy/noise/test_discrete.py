"""Integer noise has the law that it names: every digit's chance, chi-square against the exact weights, moments, sums.

Statistical tests have fixed seeds; each would raise a false alarm for one seed in a million (p < 1e-6, or beyond 5
standard errors), and the same test must catch a law that is a little off.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from sordino.accounting.accountants import best
from sordino.accounting.events import DiscreteGaussian
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.accounting.pricing import Discrete
from sordino.errors import UnsoundGuarantee
from sordino.privacy import noise
from sordino.privacy.noise import discrete_gaussian, discrete_laplace
from sordino.privacy.noise.sources import TABLE_ERROR, Counter, SystemNoise

MANY = 300_000
ALARM = 1e-6


def gaussian_weights(sigma: float, x: np.ndarray) -> np.ndarray:
    return np.exp(-(x**2) / (2 * sigma**2))


def laplace_weights(scale: float, x: np.ndarray) -> np.ndarray:
    return np.exp(-np.abs(x) / scale)


LAWS = {
    "gaussian": (discrete_gaussian, gaussian_weights),
    "laplace": (discrete_laplace, laplace_weights),
}
BOTH = pytest.mark.parametrize("law", LAWS)


def chi_square(values: np.ndarray, weights, scale: float) -> float:
    """The p-value of exact cell probabilities, cells that expect fewer than ten pooled into the tails."""
    half = math.ceil(60 * scale) + 2
    x = np.arange(-half, half + 1)
    chances = weights(scale, x.astype(float))
    chances /= chances.sum()
    cells = np.abs(x) <= max(int(np.max(np.abs(x[len(values) * chances >= 10]), initial=0)), 0)
    observed = np.array([np.count_nonzero(values == k) for k in x[cells]])
    expected = len(values) * chances[cells]
    rest, mass = len(values) - observed.sum(), len(values) - expected.sum()
    if mass > 5:
        observed, expected = np.append(observed, rest), np.append(expected, mass)
    statistic = ((observed - expected) ** 2 / expected).sum()
    return float(stats.chi2.sf(statistic, len(observed) - 1))


# ---------------------------------------------------------------- the law


@pytest.mark.one_fast
@BOTH
@pytest.mark.parametrize("scale", [0.3, 0.5, 1.0, 2.5, 7.3])
def test_small_scales_have_the_exact_weights(law: str, scale: float) -> None:
    draw, weights = LAWS[law]
    assert chi_square(draw(Counter(17), MANY, scale), weights, scale) > ALARM


@BOTH
@pytest.mark.parametrize("scale", [0.5, 1.0, 2.5])
def test_the_system_source_has_them_too(law: str, scale: float) -> None:
    draw, weights = LAWS[law]
    assert chi_square(draw(SystemNoise(), MANY // 2, scale), weights, scale) > 1e-9  # unseeded: one run in 10^9 fails


@pytest.mark.one_fast
@BOTH
@pytest.mark.parametrize("scale", [1.0, 2.5, 7.3])
def test_the_same_test_catches_a_scale_that_is_two_percent_off(law: str, scale: float) -> None:
    draw, weights = LAWS[law]
    assert chi_square(draw(Counter(17), MANY, 1.02 * scale), weights, scale) < ALARM


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.5])
def test_the_same_test_catches_rounded_continuous_noise(sigma: float) -> None:
    noise = np.random.default_rng(1).normal(0, sigma, MANY)
    for cut in (np.floor, np.rint):
        if not (
            cut is np.rint and sigma > 1
        ):  # wider than that, rounding to nearest differs by less than a test can see
            assert chi_square(cut(noise), gaussian_weights, sigma) < ALARM


def test_the_same_test_catches_a_zero_that_is_drawn_from_both_sides() -> None:
    size = np.abs(discrete_laplace(Counter(1), MANY, 1.0))
    signs = np.where(np.random.default_rng(1).random(MANY) < 0.5, 1, -1)
    assert chi_square(size * signs, laplace_weights, 1.0) > ALARM  # symmetric already
    naive = (
        np.random.default_rng(2).geometric(1 - math.exp(-1), MANY) - 1
    )  # a signed geometric number has too many zeros
    assert chi_square(naive * signs, laplace_weights, 1.0) < ALARM


@pytest.mark.parametrize("scale", [0.3, 1.0, 61.7, 1e5, 1e9, 2.0**40])
def test_every_digit_has_the_chance_of_a_geometric_number(scale: float) -> None:
    """By another implementation: exact tail sums at 60 digits, of numbers whose digit is 1."""
    with mpmath.workdps(60):
        digits = max(1, math.ceil(math.log2(45 * scale)))
        assert digits <= 47
        off = mpmath.mpf(0)
        for digit in range(digits):
            q = mpmath.exp(-(mpmath.mpf(2) ** digit) / mpmath.mpf(scale))
            off += abs(mpmath.mpf(int(noise._threshold(digit, scale))) / 2**64 - q / (1 + q))
        beyond = mpmath.exp(-(mpmath.mpf(2) ** digits) / mpmath.mpf(scale))
        assert off + beyond < 3e-18


def test_digits_make_a_geometric_number() -> None:
    """The identity behind it, summed out: the product over digits is (1 - q) q^n."""
    scale, digits = 1.7, 7
    ones = [float(noise._threshold(digit, scale)) / 2.0**64 for digit in range(digits)]
    for n in range(2**digits):
        product = math.prod(ones[j] if n >> j & 1 else 1 - ones[j] for j in range(digits))
        q = math.exp(-1 / scale)
        assert product == pytest.approx((1 - q) * q**n, rel=1e-12, abs=1e-18)


@pytest.mark.parametrize("sigma", [0.05, 0.3, 0.45, 1.0, 3.3, 20.0])
def test_the_acceptance_makes_a_gaussian_of_at_least_half_of_the_candidates(sigma: float) -> None:
    with mpmath.workdps(40):
        s = mpmath.mpf(sigma)
        y = range(-math.ceil(45 * sigma) - 2, math.ceil(45 * sigma) + 3)
        proposed = [mpmath.exp(-abs(n) / s) for n in y]
        chance = [mpmath.exp(-((abs(n) / s - 1) ** 2) / 2) for n in y]
        rounded = [float(np.exp(-0.5 * (abs(n) / sigma - 1) ** 2)) for n in y]
        accepted = mpmath.fsum(p * c for p, c in zip(proposed, chance, strict=True)) / mpmath.fsum(proposed)
        assert accepted > 0.5
        off = max(abs(a - b) for a, b in zip(chance, rounded, strict=True)) + mpmath.mpf(2) ** -53
        assert off < 6e-16
        assert off / accepted < TABLE_ERROR / 4
        for n, p, c in zip(y, proposed, chance, strict=True):
            assert abs(p * c / mpmath.exp(-(n**2) / (2 * s**2) - mpmath.mpf(1) / 2) - 1) < 1e-30


# ---------------------------------------------------------------- large scales


@pytest.mark.one_fast
@BOTH
@pytest.mark.parametrize("scale", [1e3, 1e6, 1e9])
def test_moments_and_cells_of_large_scales(law: str, scale: float) -> None:
    draw, _ = LAWS[law]
    values = draw(Counter(5), MANY, scale)
    ideal = {"gaussian": stats.norm(scale=scale), "laplace": stats.laplace(scale=scale)}[law]
    error = ideal.std() / math.sqrt(MANY)
    assert abs(values.mean()) < 5 * error
    kurtosis = float(ideal.stats("k")) + 3
    assert abs(values.var() / ideal.var() - 1) < 5 * math.sqrt((kurtosis - 1) / MANY)
    edges = ideal.ppf(np.arange(1, 64) / 64)

    def cells(drawn: np.ndarray) -> float:
        return float(stats.chisquare(np.bincount(np.searchsorted(edges, drawn), minlength=64)).pvalue)

    assert cells(values) > ALARM
    assert cells(values * 1.02) < ALARM  # the negative control


@BOTH
def test_low_digits_are_uniform_and_tails_symmetric(law: str) -> None:
    draw, _ = LAWS[law]
    values = draw(Counter(6), MANY, 1e6)
    assert stats.chisquare(np.bincount(values & 255, minlength=256)).pvalue > ALARM
    coarse = values // 2 * 2  # the negative control: a grid of every other step
    assert stats.chisquare(np.bincount(coarse & 255, minlength=256)).pvalue < ALARM
    for beyond in (0, 1e6, 3e6):
        above, below = np.count_nonzero(values > beyond), np.count_nonzero(values < -beyond)
        assert above > 100
        assert abs(above - below) < 5 * math.sqrt(above + below)


@pytest.mark.slow
def test_a_sum_of_shares_has_the_sum_of_the_variances() -> None:
    parties, sigma, count = 34, 3.0, 50_000
    total = sum(discrete_gaussian(Counter(9).child("client", i), count, sigma) for i in range(parties))
    ratio, error = total.var() / (parties * sigma**2), math.sqrt(2 / count)
    assert abs(ratio - 1) < 5 * error
    lonely = parties * discrete_gaussian(Counter(9), count, sigma)  # the negative control: all share one stream
    assert lonely.var() / (parties * sigma**2) > 30


@pytest.mark.one_fast
@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0])
def test_the_variances_that_are_stated(sigma: float) -> None:
    x = np.arange(-2000, 2001).astype(float)
    for (draw, weights), stated, at_least in (
        (LAWS["gaussian"], sigma**2, 1 - 1e-6 if sigma >= 1 else 0),
        (LAWS["laplace"], 2 * math.exp(-1 / sigma) / (1 - math.exp(-1 / sigma)) ** 2, 1 - 1e-12),
    ):
        chances = weights(sigma, x)
        exact = float((chances * x**2).sum() / chances.sum())
        assert at_least * stated <= exact <= stated * (1 + 1e-12)
        kurtosis = float((chances * x**4).sum() / chances.sum()) / exact**2
        drawn = draw(Counter(3), MANY, sigma)
        assert abs(drawn.var() / exact - 1) < 5 * math.sqrt((kurtosis - 1) / MANY)


# ---------------------------------------------------------------- how it is drawn


@BOTH
@pytest.mark.parametrize("source", [Counter(1), SystemNoise()], ids=["counter", "system"])
def test_every_length_comes_and_lies_on_the_grid(law: str, source) -> None:
    draw, _ = LAWS[law]
    for count in (0, 1, 2, 1000):
        for scale in (1e-300, 0.3, 5.0, 1e9, 2.0**40):
            values = draw(source, count, scale)
            assert values.dtype == np.int64
            assert values.shape == (count,)
            assert (np.abs(values) <= 90 * max(scale, 1)).all()  # twice 45 scales: all digits 1


@BOTH
def test_counters_repeat_and_the_system_does_not(law: str) -> None:
    draw, _ = LAWS[law]
    assert (draw(Counter(4), 100, 50.0) == draw(Counter(4), 100, 50.0)).all()
    assert (draw(Counter(4), 100, 50.0) != draw(Counter(5), 100, 50.0)).any()
    source = SystemNoise()
    assert (draw(source, 100, 50.0) != draw(source, 100, 50.0)).any()


@BOTH
def test_neighbouring_coordinates_are_independent(law: str) -> None:
    draw, _ = LAWS[law]
    values = draw(Counter(8), MANY, 1e4).astype(float)
    for lag in (1, 2, 64):
        assert abs(np.corrcoef(values[:-lag], values[lag:])[0, 1]) < 5 / math.sqrt(MANY)
        assert abs(np.corrcoef(np.abs(values[:-lag]), np.abs(values[lag:]))[0, 1]) < 5 / math.sqrt(MANY)


@BOTH
@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 2.0**41])
def test_scales_without_a_law_are_refused(law: str, scale: float) -> None:
    draw, _ = LAWS[law]
    with pytest.raises(UnsoundGuarantee) as raised:
        draw(Counter(0), 3, scale)
    assert raised.value.code == "integer-noise-scale"


# the price ------------------------------------------------------------------------------------------------------------


def exact_delta(deviation: float, shift: int, epsilon: float) -> float:
    """Of discrete Gaussians on the integers, `shift` steps apart: sum over outputs of (p - e^epsilon q)+, by
    enumeration."""
    k = np.arange(-int(40 * deviation), int(40 * deviation) + shift + 1)
    p, q = np.exp(-((k - shift) ** 2) / (2 * deviation**2)), np.exp(-(k**2) / (2 * deviation**2))
    return float(np.maximum(p / p.sum() - math.exp(epsilon) * q / q.sum(), 0.0).sum())


@pytest.mark.one_fast
@pytest.mark.parametrize(("deviation", "shift"), [(4 * math.sqrt(2), 3), (4 * math.sqrt(2), 6), (8.0, 2), (8.0, 8)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_whole_steps_are_priced_by_what_is_known_of_them(deviation: float, shift: int, delta: float) -> None:
    """On the coarsest grid that is allowed and beside it. The broken twin is the continuous curve, which is below the
    truth somewhere."""
    multiplier = deviation / shift
    priced = best(DiscreteGaussian(multiplier), delta, "replace").epsilon
    assert exact_delta(deviation, shift, priced) <= delta
    rho = Discrete().total(priced, delta)[0]
    assert 1 / math.sqrt(2 * rho) == pytest.approx(multiplier, rel=1e-3)  # and back again


def test_the_continuous_curve_is_too_low_for_few_steps() -> None:
    deviation, shift = 4 * math.sqrt(2), 6
    claimed = [epsilon_of(shift / deviation, delta) for delta in np.logspace(-6, -2, 60)]
    over = [exact_delta(deviation, shift, e) / d for e, d in zip(claimed, np.logspace(-6, -2, 60), strict=True)]
    assert max(over) > 1.01
