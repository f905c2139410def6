"""Costs, caps and orders in whole units: rounded to the safe side, exact at any size, refused with a code."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.accounting.claims import APPROX, PURE, UNIT, Amount, cap, cost, rdp
from sordino.ledger.ledger import Ledger
from tests.ledger.small import SCOPE, code_of

# ---------------------------------------------------------------- costs
BAD: dict[str, list[Any]] = {
    "shape": [0.5, 1, None, "0.5", b"1", [], (), {0.5}, {0.5: 1}, iter([0.5])],
    "bool": [[True], [False], [0.5, True], (True, 1.0)],
    "type": [["0.5"], [None], [0.5, "1"], [[0.5]], [1j], [Fraction(1, 2)], [b"1"]],
    "nan": [[math.nan], [0.5, math.nan], [math.nan, -1.0], [float("nan"), 0.0]],
    "infinite": [[math.inf], [-math.inf], [0.5, math.inf], [1e308 * 10], [math.inf, math.nan]],
    "negative": [[-1.0], [-1], [-10.0], [-5e-324], [0.5, -1e-300], [1e300, -1e300], [-(10**400)]],
    "negative-zero": [[-0.0], [0.5, -0.0], [-0.0, 0.0], [1, -0.0]],
    "zero": [[0.0], [0], [0, 0.0], [0.0, 0.0, 0.0]],
}


@pytest.mark.parametrize(("make", "what"), [(cost, "cost"), (cap, "cap")])
def test_bad_costs_and_caps_are_refused_each_with_its_own_code(make: Callable[..., Amount], what: str) -> None:
    assert sum(map(len, BAD.values())) >= 40
    for fault, values in BAD.items():
        for value in values:
            assert code_of(make, value) == f"{what}-{fault}", value


@given(st.floats(0, 1e12, exclude_min=True), st.floats(0, 1e12, exclude_min=True))
@settings(derandomize=True, deadline=None)
def test_costs_round_up_caps_round_down_and_order_is_kept(x: float, y: float) -> None:
    decimal = Fraction(repr(x)) * UNIT
    assert 0 <= cost([x])[0] - decimal < 1
    assert 0 <= decimal - cap([x])[0] < 1
    assert cost([min(x, y)]) <= cost([max(x, y)])  # I6: less noise never costs less
    assert cost([x, y]) == cost([x]) + cost([y])


def test_costs_at_the_edges() -> None:
    assert cost([5e-324]) == (1,)  # a subnormal spend is not lost
    assert cost([1e-13]) == (1,)
    assert cost([0.0, 5e-324]) == (0, 1)
    assert cap([5e-324]) == (0,)
    assert cost([1]) == cap([1.0]) == (UNIT,)
    assert cost([1e300])[0] == 10**312
    assert tuple(10 * part for part in cost([0.1])) == cap([1.0])  # ten times 0.1 fills 1


@pytest.mark.parametrize("orders", [[], [1.0], [0.5, 2], [2, 2], [3, 2], [2, math.inf], [2, math.nan]])
def test_bad_orders_are_refused(orders: list[float]) -> None:
    assert code_of(rdp, orders) == "orders-invalid"


def test_a_total_fits_under_all_components_or_under_any_order() -> None:
    assert PURE.fits((3,), (3,))
    assert not PURE.fits((4,), (3,))
    assert APPROX.fits((3, 3), (3, 3))
    assert not APPROX.fits((3, 4), (3, 3))
    orders = rdp([1.5, 2, 64])
    assert orders.parts == ("order 1.5", "order 2", "order 64")
    assert orders.fits((9, 3, 9), (3, 3, 3))
    assert not orders.fits((4, 4, 4), (3, 3, 3))


def test_the_renyi_filter_grants_while_one_order_fits() -> None:
    scope = replace(SCOPE, currency=rdp([2, 8]))
    with Ledger.open(":memory:", scope, {"ada": (100, 100)}) as ledger:
        assert ledger.reserve("flat", {"ada": (10, 90)}, b"") == {"ada"}
        assert ledger.reserve("over at order 8", {"ada": (10, 90)}, b"") == {"ada"}
        assert ledger.remaining("ada") == (80, -80)
        assert ledger.reserve("over at both", {"ada": (81, 1)}, b"") == set()
        assert ledger.reserve("last", {"ada": (80, 1)}, b"") == {"ada"}


@pytest.mark.parametrize("charge", [1, (1, 1), (), [1], "1", None])
def test_charges_of_another_shape_are_refused(ledger: Ledger, charge: Any) -> None:
    assert code_of(ledger.reserve, "op", {"ada": charge}, b"") == "amount-shape"
    assert ledger.state("op") is None


@pytest.mark.parametrize("part", [1.0, True, -1, math.nan, "1", None])
def test_charges_that_are_no_natural_numbers_are_refused(ledger: Ledger, part: Any) -> None:
    assert code_of(ledger.reserve, "op", {"ada": (part,)}, b"") == "amount-not-integer"
    assert code_of(Ledger.open, ":memory:", SCOPE, {"ada": (part,)}) == "amount-not-integer"
    assert ledger.spent("ada") == (0,)


def test_a_charge_of_nothing_is_refused_and_a_cap_of_nothing_is_not(ledger: Ledger) -> None:
    assert code_of(ledger.reserve, "op", {"ada": (0,)}, b"") == "amount-zero"
    with Ledger.open(":memory:", SCOPE, {"ada": (0,)}) as closed:
        assert closed.reserve("op", {"ada": (1,)}, b"") == set()


def test_costs_beyond_64_bits_are_exact(ledger: Ledger) -> None:
    huge = cost([1e300])
    for op in range(3):
        ledger.reserve(f"op{op}", {"zoe": (huge[0] + op,)}, b"")
    ledger.check()
    assert ledger.spent("zoe") == (3 * huge[0] + 3,)
