"""Accountants are never below the truth and near it, against another implementation's bounds; broken ones
are caught."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from sordino.accounting.accountants import best, bounds
from sordino.accounting.events import (
    Event,
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
