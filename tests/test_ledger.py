"""The ledger's laws, in memory and on disk, against a model in plain Python; and the twins that break them."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from ledger_workers import Model, World, folder_in_memory

from sordino.errors import LedgerError, SordinoError
from sordino.ledger import storage
from sordino.ledger.books import Books, link
from sordino.ledger.currency import APPROX, PURE, UNIT, ZCDP, Amount, Currency, cap, cost, rdp
from sordino.ledger.ledger import Charter, Ledger, State

TENTH = UNIT // 10
CHARTER = Charter("data", "client", "add-remove", "server", 1e-5, ZCDP)
ONE = {"ada": (TENTH,)}


def code_of(action: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(SordinoError) as refusal:
        action(*arguments)
    return refusal.value.code


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield Path(folder)


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

NAMES = ("*", "ada", "ben", "cyd")
AMOUNTS = (
    st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(any).map(lambda pair: (TENTH * pair[0], TENTH * pair[1]))
)
OPS = st.sampled_from(["one", "two", "three", "four"])
CHARGES = st.dictionaries(st.sampled_from(NAMES), AMOUNTS, max_size=3)
CONTENTS = st.sampled_from([b"x", b"y"]), st.sampled_from([None, b"", b"payload"])
STEPS = st.lists(
    st.tuples(st.just("reserve"), OPS, CHARGES, st.sampled_from([b"plan", b"plot"]))
    | st.tuples(st.just("again"), OPS)
    | st.tuples(st.just("drawn"), OPS)
    | st.tuples(st.just("stored"), OPS, *CONTENTS)
    | st.tuples(st.just("published"), OPS)
    | st.tuples(st.just("reopen")),
    max_size=20,
)


def world(rule: str) -> World:
    caps = {"ada": (3 * TENTH, 5 * TENTH), "ben": (7 * TENTH, 2 * TENTH)}
    currency = Currency("two", ("one", "other"), "any" if rule == "any" else "all")
    return World(caps, (6 * TENTH, 6 * TENTH), lambda op: {}, currency)


class Reference:
    """What every step must answer: a value, or the code of a refusal."""

    def __init__(self, rules: World) -> None:
        self.model = Model(rules)
        self.requests: dict[str, tuple[dict[str, Amount], bytes]] = {}
        self.grants: dict[str, frozenset[str]] = {}
        self.states: dict[str, State] = {}
        self.contents: dict[str, tuple[bytes, bytes | None]] = {}

    def reserve(self, op: str, charges: dict[str, Amount], plan: bytes) -> object:
        if op not in self.requests:
            self.requests[op], self.states[op] = (charges, plan), State.RESERVED
            self.grants[op] = frozenset(self.model.reserve(charges))
        return self.grants[op] if self.requests[op] == (charges, plan) else "op-conflict"

    def drawn(self, op: str) -> object:
        if self.states.get(op) is State.RESERVED:
            self.states[op] = State.DRAWN
            return True  # said first by this call: whoever is told False must not draw
        return False if op in self.states else "op-unknown"

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
    differences: list[str] = []
    ledger, model = rules.open(path), Reference(rules)
    try:
        for name, *arguments in steps:
            if name == "reopen":
                if path != ":memory:":
                    ledger.close()
                    ledger = rules.open(path)
                continue
            if name == "again":
                name, arguments = "reserve", [*arguments, *model.requests.get(arguments[0], ({}, b""))]
            head, states = ledger.head(), dict(model.states)
            due = getattr(model, name)(*arguments)
            try:
                answer = getattr(ledger, name)(*arguments)
            except LedgerError as error:
                answer = error.code
            facts = {
                "answers": (answer, due),
                "appends": (ledger.head() != head, model.states != states),
                "state": (ledger.state(arguments[0]), model.states.get(arguments[0])),
                "release": (ledger.release(arguments[0]), model.contents.get(arguments[0])),
                "spent": ([ledger.spent(who) for who in NAMES], [model.model.spent(who) for who in NAMES]),
            }
            differences += [
                f"{name}{arguments} {k}: {got}, not {want}" for k, (got, want) in facts.items() if got != want
            ]
        ledger.check()
        if [entry.op for entry in ledger.entries()] != list(model.requests):
            differences.append("the operations differ")
    except LedgerError as error:
        differences.append(repr(error))
    finally:
        ledger.close()
    return differences


@pytest.mark.parametrize("rule", ["all", pytest.param("any", marks=pytest.mark.slow)])
@given(steps=STEPS)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_the_ledger_in_memory_does_what_the_model_does(rule: str, steps: list[Any]) -> None:
    assert play(":memory:", world(rule), steps) == []


@pytest.mark.parametrize("rule", ["all", "any"])
@given(steps=STEPS)
@settings(derandomize=True, deadline=None, max_examples=25)
def test_the_ledger_on_disk_does_what_the_model_does(rule: str, steps: list[Any]) -> None:
    with folder_in_memory() as folder:
        assert play(Path(folder, "ledger"), world(rule), steps) == []


# the broken twins: (where, what, by what)


def _refund_when_refused(self: Ledger, op: str, digest: bytes, payload: bytes | None = None) -> None:
    try:
        STORED(self, op, digest, payload)
    except LedgerError:
        if op in self._books.ops:
            self._db.execute("PRAGMA foreign_keys = OFF")
            self._db.execute("DROP TRIGGER IF EXISTS record_delete")
            self._db.execute("DELETE FROM record WHERE sequence >= ?", (self._books.ops[op].reserved,))
            self._books = Books(self._books.charter, self._books.caps)
            self.check()
        raise


def _charge_after_release(
    self: Ledger, op: str, charges: dict[str, Amount], plan: bytes, note: str = ""
) -> frozenset[str]:
    with self._reading() as books:
        return books.granted(charges)


def _charge_again(self: Ledger, op: str, charges: dict[str, Amount], plan: bytes, note: str = "") -> frozenset[str]:
    known = self.state(op) is not None
    granted = RESERVE(self, op, charges, plan, note)
    if known:
        RESERVE(self, f"{op} again {self.head()}", charges, plan, note)
    return granted


def _last_content_wins(self: Ledger, op: str, digest: bytes, payload: bytes | None = None) -> None:
    try:
        STORED(self, op, digest, payload)
    except LedgerError as error:
        if error.code != "op-two-releases":
            raise


def _float_totals(self: Books, name: str, extra: Amount) -> bool:
    total = tuple(spent / UNIT + more / UNIT for spent, more in zip(self.spent(name), extra, strict=True))
    limit = self.caps.get(name)
    return limit is None or all(part <= most / UNIT for part, most in zip(total, limit, strict=True))


STORED, RESERVE = Ledger.stored, Ledger.reserve
TWINS: dict[str, tuple[Any, str, Any]] = {
    "refunds on failure": (Ledger, "stored", _refund_when_refused),
    "charges after the release": (Ledger, "reserve", _charge_after_release),
    "charges a replay": (Ledger, "reserve", _charge_again),
    "publishes the last content": (Ledger, "stored", _last_content_wins),
    "adds floats": (Books, "fits", _float_totals),
    "ignores charges to everyone": (Books, "spent", lambda self, name: self.own.get(name, (0, 0))),
    "grants everything": (Books, "fits", lambda self, name, extra: True),
    "stops one short of the cap": (Currency, "fits", lambda self, total, most: all(map(int.__lt__, total, most))),
    "takes any component for all": (Currency, "fits", lambda self, total, most: any(map(int.__le__, total, most))),
    "publishes what is not stored": (Ledger, "published", lambda self, op: None),
}


# the search for a sum that floats get wrong is long
@pytest.mark.parametrize("twin", [pytest.param(t, marks=[pytest.mark.slow] * (t == "adds floats")) for t in TWINS])
def test_a_broken_twin_is_caught(monkeypatch: pytest.MonkeyPatch, twin: str) -> None:
    monkeypatch.setattr(*TWINS[twin])
    search = settings(derandomize=True, deadline=None, max_examples=1000, phases=[Phase.generate], database=None)
    try:
        caught = find(STEPS, lambda steps: play(":memory:", world("all"), steps) != [], settings=search)
    except NoSuchExample:
        pytest.fail("the model sees no difference")
    assert caught


# ---------------------------------------------------------------- single laws


def test_states_go_forward_and_each_is_a_record(ledger: Ledger) -> None:
    heads = [ledger.head()]
    for action in (
        lambda: ledger.reserve("op", ONE, b"plan", note='{"claim":1}'),
        lambda: ledger.drawn("op"),
        lambda: ledger.stored("op", b"digest", b"bytes"),
        lambda: ledger.published("op"),
    ):
        action()
        heads.append(ledger.head())
        action()
        assert ledger.head() == heads[-1]
    assert len(set(heads)) == 5
    assert all(ledger.descends_from(head) for head in heads)
    entry = (1, "op", State.PUBLISHED, ONE, b"plan".hex(), b"digest".hex(), '{"claim":1}', heads[-1])
    assert list(ledger.entries()) == [entry]
    assert not ledger.descends_from("no head")


def test_a_principal_who_cannot_pay_is_left_out(ledger: Ledger) -> None:
    assert ledger.reserve("a", {"ben": (3 * TENTH,), "ada": (TENTH,)}, b"") == {"ada", "ben"}
    assert ledger.reserve("b", {"ben": (1,), "ada": (TENTH,), "zoe": (99 * UNIT,)}, b"") == {"ada", "zoe"}
    assert ledger.remaining("ben") == (0,)
    assert ledger.remaining("zoe") is None
    assert ledger.spent("zoe") == (99 * UNIT,)
    assert ledger.principals() == ("ada", "ben", "zoe")
    assert ledger.reserve("nobody", {}, b"") == set()


def test_a_charge_to_everyone_needs_room_under_every_cap(ledger: Ledger) -> None:
    assert ledger.reserve("a", {"*": (2 * TENTH,)}, b"") == {"*"}
    assert ledger.spent("ada") == ledger.spent("stranger") == ledger.spent("*") == (2 * TENTH,)
    assert ledger.reserve("b", {"*": (2 * TENTH,)}, b"") == set()  # ben has 0.1 left
    assert ledger.reserve("c", {"*": (TENTH,), "ben": (1,), "ada": (1,)}, b"") == {"*", "ada"}
    with Ledger.open(":memory:", CHARTER, total=(5,)) as shared:
        assert shared.reserve("a", {"*": (5,)}, b"") == {"*"}
        assert shared.reserve("b", {"*": (1,), "ada": (1,)}, b"") == {"ada"}  # the total binds everyone, not ada
        assert shared.remaining("*") == (0,)


@pytest.mark.parametrize("name", ["", None, 7])
def test_names_are_text(ledger: Ledger, name: Any) -> None:
    assert code_of(ledger.reserve, name, ONE, b"") == "name-invalid"
    assert code_of(ledger.reserve, "op", {name: (1,)}, b"") == "name-invalid"
    assert code_of(Ledger.open, ":memory:", CHARTER, {"*": (1,)}) == "name-invalid"


@pytest.mark.parametrize("name", ["\ud800", "a\x00b", "é", '"', "' OR 1=1 --", "op" * 5000])
def test_any_text_is_a_name(ledger: Ledger, name: str) -> None:
    assert ledger.reserve(name, {name: (1,)}, b"", note=name) == {name}
    assert ledger.reserve(name, {name: (1,)}, b"") == {name}
    assert [(entry.op, entry.note) for entry in ledger.entries()] == [(name, name)]


def test_costs_beyond_64_bits_are_exact(ledger: Ledger) -> None:
    huge = cost([1e300])
    for op in range(3):
        ledger.reserve(f"op{op}", {"zoe": (huge[0] + op,)}, b"")
    ledger.check()
    assert ledger.spent("zoe") == (3 * huge[0] + 3,)


@pytest.fixture
def restless_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless_threads")
def test_threads_share_a_ledger_and_fill_the_cap_exactly(path: str | Path) -> None:
    with Ledger.open(path, CHARTER, {"ada": (60,)}) as ledger:
        granted: list[frozenset[str]] = []
        gate = threading.Barrier(4)

        def work(who: int) -> None:
            gate.wait()
            granted.extend(ledger.reserve(f"{who}-{n}", {"ada": (1,)}, b"") for n in range(50))

        threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ledger.check()
        assert sum(map(len, granted)) == 60
        assert len(granted) == 200
        assert ledger.remaining("ada") == (0,)


def test_a_closed_or_forked_ledger_says_so(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as fork:
        fork.setattr(os, "getpid", lambda: -1)
        assert code_of(ledger.head) == "ledger-closed"
        assert code_of(ledger.reserve, "op", ONE, b"") == "ledger-closed"
    ledger.close()
    ledger.close()
    assert code_of(ledger.spent, "ada") == "ledger-closed"
    assert code_of(ledger.published, "op") == "ledger-closed"


def test_a_payload_too_large_for_the_file_is_refused(ledger: Ledger) -> None:
    class Large(bytes):
        def __len__(self) -> int:
            return 1 << 30

    ledger.reserve("op", ONE, b"")
    assert code_of(ledger.stored, "op", b"digest", Large()) == "payload-too-large"
    assert ledger.state("op") is State.RESERVED


# ---------------------------------------------------------------- the file


def test_a_ledger_is_bound_to_its_charter_and_caps(tmp_path: Path) -> None:
    path, caps = tmp_path / "ledger", {"ada": (5,)}
    Ledger.open(path, CHARTER, caps, (9,)).close()
    others: list[dict[str, Any]] = [
        {"dataset": "other"},
        {"unit": "example"},
        {"neighbours": "replace"},
        {"adversary": "public"},
        {"delta": 1e-6},
        {"delta": None},
        {"currency": PURE},
        {"currency": replace(ZCDP, rule="any")},
    ]
    for other in others:
        assert code_of(Ledger.open, path, replace(CHARTER, **other), caps, (9,)) == "ledger-foreign"
    wrong: list[tuple[Any, Any]] = [({"ada": (6,)}, (9,)), ({}, (9,)), (None, None), (caps, None), (caps, (10,))]
    for moved, total in [*wrong, ({**caps, "ben": (1,)}, (9,))]:
        assert code_of(Ledger.open, path, CHARTER, moved, total) == "ledger-caps-changed"
    with Ledger.open(path, CHARTER, caps, (9,)) as ledger:
        assert ledger.remaining("ada") == (5,)


def test_two_ledgers_on_one_file_see_each_other(tmp_path: Path) -> None:
    with (
        Ledger.open(tmp_path / "l", CHARTER, {"ada": (3,)}) as one,
        Ledger.open(tmp_path / "l", CHARTER, {"ada": (3,)}) as two,
    ):
        assert one.reserve("a", {"ada": (2,)}, b"") == {"ada"}
        assert two.spent("ada") == (2,)
        assert two.reserve("b", {"ada": (2,)}, b"") == set()
        two.stored("a", b"digest", b"two")
        assert one.release("a") == (b"digest", b"two")
        assert one.head() == two.head()


def test_a_commit_is_synced_and_the_pragmas_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.open(tmp_path / "ledger", CHARTER) as ledger:
        assert ledger._db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert ledger._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    monkeypatch.setattr(storage, "_SETTINGS", ("synchronous=NORMAL",))
    assert code_of(Ledger.open, tmp_path / "ledger", CHARTER) == "ledger-not-durable"


def test_a_ledger_is_in_wal_mode_from_its_birth_and_for_whoever_opens_it_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback journal in memory would lose the file in a power cut, and nobody who reopens it could tell."""
    path = (tmp_path / "ledger").resolve()
    storage._create(path, (b"hash", b"body"))
    assert path.read_bytes()[18:20] == b"\2\2"  # read and write version: 2 is WAL (sqlite.org/fileformat.html)
    path.unlink()
    Ledger.open(path, CHARTER).close()
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    ask = storage._ask
    for mode in ("memory", "off", "delete", "truncate", "persist"):
        monkeypatch.setattr(
            storage, "_ask", lambda c, pragma, mode=mode: mode if "journal_mode" in pragma else ask(c, pragma)
        )
        assert code_of(Ledger.open, path, CHARTER) == "ledger-not-durable"


