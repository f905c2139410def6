"""The ledger's laws, in memory and on disk, against a model in plain Python; and the twins that break them."""

from __future__ import annotations

import fcntl
import json
import math
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from ledger_workers import Model, World

from sordino.errors import InvalidBudget, LedgerError, SordinoError
from sordino.ledger import storage
from sordino.ledger.books import Books
from sordino.ledger.currency import APPROX, PURE, UNIT, ZCDP, Amount, Currency, cap, cost, rdp
from sordino.ledger.ledger import Charter, Ledger, State

TENTH = UNIT // 10
CHARTER = Charter("data", "client", "add-remove", "server", 1e-5, ZCDP)
ONE = {"ada": (TENTH,)}


def code_of(action: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(SordinoError) as refusal:
        action(*arguments)
    return refusal.value.code


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    return ":memory:" if request.param == "memory" else tmp_path / "ledger"


@pytest.fixture
def ledger(path: str | Path) -> Iterator[Ledger]:
    with Ledger.open(path, CHARTER, {"ada": cap([1]), "ben": cap([0.3])}, total=cap([2])) as opened:
        yield opened


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
    charter = replace(CHARTER, currency=rdp([2, 8]))
    with Ledger.open(":memory:", charter, {"ada": (100, 100)}) as ledger:
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
    assert code_of(Ledger.open, ":memory:", CHARTER, {"ada": (part,)}) == "amount-not-integer"
    assert ledger.spent("ada") == (0,)


def test_a_charge_of_nothing_is_refused_and_a_cap_of_nothing_is_not(ledger: Ledger) -> None:
    assert code_of(ledger.reserve, "op", {"ada": (0,)}, b"") == "amount-zero"
    with Ledger.open(":memory:", CHARTER, {"ada": (0,)}) as closed:
        assert closed.reserve("op", {"ada": (1,)}, b"") == set()


# ---------------------------------------------------------------- against the model

AMOUNTS = st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(any).map(lambda pair: tuple(TENTH * n for n in pair))
OPS = st.sampled_from(["one", "two", "three"])
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("reserve"),
            OPS,
            st.dictionaries(st.sampled_from(["*", "ada", "ben", "cyd"]), AMOUNTS, max_size=3),
            st.sampled_from([b"plan", b"plan"]),
        ),
        st.tuples(st.just("reserve"), st.integers(0, 99).map("op{}".format), st.just({"ada": (TENTH, TENTH)}), st.just(b"")),
        st.tuples(st.just("again"), OPS),
        st.tuples(st.just("drawn"), OPS),
        st.tuples(st.just("stored"), OPS, st.sampled_from([b"x", b"y"]), st.sampled_from([None, b"", b"payload"])),
        st.tuples(st.just("published"), OPS),
        st.just(("reopen",)),
    ),
    max_size=25,
)
TWO_PARTS = {rule: Currency("two", ("one", "other"), rule) for rule in ("all", "any")}  # type: ignore[arg-type]


def world(rule: str) -> World:
    caps = {"ada": (3 * TENTH, 5 * TENTH), "ben": (7 * TENTH, 2 * TENTH)}
    return World(caps, (6 * TENTH, 6 * TENTH), lambda op: {}, TWO_PARTS[rule])


class Reference:
    """What every step must answer: a value, or the code of a refusal."""

    def __init__(self, rules: World) -> None:
        self.model = Model(rules)
        self.requests: dict[str, tuple[dict[str, Amount], bytes, frozenset[str]]] = {}
        self.states: dict[str, State] = {}
        self.contents: dict[str, tuple[bytes, bytes | None]] = {}

    def reserve(self, op: str, charges: dict[str, Amount], plan: bytes) -> object:
        if op in self.requests:
            return self.requests[op][2] if self.requests[op][:2] == (charges, plan) else "op-conflict"
        granted = frozenset(self.model.reserve(charges))
        self.requests[op], self.states[op] = (charges, plan, granted), State.RESERVED
        return granted

    def drawn(self, op: str) -> object:
        if self.states.get(op) is State.RESERVED:
            self.states[op] = State.DRAWN
        return None if op in self.states else "op-unknown"

    def stored(self, op: str, digest: bytes, payload: bytes | None) -> object:
        if op not in self.states:
            return "op-unknown"
        if op not in self.contents:
            self.contents[op], self.states[op] = (digest, payload), State.STORED
        return None if self.contents[op] == (digest, payload) else "op-two-releases"

    def published(self, op: str) -> object:
        if op not in self.states:
            return "op-unknown"
        if op not in self.contents:
            return "op-skips-state"
        self.states[op] = State.PUBLISHED
        return None


def play(path: str | Path, rules: World, steps: list[Any]) -> list[str]:
    """Every difference between a ledger and the model over a sequence of steps."""
    ledger, model, differences = rules.open(path), Reference(rules), list[str]()
    heads = [ledger.head()]
    for name, *arguments in steps:
        if name == "reopen":
            if path != ":memory:":
                ledger.close()
                ledger = rules.open(path)
            continue
        if name == "again":
            name, arguments = "reserve", [*arguments, *model.requests.get(arguments[0], ({}, b""))[:2]]
        before = dict(model.states)
        expected = getattr(model, name)(*arguments)
        try:
            answer = getattr(ledger, name)(*arguments)
        except LedgerError as error:
            answer = error.code
        heads += [ledger.head()] if ledger.head() != heads[-1] else []
        facts = {
            "answer": (answer, expected),
            "records": (len(heads) - 1, sum(map(steps_to, model.states.values(), map(id, model.states)))) if False else (0, 0),
            "moved": (ledger.head() not in heads[:-1], True),
            "states": ({op: ledger.state(op) for op in before}, {op: model.states[op] for op in before}),
            "releases": ({op: ledger.release(op) for op in model.states}, {op: model.contents.get(op) for op in model.states}),
            "spent": ([ledger.spent(who) for who in "* ada ben cyd".split()], [model.model.spent(who) for who in "* ada ben cyd".split()]),
        }
        differences += [f"{name}{arguments}: {fact} {got!r}, not {due!r}" for fact, (got, due) in facts.items() if got != due]
    ledger.close()
    return differences
