"""What leaves the `system` source lies on a grid, follows the exact law there, and has no low bits that betray the
input.

Chi-square tests reject at p < 1e-6 and draw anew each time; deterministic parts have no false alarms.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from sordino.errors import UnsoundGuarantee
from sordino.privacy.noise import GaussianNoise, LaplaceNoise, NoiseLaw, Steps
from sordino.privacy.noise.sources import GRID, TABLE_ERROR, Counter, SystemNoise, grid_step
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.stages import Clip, Noise
from sordino.types import Grant, NoiseSource

DRAWS = 10**6
SCALE = 1.7  # of the noise; any
STEP = grid_step(SCALE)
Floats = NDArray[np.float64]
LAWS: dict[str, NoiseLaw] = {"gaussian": GaussianNoise(), "laplace": LaplaceNoise()}


def release(law: str, x: float, source: NoiseSource, scale: float = SCALE, count: int = DRAWS) -> Floats:
    """`count` releases of x: as many coordinates of one client's upload, all equal to x, through the public call."""
    noise = Noise(LAWS[law], "zero_out")
    values = {"w": torch.full((count,), x, dtype=torch.float64)}
    order, limit = noise.mechanism.order, 2.0
    radius = limit * (count if order == 1 else math.sqrt(count))
    sent = Uplink(client=(Clip(radius, order), noise)).encode(values, Grant(0, 1, 1, source, scale / radius))  # type: ignore[arg-type]
    return np.asarray(sent["w"].numpy())


def on_grid(outputs: Floats, step: float) -> float:
    """Share of outputs that are whole multiples of the step."""
    return float(np.mean(outputs / step == np.rint(outputs / step)))


# ---------------------------------------------------------------- no low bits