def test_the_file_is_append_only_and_holds_no_float(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with Ledger.open(path, CHARTER, {"ada": cap([0.7])}) as ledger:
        ledger.reserve("op", {"ada": cost([0.1])}, b"plan")
        ledger.stored("op", b"digest", b"payload")
    assert path.stat().st_mode & 0o777 == 0o600
    raw = sqlite3.connect(path)
    bodies = [row[0] for row in raw.execute("SELECT body FROM record")]
    found = [json.loads(body, parse_float=lambda text: pytest.fail(f"a float: {text}")) for body in bodies]
    assert [record["kind"] for record in found] == ["charter", "reserved", "stored"]
    for statement in ("UPDATE record SET body = x''", "DELETE FROM record", "DELETE FROM payload"):
        with pytest.raises(sqlite3.DatabaseError, match="fixed"):
            raw.execute(statement)
    raw.close()


TAMPER = {
    "a cost": "UPDATE record SET body = replace(body, '[5]', '[1]') WHERE sequence = 1",
    "a deleted record": "DELETE FROM record WHERE sequence = 2",
    "a hash": "UPDATE record SET hash = zeroblob(32) WHERE sequence = 3",
    "a text for a blob": "UPDATE record SET body = CAST(body AS TEXT) WHERE sequence = 2",
    "an invalid text": "UPDATE record SET body = CAST(x'ff' AS TEXT) WHERE sequence = 2",
    "an integer": "UPDATE record SET hash = 7 WHERE sequence = 2",
    "an appended copy": "INSERT INTO record SELECT 4, hash, body FROM record WHERE sequence = 3",
    "no record": "DELETE FROM record",
    "an extra table": "CREATE TABLE refunds (amount)",
    "a missing trigger": "DROP TRIGGER record_update",
    "another application": "PRAGMA application_id = 1",
}


@pytest.mark.parametrize("what", TAMPER)
def test_tampering_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "ledger"
    with Ledger.open(path, CHARTER, {"ada": (9,)}) as ledger:
        ledger.reserve("op", {"ada": (5,)}, b"plan")
        ledger.stored("op", b"digest", b"payload")
        ledger.published("op")
    raw = sqlite3.connect(path, isolation_level=None)
    triggers = raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    if what != "a missing trigger":
        for name, _ in triggers:
            raw.execute(f"DROP TRIGGER {name}")
    raw.execute(TAMPER[what])
    if what != "a missing trigger":
        for _, sql in triggers:
            raw.execute(sql)
    raw.close()
    assert code_of(Ledger.open, path, CHARTER, {"ada": (9,)}) == "ledger-damaged"


def test_broken_pages_are_found_at_opening(tmp_path: Path) -> None:
    path, filling = tmp_path / "ledger", b"\xab"
    with Ledger.open(path, CHARTER) as ledger:
        ledger.reserve("op", ONE, b"plan")
        ledger.stored("op", b"digest", 20_000 * filling)
    content = bytearray(path.read_bytes())
    page = next(at for at in range(0, len(content), 4096) if content[at + 4 : at + 4096] == 4092 * filling)
    content[page : page + 4] = (1).to_bytes(4, "big")  # the payload goes on at the first page of the file
    path.write_bytes(content)
    assert code_of(Ledger.open, path, CHARTER) == "ledger-damaged"


def test_tampering_under_an_open_ledger_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with Ledger.open(path, CHARTER) as ledger:
        for op in ("one", "two"):
            ledger.reserve(op, ONE, b"plan")
            ledger.stored(op, b"digest", b"payload")
        raw = sqlite3.connect(path, isolation_level=None)
        for name, _ in raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall():
            raw.execute(f"DROP TRIGGER {name}")
        raw.execute("UPDATE payload SET body = x'00' WHERE sequence = 2")
        assert code_of(ledger.release, "one") == "ledger-damaged"
        assert ledger.release("two") == (b"digest", b"payload")
        raw.execute("UPDATE record SET body = x'00' WHERE sequence = 1")
        assert code_of(ledger.reserve, "one", ONE, b"plan") == "ledger-damaged"
        assert code_of(ledger.check) == "ledger-damaged"
        raw.execute("DELETE FROM record WHERE sequence = 4")
        raw.close()
        assert code_of(ledger.spent, "ada") == "ledger-damaged"
        assert code_of(ledger.reserve, "three", ONE, b"plan") == "ledger-damaged"


@pytest.mark.parametrize("change", [os.unlink, lambda path: os.replace(f"{path}.old", path)])
def test_a_file_replaced_under_an_open_ledger_is_noticed(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "ledger"
    Ledger.open(path, CHARTER).close()
    Path(f"{path}.old").write_bytes(path.read_bytes())
    with Ledger.open(path, CHARTER) as ledger:
        ledger.reserve("one", ONE, b"")
        change(path)
        assert code_of(ledger.reserve, "two", ONE, b"") == "ledger-damaged"
        assert code_of(ledger.stored, "one", b"digest") == "ledger-damaged"


FORGERIES: dict[str, dict[str, Any]] = {
    "the same operation again": {"kind": "reserved", "op": "op", "charges": [], "refused": []},
    "published before stored": {"kind": "published", "op": "op"},
    "an operation never reserved": {"kind": "drawn", "op": "ghost"},
    "a second charter": {"kind": "charter", "charter": {}, "caps": {}},
    "a refund": {"kind": "refunded", "op": "op"},
    "no kind": {"op": "op"},
    "charges of another type": {"kind": "reserved", "op": "new", "charges": 5, "refused": []},
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_well_hashed_record_that_makes_no_sense_is_refused(ledger: Ledger, forgery: str) -> None:
    ledger.reserve("op", ONE, b"")
    with ledger._turn():
        ledger._append(FORGERIES[forgery])
    assert code_of(ledger.head) == "ledger-damaged"
    assert code_of(ledger.check) == "ledger-damaged"


def test_another_past_is_noticed(ledger: Ledger) -> None:
    ledger.reserve("op", ONE, b"")
    head = ledger.head()
    ledger._db.execute("DROP TRIGGER record_delete")
    ledger._db.execute("DELETE FROM record WHERE sequence = 1")
    body = b'{"charges":[],"kind":"reserved","note":"","op":"op","plan":"","refused":[]}'
    genesis = ledger._row(0)[0]
    ledger._db.execute("INSERT INTO record VALUES (1, ?, ?)", (link(genesis, body), body))
    assert code_of(ledger.spent, "ada") == "ledger-damaged"
    assert code_of(ledger.descends_from, head) == "ledger-damaged"
    assert code_of(ledger.reserve, "next", ONE, b"") == "ledger-damaged"
    assert code_of(ledger.check) == "ledger-damaged"


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    Ledger.open(path, CHARTER).close()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 9")
    raw.close()
    assert code_of(Ledger.open, path, CHARTER) == "ledger-version"


@pytest.mark.parametrize("content", [b"", b"\0", b"text", b"SQLite format 3\0", bytes(5000), b"\xff" * 5000])
def test_what_is_no_ledger_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(content)
    assert code_of(Ledger.open, path, CHARTER) == "ledger-damaged"
    assert path.read_bytes() == content


def test_places_that_cannot_hold_a_ledger(tmp_path: Path) -> None:
    assert code_of(Ledger.open, tmp_path / "no" / "ledger", CHARTER) == "ledger-no-directory"
    assert code_of(Ledger.open, tmp_path, CHARTER) == "ledger-damaged"
    foreign = tmp_path / "foreign"
    raw = sqlite3.connect(foreign)
    raw.execute("CREATE TABLE mine (text)")
    raw.close()
    assert code_of(Ledger.open, foreign, CHARTER) == "ledger-damaged"
    (tmp_path / "lost-wal").write_bytes(b"journal")
    assert code_of(Ledger.open, tmp_path / "lost", CHARTER) == "ledger-damaged"
    assert not (tmp_path / "lost").exists()
    (tmp_path / "lost").touch()
    assert code_of(Ledger.open, tmp_path / "lost", CHARTER) == "ledger-damaged"
    assert (tmp_path / "lost-wal").read_bytes() == b"journal"


@pytest.mark.parametrize("name", ["a b", "a?mode=memory", "100%", "#1", "é", "a'b"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with Ledger.open(path, CHARTER) as ledger:
        ledger.reserve("op", ONE, b"")
    with Ledger.open(str(path), CHARTER) as ledger:
        assert ledger.spent("ada") == ONE["ada"]
    assert {found.name for found in tmp_path.iterdir()} == {name, f"{name}-lock"}


MOUNTS = r"""
/dev/vda / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
server:/home /home nfs4 rw 0 0
//server/share /mnt/my\040share cifs rw 0 0
host: /mnt/ssh fuse.sshfs rw 0 0
/dev/sdb /mnt/usb fuseblk rw 0 0
overlay /home/local overlay rw 0 0
/dev/sdc /mnt/ssh/inner ext4 rw 0 0
""".strip()


def test_network_file_systems_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {
        "/srv": "ext4",
        "/tmp/x": "tmpfs",
        "/home/ada": "nfs4",
        "/homeless": "ext4",
        "/mnt/my share/x": "cifs",
        "/mnt/ssh": "fuse.sshfs",
        "/mnt/usb": "fuseblk",
        "/home/local/x": "overlay",
        "/mnt/ssh/inner/x": "ext4",
    }
    assert {place: storage.file_system(Path(place), MOUNTS) for place in kinds} == kinds
    assert storage.file_system(Path("/x"), "a /x nfs rw 0 0\nb /x ext4 rw 0 0") == "ext4"
    for kind in ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse.gcsfuse", "9p"):
        monkeypatch.setattr(storage, "file_system", lambda *_, kind=kind: kind)
        assert code_of(Ledger.open, tmp_path / "ledger", CHARTER) == "ledger-network-disk"
    for number, kind in enumerate(("ext4", "xfs", "btrfs", "overlay", "tmpfs", "fuseblk", "")):
        monkeypatch.setattr(storage, "file_system", lambda *_, kind=kind: kind)
        Ledger.open(tmp_path / str(number), CHARTER).close()


def test_ledgers_founded_at_once_are_one(tmp_path: Path) -> None:
    path, gate = tmp_path / "ledger", threading.Barrier(6)

    def found(who: int) -> None:
        gate.wait()
        with Ledger.open(path, CHARTER) as ledger:
            ledger.reserve(f"op{who}", {"ada": (1,)}, b"")

    threads = [threading.Thread(target=found, args=(who,)) for who in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Ledger.open(path, CHARTER) as ledger:
        assert ledger.spent("ada") == (6,)


def test_a_ledger_held_by_another_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "PATIENCE", 0.05)
    path = tmp_path / "ledger"
    with Ledger.open(path, CHARTER) as ledger:
        raw = sqlite3.connect(path, isolation_level=None)
        raw.execute("BEGIN IMMEDIATE")
        assert code_of(ledger.reserve, "op", ONE, b"") == "ledger-busy"
        raw.close()
        gate = os.open(f"{path}-lock", os.O_RDWR)
        fcntl.flock(gate, fcntl.LOCK_EX)
        assert code_of(ledger.reserve, "op", ONE, b"") == "ledger-busy"
        assert ledger.state("op") is None
        os.close(gate)
        assert ledger.reserve("op", ONE, b"") == {"ada"}


@pytest.mark.parametrize(
    ("number", "code"), [(28, "ledger-disk-full"), (122, "ledger-disk-full"), (13, "ledger-unwritable")]
)
def test_a_file_that_cannot_be_founded_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as disk:
        disk.setattr(os, "link", fail)
        assert code_of(Ledger.open, tmp_path / "ledger", CHARTER) == code
    assert list(tmp_path.iterdir()) == []
    Ledger.open(tmp_path / "ledger", CHARTER).close()


def test_errors_of_sqlite_never_escape(ledger: Ledger) -> None:
    ledger.reserve("op", ONE, b"")
    ledger._db.execute("DROP TABLE payload")
    ledger._db.execute("PRAGMA query_only = ON")
    assert code_of(ledger.stored, "op", b"digest", b"payload") == "ledger-unwritable"
    ledger._db.execute("PRAGMA query_only = OFF")
    assert code_of(ledger.stored, "op", b"digest", b"payload") == "ledger-damaged"
    assert ledger.state("op") is State.RESERVED  # the record went back with the payload


IO = [name for name in dir(sqlite3) if name.startswith("SQLITE_IOERR")]
TOLD = {
    "SQLITE_IOERR_WRITE": "ledger-disk-full",
    "SQLITE_IOERR_SHMSIZE": "ledger-disk-full",
    "SQLITE_IOERR_SHORT_READ": "ledger-damaged",  # the disk answers, and has less than was written
    "SQLITE_IOERR_CORRUPTFS": "ledger-damaged",
}


@pytest.mark.parametrize("name", [*IO, "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FULL", "SQLITE_PROTOCOL"])
def test_a_disk_that_fails_is_not_a_damaged_ledger(name: str) -> None:
    others = {"SQLITE_FULL": "ledger-disk-full", "SQLITE_PROTOCOL": "ledger-busy"}
    expected = (TOLD | others).get(name, "ledger-disk-error" if name in IO else "ledger-damaged")
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = getattr(sqlite3, name)
    with pytest.raises(LedgerError) as refusal, storage.refusals():
        raise error
    assert refusal.value.code == expected
    if expected == "ledger-disk-error":
        assert "try again: nothing is lost" in refusal.value.fix
        assert "restore" not in str(refusal.value)


def test_an_input_output_error_of_the_system_is_one_of_the_disk() -> None:
    with pytest.raises(LedgerError) as refusal, storage.refusals():
        raise OSError(errno.EIO, "Input/output error")
    assert refusal.value.code == "ledger-disk-error"
