"""Accountants are never below the truth and near it, against other implementations' bounds and printed values; broken
ones are caught.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest

from sordino.accounting.accountants import best, bounds, epsilon_by, sampled_multiplier
from sordino.accounting.events import (
    Event,
    Gaussian,
    Poisson,
    Repeat,
)
from tests.accounting.priced import PRV, by, sampled, slow

Accountant = Callable[[Event, float], float]


def check_truth(accountant: Accountant, rows: list[dict[str, float]]) -> None:
    """Never below the lower end of an independent accountant's bracket (PRV's error bounds are one-sided proofs)."""
    for row in rows:
        assert accountant(sampled(row), row["delta"]) >= row["lower"] - 1e-9


def check_tightness(rows: list[dict[str, float]]) -> None:
    for row in rows:
        found = {b.accountant: b.epsilon for b in bounds(sampled(row), row["delta"], "zero_out")}
        assert found["pld"] == pytest.approx(row["estimate"], abs=1e-2)
        assert found["rdp"] >= found["pld"]


def once_only(event: Event, delta: float) -> float:
    assert isinstance(event, Repeat)
    return best(event.event, delta, "zero_out").epsilon


def rate_over_ten(event: Event, delta: float) -> float:
    assert isinstance(event, Repeat)
    assert isinstance(event.event, Poisson)
    return best(Repeat(Poisson(event.event.rate / 10, event.event.event), event.count), delta, "zero_out").epsilon


def delta_times_ten(event: Event, delta: float) -> float:
    return best(event, 10 * delta, "zero_out").epsilon


FEW = PRV[1:28:6]  # five rows: the others, and some of these, run in the slow tier


@pytest.mark.parametrize("rows", [FEW[::2], pytest.param(FEW, marks=slow)], ids=len)
@pytest.mark.slow
def test_truth_and_tightness_against_prv(rows: list[dict[str, float]]) -> None:
    check_tightness(rows)
    check_truth(partial(by, "rdp"), rows)
    check_truth(partial(by, "pld"), rows)


@pytest.mark.one_fast
@pytest.mark.parametrize(
    "row", [FEW[0], *(pytest.param(row, marks=slow) for row in FEW[1:3])], ids=lambda row: row["rate"]
)
@pytest.mark.parametrize("twin", [once_only, rate_over_ten, delta_times_ten])
def test_broken_accountants_are_caught(twin: Accountant, row: dict[str, float]) -> None:
    with pytest.raises(AssertionError):
        check_truth(twin, [row])


@slow
def test_all_prv_goldens() -> None:
    assert len(PRV) == 34
    check_tightness(PRV)


# values that other libraries' own tests assert ------------------------------------------------------------------------
DELTA = 1e-5
ALPHAS = (*(1 + k / 10 for k in range(1, 100)), *range(12, 64))  # Opacus' orders
STEPS = {"rdp": 2250, "prv": 2249}
OPACUS = {"rdp": 7.32911117143, "prv": 6.777395712150674}  # opacus/tests/accountants_test.py, q = 0.04, z = 1.5
MULTIPLIERS = {("rdp", 2250): 1.416, ("rdp", 2000): 1.3562, ("prv", 2250): 1.34765625, ("prv", 2000): 1.2915}


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("event", "delta"),
    [(Repeat(Gaussian(math.sqrt(3)), 3), 0.126936), (Repeat(Poisson(0.2, Gaussian(0.5)), 3), 0.15594)],
)
def test_deltas_of_dp_accounting(event: Event, delta: float) -> None:
    """pld/pld_privacy_accountant_test.py asserts these deltas at epsilon 1, to so many digits."""
    digit = 10.0 ** -len(str(delta)[2:])
    above, below = best(event, delta - digit, "zero_out").epsilon, best(event, delta + digit, "zero_out").epsilon
    assert below < 1 < above
    assert above - below < 1e-3


def test_epsilons_of_opacus() -> None:
    """Renyi divergences at broken orders are interpolated from above here; PRV adds 0.01 for its own error."""
    events = {name: Repeat(Poisson(0.04, Gaussian(1.5)), count) for name, count in STEPS.items()}
    renyi = epsilon_by("rdp", events["rdp"], DELTA, "zero_out", orders=ALPHAS)
    assert OPACUS["rdp"] <= renyi <= OPACUS["rdp"] * (1 + 1e-4)
    assert OPACUS["prv"] - 0.02 <= by("pld", events["prv"], DELTA) <= OPACUS["prv"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps"), MULTIPLIERS)
def test_multipliers_of_opacus(name: str, steps: int) -> None:
    """For epsilon 8; its search stops a little above."""
    mine = {"rdp": "rdp", "prv": "pld"}[name]
    found = sampled_multiplier(8.0, DELTA, 0.04, steps, accountant=mine, orders=ALPHAS)
    assert 0.998 * MULTIPLIERS[name, steps] <= found <= MULTIPLIERS[name, steps] + 5e-5


@slow
def test_opacus_still_gives_these_numbers() -> None:
    accountants = pytest.importorskip("opacus.accountants")
    multiplier = pytest.importorskip("opacus.accountants.utils").get_noise_multiplier
    for name, steps in STEPS.items():
        asked = accountants.create_accountant(mechanism=name)
        asked.history = [(1.5, 0.04, steps)]
        assert asked.get_epsilon(delta=DELTA) == pytest.approx(OPACUS[name], rel=1e-8)
    for (name, steps), theirs in MULTIPLIERS.items():
        found = multiplier(target_epsilon=8, target_delta=DELTA, sample_rate=0.04, steps=steps, accountant=name)
        assert found == pytest.approx(theirs, abs=5e-5)


@pytest.mark.parametrize(("rho", "epsilon"), [(0.15, 3.416), (0.0144, 0.996)])
def test_epsilons_of_gboard(rho: float, epsilon: float) -> None:
    """rho of two deployments in the README of federated/mf_dpftrl_matrices, at delta 1e-10: exact, where it prints 3.42
    and 0.994.
    """
    assert best(Gaussian(1 / math.sqrt(2 * rho)), 1e-10, "replace").epsilon == pytest.approx(epsilon, abs=5e-4)


@pytest.mark.parametrize(("z", "rounds", "single", "double"), [(5.0, 50, 6.57, 15.46), (10.0, 100, 4.38, 10.0)])
def test_the_factor_of_replacing_one(z: float, rounds: int, single: float, double: float) -> None:
    """Noise over clip, as an accountant of sums without one record takes it, and over the two clips of a replaced one."""
    for multiplier, epsilon in ((z, single), (z / 2, double)):
        event = Repeat(Gaussian(multiplier), rounds)
        assert best(event, DELTA, "replace").epsilon == pytest.approx(epsilon, abs=5e-3)