@pytest.mark.parametrize("draws", [DRAWS // 10, pytest.param(DRAWS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("law", LAWS)
def test_neighbours_release_the_same_grid(law: str, draws: int) -> None:
    for x in (0.0, 1.0, 0.1, -2 / 3):
        assert on_grid(release(law, x, SystemNoise(), count=draws), STEP) == 1
    assert (
        on_grid(release(law, 0.1, Counter(1), count=draws), STEP) < 0.01
    )  # the simulation's float sampler is rejected


def impossible(outputs: Floats, x: float, scale: float) -> float:
    """Share of outputs that x + scale * ln(u), u a multiple of 2^-53, can never be in float64: the attack of Mironov
    2012.
    """
    wanted = np.abs(outputs - x) / scale
    u = np.rint(np.exp(-wanted) * 2.0**53)
    reached = np.zeros(len(outputs), dtype=bool)
    for shift in range(-4, 5):  # the exponential and the logarithm are off by a few units only
        noise = -scale * np.log((u + shift) * 2.0**-53)
        reached |= (x + noise == outputs) | (x - noise == outputs)
    return float(np.mean(~reached))


def naive_laplace(x: float, scale: float, count: int) -> Floats:
    rng = np.random.default_rng(5)
    u = rng.integers(1, 2**53, count) * 2.0**-53
    return np.asarray(x + np.where(rng.random(count) < 0.5, -1, 1) * -scale * np.log(u))


def test_the_textbook_laplace_is_broken_by_its_low_bits() -> None:
    from_zero = naive_laplace(0.0, 1.0, 10**5)
    assert impossible(from_zero, 0.0, 1.0) < 0.01  # the test knows its sampler
    assert impossible(from_zero, 1.0, 1.0) > 0.5  # and tells most single outputs of a neighbour apart


def test_a_grid_leaves_no_output_impossible() -> None:
    zero, one = (
        np.rint(release("laplace", x, SystemNoise(), 1.0, 10**5) / grid_step(1.0)).astype(np.int64) for x in (0, 1)
    )
    shared = range(int(one.min()), int(zero.max()))  # inside both ranges every cell has mass from either input
    thresholds = LaplaceNoise().in_steps(round(1.0 / grid_step(1.0), 9)).thresholds
    assert np.all(np.diff(thresholds)[len(thresholds) // 4 : -len(thresholds) // 4] > 0)
    assert len(shared) > GRID


@given(st.floats(1e-6, 1e6))
@settings(max_examples=50, deadline=None)
def test_no_noise_is_narrower_than_what_is_priced(scale: float) -> None:
    """By more than an eighth of TABLE_ERROR: normal laws whose deviations differ by r differ by 0.484 r."""

    class Asked(GaussianNoise):
        def in_steps(self, scale: float) -> Steps:
            asked.append(scale)
            return super().in_steps(4096.0)

    asked = list[float]()
    SystemNoise().noisy(Asked(), torch.zeros(1), scale)
    assert 1 - TABLE_ERROR / 4 <= asked[0] / (scale / grid_step(scale)) <= 1 + 1e-12


# ---------------------------------------------------------------- the law on the grid


def cell_law(law: str, x: float, edges: Floats, scale: float) -> Floats:
    """P[floor((x + noise) / STEP) = k], summed between edges: the continuous law at cell borders."""
    cdf = stats.norm.cdf if law == "gaussian" else stats.laplace.cdf
    return np.asarray(np.diff(np.concatenate([[0.0], cdf((edges * STEP - x) / scale), [1.0]])))


def p_value(law: str, outputs: Floats, x: float, scale: float, width: int) -> float:
    """Chi-square over bins of `width` cells around the middle, and two tails."""
    k = np.rint(outputs / STEP)
    middle = round(x / STEP)
    edges = middle + width * np.arange(-60, 61).astype(np.float64)
    expected = cell_law(law, x, edges, scale) * len(k)
    found = np.bincount(np.searchsorted(edges, k, side="right"), minlength=len(expected))
    assert expected.min() > 5
    return float(stats.chisquare(found, expected).pvalue)


@pytest.mark.parametrize(
    ("law", "x"),
    [
        ("gaussian", 0.4 * STEP),
        ("laplace", 1.0),
        *(pytest.param(*p, marks=pytest.mark.slow) for p in (("gaussian", 1.0), ("laplace", 0.4 * STEP))),
    ],
)
@pytest.mark.slow
def test_the_law_on_the_grid_is_the_exact_one(law: str, x: float) -> None:
    outputs = release(law, x, SystemNoise())
    assert p_value(law, outputs, x, SCALE, width=200) > 1e-6  # the whole law
    assert p_value(law, outputs, x, SCALE, width=1) > 1e-6  # single cells
    for wrong in (0.98, 1.02):
        assert p_value(law, release(law, x, SystemNoise(), SCALE * wrong), x, SCALE, width=200) < 1e-6


class Fixed(SystemNoise):
    """The same words in every instance: two releases coupled in the best way."""

    def __init__(self) -> None:
        super().__init__()
        self._rng = np.random.default_rng(3)

    def child(self, *parts: int | str) -> NoiseSource:
        return Fixed()

    def _words(self, count: int) -> NDArray[np.uint64]:
        return self._rng.integers(0, 2**64, count, dtype=np.uint64)


@pytest.mark.parametrize("law", LAWS)
def test_a_fraction_of_a_step_is_carried(law: str) -> None:
    # whoever cut the input to the grid first would move by 0 steps here; the standard error is 0.001 steps
    moved = release(law, 0.3 * STEP, Fixed(), count=DRAWS // 4) - release(law, 0.0, Fixed(), count=DRAWS // 4)
    assert np.mean(moved) / STEP == pytest.approx(0.3, abs=0.005)
    assert set(np.unique(moved / STEP)) == {0.0, 1.0}


# ---------------------------------------------------------------- rounding and sensitivity


def cut_first(x: Floats, step: float) -> Floats:
    return np.trunc(x / step) * step


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
    st.integers(-20, 20),
)
@settings(max_examples=60, deadline=None)
def test_cutting_one_vector_toward_zero_shortens_it(x: list[float], exponent: int) -> None:
    values = np.array(x)
    cut = cut_first(values, 2.0**exponent)
    assert np.abs(cut).sum() <= np.abs(values).sum()
    assert np.linalg.norm(cut) <= np.linalg.norm(values) * (1 + 1e-15)


def test_but_cutting_a_sum_moves_it_further_than_its_summands() -> None:
    # why `SystemNoise` carries fractions instead: 10^4 coordinates just short of a step, one example that moves each by a
    # hair
    step = grid_step(1.0)
    base, moved = np.full(10**4, step * (1 - 1e-9)), np.full(10**4, step * (1 + 1e-9))
    assert np.linalg.norm(moved - base) < 1e-9
    assert np.linalg.norm(cut_first(moved, step) - cut_first(base, step)) > 0.01


@pytest.mark.parametrize("law", LAWS)
def test_a_hair_moves_the_release_by_a_hair(law: str) -> None:
    # the same words for both inputs: whoever cut first would move every coordinate by a step
    step, hair = grid_step(SCALE), 1e-9
    below, above = (release(law, step * (1 + sign * hair), Fixed(), SCALE, 10**5) for sign in (-1, 1))
    assert np.mean(below != above) < 1e-4


# ---------------------------------------------------------------- the tables, against 60 digits


def exact_cdf(law: str, scale: float) -> Callable[[int], mpmath.mpf]:
    s = mpmath.mpf(scale)
    if law == "gaussian":
        return lambda k: mpmath.erfc(-mpmath.mpf(k) / s / mpmath.sqrt(2)) / 2
    return lambda k: mpmath.exp(k / s) / 2 if k <= 0 else 1 - mpmath.exp(-k / s) / 2


def table(law: str, scale: float) -> Steps:
    return LAWS[law].in_steps(scale)


def table_error(law: str, scale: float, cells: Steps, every: int) -> float:
    """Total variation between the table and the exact law, from cells `every` apart: their errors are alike."""
    with mpmath.workdps(60):
        cdf, total, seen = exact_cdf(law, scale), mpmath.mpf(0), 0
        for i in range(1, len(cells.thresholds), every):
            k = cells.lowest + i
            mass = mpmath.mpf(int(cells.thresholds[i]) - int(cells.thresholds[i - 1])) / 2**64
            total += abs(mass - (cdf(k + 1) - cdf(k)))
            seen += 1
        tails = cdf(cells.lowest) + 1 - cdf(cells.lowest + len(cells.thresholds) + 1)
        return float((total * len(cells.thresholds) / seen + tails) / 2)


@pytest.mark.one_fast
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [4096.0, 6789.123, 8191.9])
def test_the_table_is_exact_to_what_the_receipt_says(law: str, scale: float) -> None:
    assert table_error(law, scale, table(law, scale), every=997) <= TABLE_ERROR


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_every_cell_of_the_table_is_exact(law: str) -> None:
    assert table_error(law, 4096.0, table(law, 4096.0), every=1) <= TABLE_ERROR


@pytest.mark.parametrize("law", LAWS)
def test_a_table_in_single_precision_is_caught(law: str) -> None:
    cells = table(law, 4096.0)
    rounded = cells.thresholds >> np.uint64(40) << np.uint64(40)  # 24 bits are left
    coarse = Steps(rounded, cells.lowest, cells.slope, cells.bend)
    assert table_error(law, 4096.0, coarse, every=997) > TABLE_ERROR


@pytest.mark.parametrize("law", LAWS)
def test_the_fraction_carries_as_the_law_inside_a_cell_says(law: str) -> None:
    with mpmath.workdps(60):
        for scale in (4096.0, 8191.9):
            cdf, cells = exact_cdf(law, scale), table(law, scale)
            for k in (-8 * 4096, -4097, -1, 0, 1, 300, 5 * 4096):
                for r in (0.0, 1e-12, 0.25, 0.5, 0.999):
                    exact = (cdf(k + 1) - cdf(mpmath.mpf(k + 1) - mpmath.mpf(r))) / (cdf(k + 1) - cdf(k))
                    assert float(cells.carry(np.array([k]), np.array([r]))[0]) == pytest.approx(float(exact), abs=4e-16)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1e-300])
def test_a_scale_without_a_grid_is_refused(scale: float) -> None:
    with pytest.raises(UnsoundGuarantee) as refusal:
        SystemNoise().noisy(GaussianNoise(), torch.zeros(3), scale)
    assert refusal.value.code == "noise-scale-not-positive"


@pytest.mark.one_fast
@pytest.mark.parametrize("scale", [4096.0, 5000.123456789, 8191.9])
@pytest.mark.parametrize("law", LAWS)
def test_words_that_are_looked_up_have_the_place_that_a_search_finds(law: str, scale: float) -> None:
    """At all ends of places and of looked-up intervals, where a mistake would lie."""
    steps, one = LAWS[law].in_steps(scale), np.uint64(1)
    ends = np.arange(1 << 18, dtype=np.uint64) << np.uint64(64 - 18)
    words = np.concatenate([steps.thresholds, steps.thresholds - one, steps.thresholds + one, ends, ends - one])
    assert np.array_equal(steps._places(words), np.searchsorted(steps.thresholds, words, side="right"))


@pytest.mark.parametrize("scale", [4096.0, 8191.9])
@pytest.mark.parametrize("law", LAWS)
def test_a_fraction_that_is_compared_alone_carries_as_its_probability_says(law: str, scale: float) -> None:
    """Uniform numbers close to the fraction, also in the tails, where a step is least even."""
    steps, rng = LAWS[law].in_steps(scale), np.random.default_rng(3)
    tails = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1], np.uint64)
    words = np.repeat(np.concatenate([tails, rng.integers(0, 2**64, 50, np.uint64)]), 2_000)
    fraction = rng.random(len(words))
    uniform = np.clip(fraction + rng.uniform(-1e-3, 1e-3, len(words)), 0, 1 - 2.0**-53)
    more = np.floor(uniform * 2.0**53).astype(np.uint64) << np.uint64(11)
    drawn = np.searchsorted(steps.thresholds, words, side="right") + steps.lowest
    carried = np.floor(uniform * 2.0**53) * 2.0**-53 < steps.carry(drawn, fraction)
    assert np.array_equal(steps(words, more, fraction), drawn + carried)
    assert not np.array_equal(carried, uniform < fraction)  # the law is not even


def test_noise_comes_in_the_precision_of_the_values() -> None:
    for dtype, found in ((torch.float32, torch.float32), (torch.float64, torch.float64), (torch.int64, torch.float64)):
        noisy = SystemNoise().noisy(LaplaceNoise(), torch.zeros(3, dtype=dtype), 1.0)
        assert noisy.dtype == found
        assert on_grid(noisy.double().numpy(), grid_step(1.0)) == 1


@pytest.mark.parametrize("law", LAWS)
def test_where_numpy_has_no_long_numbers_tables_would_be_too_coarse_and_no_real_noise_is_drawn(
    law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows and on ARM Macs."""
    monkeypatch.setattr(np, "longdouble", np.float64)
    with np.errstate(invalid="ignore"):
        assert table_error(law, 4097.0, table(law, 4097.0), every=997) > 10 * TABLE_ERROR
    with pytest.raises(UnsoundGuarantee) as refusal:
        release(law, 0.5, SystemNoise(), count=2)
    assert refusal.value.code == "noise-needs-long-numbers"
