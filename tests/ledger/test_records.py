"""A record's bytes say one thing: what two readers could take for two things is no record. The same bytes are tried on the
stranger's verifier (`tests/verifier/test_receipts.py`).
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sordino.errors import LedgerError
from sordino.ledger.books import MALFORMED, link, read_genesis
from sordino.ledger.ledger import Ledger
from sordino.receipts.receipt import lifetime
from tests.ledger.small import ONE, SCOPE, code_of

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
    "a number for a client": (b'["ada","ben"]', b"[0]"),
}
NOTE = (
    '{"config":"","noise":"system","releases":[{"claims":[{"adversary":"server","because":[],"drift":0.5,"event":'
    '{"kind":"gaussian","noise_multiplier":1.0},"neighbours":"replace","status":"proved","unit":"client"}],'
    '"clients":[1]}]}'
)
# the same of what a record's note says, which a chain does not look into
FORGED_NOTES = {
    "bytes behind its end": ('"clients":[1]}]}', '"clients":[1]}]}x'),
    "a list": (NOTE, "[]"),
    "a name twice": ('"noise":', '"noise":"","noise":'),
    "another name": ('"noise":', '"more":1,"noise":'),
    "no noise": ('"noise":"system",', ""),
    "a list for a noise": ('"system"', "[]"),
    "no list of releases": (NOTE, '{"config":"","noise":"","releases":{}}'),
    "no clients": (',"clients":[1]', ""),
    "letters for clients": ("[1]", '"ab"'),
    "a text for a client": ("[1]", '["1"]'),
    "a truth for a client": ("[1]", "[true]"),
    "half a client": ("[1]", "[0.5]"),
    "the client before the first": ("[1]", "[-1]"),
    "a client beyond all numbers": ("[1]", "[9223372036854775808]"),
    "no claim": ('"claims":[{', '"claims":[1,{'),
    "another unit": ('"unit":"client"', '"unit":"people"'),
    "a number for a status": ('"proved"', "1"),
    "a truth for a drift": ("0.5", "true"),
    "a text for a drift": ("0.5", '"0.5"'),
    "a drift that pays": ("0.5", "-0.5"),
    "a truth for noise": ("1.0", "true"),
    "more noise than a float holds": ("1.0", "9" * 400),
    "a list for an event": ('{"kind":"gaussian","noise_multiplier":1.0}', "[1]"),
    "brackets without end": ("[1]", "[" * 100_000),
}
FOUNDED = (
    b'{"caps":{"ada":[9]},"each":[2,[9]],"kind":"scope","scope":{"adversary":"server","currency":{"name":"zcdp",'
    b'"parts":["rho"],"rule":"all"},"dataset":"data","delta":"1e-05","neighbours":"zero_out","unit":"client"}}'
)
FORGED_FOUNDATIONS = {
    "a text for a number of clients": (b"[2,", b'["2",'),
    "a truth for a number of clients": (b"[2,", b"[true,"),
    "fewer clients than none": (b"[2,", b"[-2,"),
    "a text for a cap": (b'"ada":[9]', b'"ada":["9"]'),
    "a truth for a cap": (b'"ada":[9]', b'"ada":[true]'),
    "a cap for all of another currency": (b"[2,[9]]", b"[2,[9,9]]"),
    "an unknown rule": (b'"rule":"all"', b'"rule":"most"'),
    "a list for a rule": (b'"rule":"all"', b'"rule":[]'),
    "a number for a currency": (b'"name":"zcdp"', b'"name":1'),
    "a number for a data set": (b'"data"', b"1"),
    "numbers for names": (b'"kind":', b'"names":[1,2],"kind":'),
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


@pytest.mark.parametrize("forged", FORGED_NOTES)
def test_a_note_that_says_no_release_is_named_and_nothing_is_stated(tmp_path: Path, forged: str) -> None:
    """As it was, a reader of statements ended in a traceback, or took the client before the first for the last."""
    old, new = FORGED_NOTES[forged]
    assert old in NOTE
    place = tmp_path / "ledger"
    with Ledger.open(place, SCOPE) as ledger:
        ledger.reserve("run/0", ONE, b"", NOTE)
        assert ledger.entry("run/0").released == NOTE
        ledger.reserve("run/1", ONE, b"", NOTE.replace(old, new))
    with pytest.raises(LedgerError, match=r"the note of run/1 \(record 2\) is malformed") as refusal:
        lifetime(place)
    assert refusal.value.code == "ledger-damaged"


@pytest.mark.parametrize("forged", FORGED_FOUNDATIONS)
def test_a_first_record_of_other_types_founds_no_ledger(forged: str) -> None:
    old, new = FORGED_FOUNDATIONS[forged]
    assert old in FOUNDED
    scope, caps = read_genesis(FOUNDED)
    assert (scope, caps["1"]) == (SCOPE, (9,))
    with pytest.raises(MALFORMED):
        read_genesis(FOUNDED.replace(old, new))


def test_the_record_that_is_forged_is_read(tmp_path: Path) -> None:
    """The control."""
    place = ledger_with(tmp_path / "ledger", GOOD)
    with Ledger.as_founded(place) as ledger:
        assert ledger.spent("ada") == ledger.spent("ben") == (5,)
