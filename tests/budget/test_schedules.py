"""Shares of a budget: printed values, exact integer splits, and an adaptive rule that can never overspend."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.budget import (
    SCHEDULES,
    Adaptive,
    Explicit,
    Geometric,
    LinearBack,
    LinearFront,
    Schedule,
    Uniform,
    integer_shares,
)
from sordino.errors import BudgetExhausted, InvalidBudget, SordinoError

FIXED: list[Schedule] = [
    Uniform(),
    LinearFront(),
    LinearBack(),
    Geometric(0.5),
    Geometric(3.0),
    Explicit(tuple(range(1, 2001))),
]


def test_printed_shares() -> None:
    np.testing.assert_allclose(Geometric(0.5).shares(4), [8 / 15, 4 / 15, 2 / 15, 1 / 15], rtol=1e-12)
    np.testing.assert_allclose(LinearFront().shares(4), [0.4, 0.3, 0.2, 0.1], rtol=1e-12)
    np.testing.assert_allclose(LinearBack().shares(4), [0.1, 0.2, 0.3, 0.4], rtol=1e-12)
    np.testing.assert_allclose(Uniform().shares(4), [0.25] * 4, rtol=1e-12)
    np.testing.assert_allclose(Explicit((1, 2, 5)).shares(3), [0.125, 0.25, 0.625], rtol=1e-12)
    np.testing.assert_allclose(Explicit((0.5, 1.0, 0.5), absolute=True).shares(3, 4.0), [0.125, 0.25, 0.125])
    np.testing.assert_allclose(Explicit((2, 2, 9)).shares(2), [0.5, 0.5])  # a client with fewer participations


@pytest.mark.parametrize("participations", [1, 2, 7, 100, 2000])
def test_shares_are_a_division_of_one(participations: int) -> None:
    for schedule in FIXED:
        shares = schedule.shares(participations)
        assert shares.shape == (participations,)
        assert (shares >= 0).all()
        assert math.fsum(shares) == pytest.approx(1.0, abs=1e-12)
    ratios = Geometric(0.9).shares(50)[1:] / Geometric(0.9).shares(50)[:-1]
    np.testing.assert_allclose(ratios, 0.9, rtol=1e-9)


def check_split(split: Callable[..., list[int]], shares: list[float], cap: int) -> None:
    parts = split(shares, cap)
    assert sum(parts) == cap
    assert min(parts) >= 0
    assert all(abs(part - share * cap) < 1 + 1e-9 * cap for part, share in zip(parts, shares, strict=True))


_weights = st.lists(st.floats(1e-300, 1e6, allow_subnormal=False), min_size=1, max_size=40)


@given(_weights, st.integers(0, 10**15))
@settings(max_examples=80, deadline=None)
def test_integer_shares_spend_the_cap_exactly(weights: list[float], cap: int) -> None:
    check_split(integer_shares, list(Explicit(tuple(weights)).shares(len(weights))), cap)


def test_rounding_each_share_by_itself_is_caught() -> None:
    for rounding in (math.ceil, math.floor, round):
        with pytest.raises(AssertionError):
            check_split(
                lambda shares, cap, r=rounding: [r(s * cap) for s in shares], list(Uniform().shares(7)), 10**12 + 3
            )


def test_absolute_shares_leave_the_rest_unspent() -> None:
    parts = integer_shares(Explicit((0.1, 0.2), absolute=True).shares(2, 1.0), 1000)
    assert sum(parts) == 300
    # a float sum a hair above 1 is rounding, more is an overspend
    assert sum(integer_shares([0.1] * 10 + [1e-13], 10**6)) == 10**6
    with pytest.raises(InvalidBudget) as caught:
        integer_shares([0.6, 0.5], 100)
    assert caught.value.code == "shares-exceed-the-budget"


def play(adaptive: Adaptive, participations: int, triggers: list[bool]) -> list[float]:
    history: list[float] = []
    for j, stalled in enumerate(triggers[:participations]):
        remaining = 1 - math.fsum(history)
        history.append(adaptive.next_share(history, remaining, participations - j, stalled, participations))
    return history


def check_adaptive(adaptive: Adaptive, participations: int, triggers: list[bool]) -> None:
    spent = play(adaptive, participations, triggers)
    assert math.fsum(spent) <= 1 + 1e-12
    assert min(spent) >= adaptive.floor / participations * (1 - 1e-9)  # everyone to come can still take part


@given(st.integers(1, 60), st.lists(st.booleans(), min_size=60, max_size=60), st.floats(0, 3))
@settings(max_examples=80, deadline=None)
def test_adaptive_never_overspends_and_never_starves(participations: int, triggers: list[bool], growth: float) -> None:
    check_adaptive(Adaptive(growth=growth), participations, triggers)


def test_an_adaptive_rule_without_a_reserve_is_caught() -> None:
    class Greedy(Adaptive):
        def next_share(self, history: object, remaining: float, left: int, stalled: bool, participations: int) -> float:
            return super().next_share(history, max(remaining, 1e-9), 1, stalled, participations)  # type: ignore[arg-type]

    class Capless(Adaptive):
        def next_share(self, history: object, remaining: float, left: int, stalled: bool, participations: int) -> float:
            return super().next_share(history, 1e9, left, stalled, participations)  # type: ignore[arg-type]

    for twin in (Greedy(), Capless()):
        with pytest.raises(AssertionError):
            check_adaptive(twin, 20, [True] * 20)


def test_adaptive_starts_at_half_and_grows_by_half() -> None:
    shares = play(Adaptive(), 10, [False, False, True, False, True, False, False, False, False, False])
    np.testing.assert_allclose(shares[:6], np.array([0.5, 0.5, 0.75, 0.75, 1.125, 1.125]) / 10, rtol=1e-12)
    assert Adaptive().next_share([0.05], 0.95, 9, True, 10) == pytest.approx(0.075)  # the last share is enough
    assert Adaptive().next_share([0.9], 0.1, 2, True, 4) == pytest.approx(0.1 - 0.025)  # one floor kept


def test_a_share_of_a_spent_budget_is_refused() -> None:
    with pytest.raises(BudgetExhausted) as caught:
        Adaptive().next_share([1.0], 0.0, 1, False, 1)
    assert caught.value.code == "budget-exhausted"


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: Geometric(0.0), "ratio-not-positive"),
        (lambda: Geometric(math.inf), "ratio-not-positive"),
        (lambda: Explicit(()), "shares-not-a-budget"),
        (lambda: Explicit((1.0, -0.5)), "shares-not-a-budget"),
        (lambda: Explicit((1.0, math.nan)), "shares-not-a-budget"),
        (lambda: Explicit((0.0, 0.0)), "shares-not-a-budget"),
        (lambda: Explicit((1.0, 0.0, 1.0)), "shares-not-a-budget"),  # nobody would take part after the first
        (lambda: Explicit((1e308, 1e308)), "shares-not-a-budget"),
        (lambda: Explicit((1.0, 1.0)).shares(3), "shares-too-few"),
        (lambda: Explicit((0.6, 0.5), absolute=True).shares(2, 1.0), "shares-exceed-the-budget"),
        (lambda: Uniform().shares(0), "releases-not-positive"),
        (lambda: Adaptive(floor=0.0), "adaptive-out-of-range"),
        (lambda: Adaptive(start=2.0), "adaptive-out-of-range"),
        (lambda: Adaptive(growth=-0.1), "adaptive-out-of-range"),
        (lambda: Adaptive(start=0.05, floor=0.1), "adaptive-out-of-range"),
    ],
)
def test_refusals(call: Callable[[], object], code: str) -> None:
    with pytest.raises(SordinoError) as caught:
        call()
    assert caught.value.code == code


def test_every_schedule_has_a_name() -> None:
    assert set(SCHEDULES) == {"uniform", "linear_front", "linear_back", "geometric", "list", "adaptive"}
