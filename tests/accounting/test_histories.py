"""What is said once for all clients of one history is what was said of each, and so are their caps."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.accounting import composition
from sordino.accounting import statement as statements
from sordino.accounting.accountants import EpsilonBound
from sordino.accounting.claims import ZCDP, Amount, Claim, Subject
from sordino.accounting.composition import Histories, Release, note, read_notes
from sordino.accounting.events import Event, Gaussian, NonPrivate, leaves
from sordino.accounting.statement import Guarantee, statement
from sordino.errors import LedgerError
from sordino.ledger.books import Caps
from sordino.ledger.ledger import EqualCaps, Ledger, LedgerScope


# statements: every history once ---------------------------------------------------------------------------------------
def one_by_one(notes: list[str], population: int) -> dict[int, list[Release]]:
    """The oracle: every note told to every client."""
    every: dict[int, list[Release]] = defaultdict(list)
    for text in notes:
        for group in json.loads(text)["releases"]:
            for client in range(population) if group["clients"] == "*" else group["clients"]:
                every[client].append(tuple(Claim.model_validate_json(json.dumps(one)) for one in group["claims"]))
    return every


def claims_of(unit: Any, adversary: Any, multiplier: float | None, because: str) -> Claim:
    neighbours = "replace" if unit == "example" else "zero_out"
    event = NonPrivate("raw") if multiplier is None else Gaussian(multiplier)
    status = "none" if multiplier is None else "proved"
    subject: Any = {"unit": unit, "neighbours": neighbours, "adversary": adversary}
    return Claim(**subject, event=event, status=status, because=(because,))


CLAIMS = st.lists(
    st.builds(
        claims_of,
        st.sampled_from(["example", "client"]),
        st.sampled_from(["server", "public"]),
        st.sampled_from([None, 20.0, 20.0, 30.0]),
        st.sampled_from(["one", "other"]),
    ),
    min_size=1,
    max_size=3,
)


# clients 5 and 6 are beyond the population of 5: "*" does not mean them; a client may be named twice
WHO = st.just("*") | st.lists(st.integers(0, 6), max_size=6)


NOTES = st.lists(st.lists(st.tuples(WHO, CLAIMS), min_size=1, max_size=2).map(note), max_size=6)


def firsts(clients: Mapping[int, list[Release]]) -> list[tuple[int, tuple[Release, ...]]]:
    """Every history and the first client that has it."""
    first: dict[tuple[Release, ...], int] = {}
    for client, releases in clients.items():
        first.setdefault(tuple(releases), client)
    return [(client, releases) for releases, client in first.items()]


@settings(max_examples=60)
@given(NOTES)
def test_the_first_client_of_every_history_speaks_for_all(notes: list[str]) -> None:
    told, every = read_notes(notes, 5), one_by_one(notes, 5)
    assert all(found == every[k] for k, found in told.items())
    assert firsts(told) == firsts(every)
    assert len(told) == len(firsts(told))  # none twice


def counted(event: Event, delta: float, neighbours: str) -> list[EpsilonBound]:
    """A cheap accountant with many ties: which of two equally bad histories is shown must not change either."""
    found = leaves(event)
    return [
        EpsilonBound("count", math.inf if any(isinstance(leaf, NonPrivate) for leaf in found) else found.total() // 2)
    ]


def stated(notes: list[str], population: int, patch: pytest.MonkeyPatch, **changes: Any) -> list[Guarantee]:
    for name, value in changes.items():
        patch.setattr(statements if hasattr(statements, name) else composition, name, value)
    return statement(notes, population, 1e-5)


def fewest(event: Event, delta: float, neighbours: str) -> EpsilonBound:
    return counted(event, delta, neighbours)[0]


CHEAP = {"needed": counted, "best": fewest, "bounded": composition.bounded.__wrapped__}


@settings(max_examples=30)
@given(NOTES)
def test_the_statement_is_that_of_every_client_one_by_one(notes: list[str]) -> None:
    """Every number and reason, and their order."""
    with pytest.MonkeyPatch.context() as patch:
        assert stated(notes, 5, patch, **CHEAP) == stated(notes, 5, patch, read_notes=one_by_one)


def test_the_oracle_sees_a_history_that_is_lost() -> None:
    """Broken twin: clients in one cell stay together whoever of them was named."""

    def together(self: Histories, clients: Any, claims: Any, words: Any) -> None:
        Histories._everyone(self, range(len(self._cell)), claims, words)

    notes = [
        note([([0, 1], [claims_of("client", "public", 20.0, "one")])]),
        note([([1], [claims_of("client", "public", None, "one")])]),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Histories, "_some", together)
        assert firsts(read_notes(notes, 5)) != firsts(one_by_one(notes, 5))


def test_a_hidden_cohort_of_a_million_is_one_history() -> None:
    notes = [note([("*", [claims_of("client", "public", 20.0, "one")])])] * 200
    notes.append(note([([7, 10**6 - 1], [claims_of("client", "public", 20.0, "one")])]))
    histories = read_notes(notes, 10**6)
    assert {client: len(releases) for client, releases in histories.items()} == {0: 200, 7: 201}


# the ledger: one cap for many -----------------------------------------------------------------------------------------
SCOPE = LedgerScope("data", Subject(unit="client", neighbours="replace", adversary="server"), 1e-5, ZCDP)


# "1" has a cap of its own, "01" and "9" are not among the four clients, "*" is everyone
NAMES = ("0", "1", "2", "3", "01", "9", "*")


CHARGES = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 4).map(lambda part: (part,)), max_size=4)


def disagreements(asked: list[dict[str, Amount]], own: Amount | None, total: Amount | None) -> list[Any]:
    """Between a ledger with one cap for each of four clients and one that lists every cap."""
    single = {} if own is None else {"1": own, "9": own}
    listed = {str(k): (6,) for k in range(4)} | single
    with (
        Ledger.open(":memory:", SCOPE, single, total, EqualCaps(4, (6,))) as short,
        Ledger.open(":memory:", SCOPE, listed, total) as long,
    ):
        both = [
            (short.reserve(f"{op}", charges, b""), long.reserve(f"{op}", charges, b""))
            for op, charges in enumerate(asked)
        ]
        for name in (*NAMES, "4", "9" * 5000):
            both.append((short.spent(name), long.spent(name)))  # type: ignore[arg-type]
            both.append((short.remaining(name), long.remaining(name)))  # type: ignore[arg-type]
        both.append((short.balances(), long.balances()))  # type: ignore[arg-type]
        short.check()
    return [pair for pair in both if pair[0] != pair[1]]


@settings(max_examples=60)
@given(st.lists(CHARGES, max_size=12), st.sampled_from([None, (3,), (9,)]), st.sampled_from([None, (20,)]))
def test_one_cap_for_each_is_a_cap_for_every_one(
    asked: list[dict[str, Amount]], own: Amount | None, total: Amount | None
) -> None:
    """I1 and I4: the same grants, totals, rests and names as where every cap is listed."""
    assert disagreements(asked, own, total) == []


@pytest.mark.parametrize(
    ("forgets", "asked", "own"),
    [
        ("who never paid", [{"*": (4,)}, {"*": (4,)}], None),
        ("single caps", [{"*": (4,)}], (3,)),
        ("who paid", [{"2": (4,)}, {"*": (4,)}], None),
    ],
)
def test_a_ledger_that_forgets_some_caps_is_caught(
    forgets: str, asked: list[dict[str, Amount]], own: Amount | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Caps.told_apart

    def some(self: Caps, names: Any) -> Any:
        found, paid = list(whole(self, names)), set(names)
        forgotten: dict[str, Callable[[str], bool]] = {
            "who never paid": lambda name: name not in self.single and name not in paid,
            "single caps": lambda name: name in self.single,
            "who paid": lambda name: name in paid,
        }
        return [name for name in found if self.each is None or not forgotten[forgets](name)]

    assert disagreements(asked, own, None) == []
    monkeypatch.setattr(Caps, "told_apart", some)
    with pytest.raises((AssertionError, LedgerError)):
        assert disagreements(asked, own, None) == []


def test_a_ledger_that_overspent_for_everyone_is_refused() -> None:
    """`check` looks at clients that never paid for themselves, too."""
    with Ledger.open(":memory:", SCOPE, each=EqualCaps(1000, (6,))) as ledger:
        body = {"charges": [[[7], ["*"]]], "kind": "reserved", "note": "", "op": "op", "plan": "", "refused": []}
        with ledger._turn():
            ledger._append(body)
        with pytest.raises(LedgerError, match="more than its cap"):
            ledger.check()


def test_caps_for_a_million_are_one_line_in_the_file(tmp_path: Path) -> None:
    place, each = tmp_path / "ledger", EqualCaps(10**6, (6,))
    with Ledger.open(place, SCOPE, each=each) as ledger:
        assert ledger.reserve("op", {"999999": (6,), "1000000": (7,)}, b"") == {"999999", "1000000"}
        assert ledger.reserve("more", {"999999": (1,), "5": (7,), "1000000": (7,)}, b"") == {"1000000"}
        assert (ledger.remaining("999999"), ledger.remaining("123456"), ledger.remaining("1000000")) == (
            (0,),
            (6,),
            None,
        )
    assert place.stat().st_size < 50_000
    with Ledger.open(place, SCOPE, each=each) as again:
        assert again.remaining("999999") == (0,)
    for other in (EqualCaps(10**6, (7,)), EqualCaps(10**6 + 1, (6,)), None):
        with pytest.raises(LedgerError) as refused:
            Ledger.open(place, SCOPE, each=other)
        assert refused.value.code == "ledger-caps-changed"
