"""The ledger's laws, in memory and on disk, against a model in plain Python; and the twins that break them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from sordino.accounting.claims import UNIT, Amount, Currency
from sordino.errors import LedgerError
from sordino.ledger.books import Books, LedgerPosition
from sordino.ledger.ledger import Ledger, State
from tests.ledger.ledger_workers import Model, World, folder_in_memory
from tests.ledger.small import ONE, SCOPE, TENTH, code_of

# ---------------------------------------------------------------- against the model
NAMES = ("*", "ada", "ben", "cyd")


AMOUNTS = (
    st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(any).map(lambda pair: (TENTH * pair[0], TENTH * pair[1]))
)


OPS = st.sampled_from(["one", "two", "three", "four"])


CHARGES = st.dictionaries(st.sampled_from(NAMES), AMOUNTS, max_size=3)


CONTENTS = st.sampled_from([b"x", b"y"])


STEPS = st.lists(
    st.tuples(st.just("reserve"), OPS, CHARGES, st.sampled_from([b"plan", b"plot"]))
    | st.tuples(st.just("again"), OPS)
    | st.tuples(st.just("drawn"), OPS)
    | st.tuples(st.just("stored"), OPS, CONTENTS)
    | st.tuples(st.just("published"), OPS)
    | st.tuples(st.just("published"), OPS, CONTENTS)
    | st.tuples(st.just("reopen")),
    max_size=20,
)


def world(rule: str) -> World:
    caps = {"ada": (3 * TENTH, 5 * TENTH), "ben": (7 * TENTH, 2 * TENTH)}
    currency = Currency("two", ("one", "other"), "any" if rule == "any" else "all")
    return World(caps, (6 * TENTH, 6 * TENTH), lambda op: {}, currency)


def content(ledger: Ledger, op: str) -> bytes | None:
    """The digest that an operation may publish, once it is stored."""
    digest = None if ledger.state(op) is None else ledger.entry(op).digest
    return None if digest is None else bytes.fromhex(digest)


class Reference:
    """What every step must answer: a value, or the code of a refusal."""

    def __init__(self, rules: World) -> None:
        self.model = Model(rules)
        self.requests: dict[str, tuple[dict[str, Amount], bytes]] = {}
        self.grants: dict[str, frozenset[str]] = {}
        self.states: dict[str, State] = {}
        self.contents: dict[str, bytes] = {}

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

    def stored(self, op: str, digest: bytes) -> object:
        if op not in self.states:
            return "op-unknown"
        if op not in self.contents:
            self.contents[op], self.states[op] = digest, State.STORED
        return None if self.contents[op] == digest else "op-two-releases"

    def published(self, op: str, digest: bytes | None = None) -> object:
        if digest is not None and (refusal := self.stored(op, digest)) is not None:
            return refusal
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
                "release": (content(ledger, arguments[0]), model.contents.get(arguments[0])),
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


@pytest.mark.one_fast
@pytest.mark.parametrize("rule", ["all", pytest.param("any", marks=pytest.mark.slow)])
@given(steps=STEPS)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_the_ledger_in_memory_does_what_the_model_does(rule: str, steps: list[Any]) -> None:
    assert play(":memory:", world(rule), steps) == []


@pytest.mark.one_fast
@pytest.mark.parametrize("rule", ["all", "any"])
@given(steps=STEPS)
@settings(derandomize=True, deadline=None, max_examples=25)
def test_the_ledger_on_disk_does_what_the_model_does(rule: str, steps: list[Any]) -> None:
    with folder_in_memory() as folder:
        assert play(Path(folder, "ledger"), world(rule), steps) == []


# the broken twins: (where, what, by what)
def _refund_when_refused(self: Ledger, op: str, digest: bytes) -> None:
    try:
        STORED(self, op, digest)
    except LedgerError:
        if op in self._books.ops:
            self._db.execute("PRAGMA foreign_keys = OFF")
            self._db.execute("DROP TRIGGER IF EXISTS record_delete")
            self._db.execute("DELETE FROM record WHERE sequence >= ?", (self._books.ops[op].reserved,))
            self._books = Books(self._books.scope, self._books.caps)
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


def _last_content_wins(self: Ledger, op: str, digest: bytes) -> None:
    try:
        STORED(self, op, digest)
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
    "publishes what is not stored": (Ledger, "published", lambda self, op, digest=None: None),
}


# the search for a sum that floats get wrong is long
@pytest.mark.slow
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
        lambda: ledger.stored("op", b"digest"),
        lambda: ledger.published("op"),
        lambda: ledger.reserve("both", ONE, b"plan"),
        lambda: ledger.published("both", b"digest"),
    ):
        action()
        heads.append(ledger.head())
        action()
        assert ledger.head() == heads[-1]
    assert len(set(heads)) == 7
    assert ledger.place().length == 8  # the last step has two records, as if it were two
    assert all(ledger.descends_from(head) for head in heads)
    entry = (1, "op", State.PUBLISHED, ONE, b"plan".hex(), b"digest".hex(), '{"claim":1}', heads[4], frozenset())
    both = (5, "both", State.PUBLISHED, ONE, b"plan".hex(), b"digest".hex(), "", heads[-1], frozenset())
    assert list(ledger.entries()) == [entry, both]
    assert not ledger.descends_from("no head")


def test_a_principal_who_cannot_pay_is_left_out(ledger: Ledger) -> None:
    assert ledger.reserve("a", {"ben": (3 * TENTH,), "ada": (TENTH,)}, b"") == {"ada", "ben"}
    assert ledger.reserve("b", {"ben": (1,), "ada": (TENTH,), "zoe": (99 * UNIT,)}, b"") == {"ada", "zoe"}
    assert ledger.remaining("ben") == (0,)
    assert ledger.remaining("zoe") is None
    assert ledger.spent("zoe") == (99 * UNIT,)
    assert list(ledger.balances()) == ["ada", "ben", "zoe"]
    assert ledger.reserve("nobody", {}, b"") == set()


def test_a_charge_to_everyone_needs_room_under_every_cap(ledger: Ledger) -> None:
    assert ledger.reserve("a", {"*": (2 * TENTH,)}, b"") == {"*"}
    assert ledger.spent("ada") == ledger.spent("stranger") == ledger.spent("*") == (2 * TENTH,)
    assert ledger.reserve("b", {"*": (2 * TENTH,)}, b"") == set()  # ben has 0.1 left
    assert ledger.reserve("c", {"*": (TENTH,), "ben": (1,), "ada": (1,)}, b"") == {"*", "ada"}
    with Ledger.open(":memory:", SCOPE, total=(5,)) as shared:
        assert shared.reserve("a", {"*": (5,)}, b"") == {"*"}
        assert shared.reserve("b", {"*": (1,), "ada": (1,)}, b"") == {"ada"}  # the total binds everyone, not ada
        assert shared.remaining("*") == (0,)


@pytest.mark.parametrize("name", ["", None, 7])
def test_names_are_text(ledger: Ledger, name: Any) -> None:
    assert code_of(ledger.reserve, name, ONE, b"") == "name-invalid"
    assert code_of(ledger.reserve, "op", {name: (1,)}, b"") == "name-invalid"
    assert code_of(Ledger.open, ":memory:", SCOPE, {"*": (1,)}) == "name-invalid"


@pytest.mark.parametrize("name", ["\ud800", "a\x00b", "é", '"', "' OR 1=1 --", "op" * 5000])
def test_any_text_is_a_name(ledger: Ledger, name: str) -> None:
    assert ledger.reserve(name, {name: (1,)}, b"", note=name) == {name}
    assert ledger.reserve(name, {name: (1,)}, b"") == {name}
    assert [(entry.op, entry.note) for entry in ledger.entries()] == [(name, name)]


@pytest.fixture
def restless_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless_threads")
def test_threads_share_a_ledger_and_fill_the_cap_exactly(path: str | Path) -> None:
    with Ledger.open(path, SCOPE, {"ada": (60,)}) as ledger:
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


def test_a_place_is_read_as_it_was_written(ledger: Ledger) -> None:
    assert LedgerPosition.parse(str(ledger.place())) == ledger.place() == LedgerPosition(1, ledger.head())


@pytest.mark.parametrize("text", ["", "5", ":ab", "one:ab", "1.5:ab", "1:2:ab"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # of int, or of unpacking
        LedgerPosition.parse(text)
