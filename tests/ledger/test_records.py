"""A record's bytes say one thing: what two readers could take for two things is no record. The same bytes are tried on the
stranger's verifier (`tests/verifier/test_receipts.py`).
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sordino.ledger.books import link
from sordino.ledger.ledger import Ledger
from tests.ledger.small import SCOPE, code_of

GOOD = b'{"charges":[[[5],["ada","ben"]]],"kind":"reserved","note":"{}","op":"run/0","plan":"","refused":[]}'
# what is written in place of what, in a record whose chain holds
FORGED: dict[str, tuple[bytes, bytes]] = {
    "bytes behind its end": (b'"refused":[]}', b'"refused":[]}x'),
    "a second record behind its end": (b'"refused":[]}', b'"refused":[]}{}'),
    "a list": (GOOD, b"[" + GOOD + b"]"),
    "a name twice, first the truth": (b'"charges":', b'"charges":[[[9],["ada"]]],"charges":'),
    "a name twice, with the same value": (b'"op":', b'"op":"run/0","op":'),
    "who is refused twice": (b'"refused":[]', b'"refused":[],"refused":["ada"]'),
    "who could pay is refused": (b'"refused":[]', b'"refused":["ada"]'),
    "who was not asked is refused": (b'"refused":[]', b'"refused":["eve"]'),
    "a client twice in a group": (b'["ada","ben"]', b'["ada","ada"]'),
    "a client in two groups": (b'[[[5],["ada","ben"]]]', b'[[[4],["ada"]],[[5],["ada"]]]'),
    "a refund": (b"[[5]", b"[[-5]"),
    "half a unit": (b"[[5]", b"[[0.5]"),
    "a truth": (b"[[5]", b"[[true]"),
    "no number": (b"[[5]", b"[[NaN]"),
    "infinitely much": (b"[[5]", b"[[Infinity]"),
    "another currency": (b"[[5]", b"[[5,5]"),
    "a number for an operation": (b'"run/0"', b"0"),
    "no note": (b'"note":"{}",', b""),
    "brackets without end": (b"[[5]", b"[" * 100_000),
    "no text": (b"run/0", b"run/\xff"),
}


def ledger_with(place: Path, body: bytes) -> Path:
    Ledger.open(place, SCOPE, {"ada": (9,)}).close()
    with closing(sqlite3.connect(place)) as base, base:
        (head,) = base.execute("SELECT hash FROM record").fetchone()
        base.execute("INSERT INTO record VALUES (1, ?, ?)", (link(head, body), body))
    return place


@pytest.mark.parametrize("forged", FORGED)
def test_what_could_be_read_in_two_ways_is_no_record(tmp_path: Path, forged: str) -> None:
    old, new = FORGED[forged]
    assert old in GOOD
    place = ledger_with(tmp_path / "ledger", GOOD.replace(old, new))
    assert code_of(Ledger.as_founded, place) == code_of(Ledger.open, place, SCOPE, {"ada": (9,)}) == "ledger-damaged"


@pytest.mark.parametrize("seal", [b'"zz"', b"5", b'"ab","digest":"cd"'])
def test_a_seal_or_a_content_without_a_digest_is_no_record(tmp_path: Path, seal: bytes) -> None:
    place = ledger_with(tmp_path / "ledger", b'{"digest":%s,"kind":"sealed"}' % seal)
    assert code_of(Ledger.as_founded, place) == "ledger-damaged"


def test_the_record_that_is_forged_is_read(tmp_path: Path) -> None:
    """The control."""
    place = ledger_with(tmp_path / "ledger", GOOD)
    with Ledger.as_founded(place) as ledger:
        assert ledger.spent("ada") == ledger.spent("ben") == (5,)
