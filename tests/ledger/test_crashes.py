"""A model checker over the real ledger: every short sequence of operations, a power cut at every call to the disk, and
every disk that it may leave (`tests.ledger.recorded_disk`).

After each cut the ledger opens and is one of two histories: up to the last operation that was told, or with the one
that was cut off. So a statement made later says at least what was released, and nothing that was refused. Whoever then
repeats the operation ends with the history of a run that was not cut off, byte for byte.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from sordino.errors import LedgerError
from sordino.ledger import files, storage
from sordino.ledger.books import Books
from sordino.ledger.ledger import Ledger
from tests.ledger.recorded_disk import Call, Disk, recorded, recorded_files
from tests.ledger.small import SCOPE

slow = pytest.mark.slow
CAPS = {"ada": (3,), "ben": (9,)}
SHARED = {"ada": (2,), "ben": (1,)}  # ada cannot pay it twice


class Played:
    """A ledger, whoever else has it open, and what was answered."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.ledger = self._open()

    def _open(self) -> Ledger:
        return Ledger.open(self.place, SCOPE, CAPS)

    def reopen(self) -> None:
        self.ledger.close()
        self.ledger = self._open()

    def by_another(self) -> object:
        with self._open() as other:
            return other.reserve("c", {"*": (1,)}, b"another's")

    def do(self, step: str) -> object:
        try:
            return STEPS[step](self)
        except LedgerError as error:
            return error.code

    def bodies(self) -> list[bytes]:
        return [body for (body,) in self.ledger._db.execute("SELECT body FROM record ORDER BY sequence")]


STEPS: dict[str, Callable[[Played], object]] = {
    "reserve": lambda p: p.ledger.reserve("a", SHARED, b"plan"),
    "reserve another": lambda p: p.ledger.reserve("b", SHARED, b"plan"),
    "draw": lambda p: p.ledger.drawn("a"),
    "store": lambda p: p.ledger.stored("a", b"content"),
    "store another": lambda p: p.ledger.stored("a", b"another"),
    "publish": lambda p: p.ledger.published("a"),
    "store and publish": lambda p: p.ledger.published("a", b"content"),
    "seal": lambda p: p.ledger.seal(b"receipt"),
    "reopen": Played.reopen,
    "by another": Played.by_another,
}
ROUND = ("reserve", "draw", "store", "publish", "seal", "reopen")


def put(files: dict[str, bytes], before: Path, place: Path) -> None:
    for name, content in files.items():
        target = place / Path(name).relative_to(before)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(content)


class Checker:
    """All power cuts in the last of these steps; those in earlier ones belong to a shorter sequence. `careless`: the
    broken twin, which tells the world before it does.
    """

    def __init__(self, folder: Path, steps: tuple[str, ...], careless: bool = False) -> None:
        self.folder, self.steps, self.careless = folder, steps, careless
        self.base = folder / "uncut"
        self.base.mkdir()
        self.cuts, self.seen = 0, set[bytes]()

    def wrong(self) -> Iterator[str]:
        with recorded() as calls:
            lengths, marks = [], [0]
            played = Played(self.base / "ledger")
            answer: object = None
            for step in ("", *self.steps):
                answer = played.do(step) if step else None
                lengths.append(len(played.bodies()))
                marks.append(len(calls))
            whole = played.bodies()
            played.ledger.close()
        told = [0, *lengths][-2]  # before the last step
        disk = Disk({})
        for call in calls[: marks[-2]]:
            disk.take(call)
        for at in range(marks[-2], marks[-1] + 1):
            done = at == marks[-1]
            least = lengths[-1] if done or self.careless else told
            for left in disk.left():
                yield from self._after_a_cut(left, least, lengths[-1], whole, answer)
            if not done:
                disk.take(calls[at])

    def _after_a_cut(
        self, left: dict[str, bytes], least: int, most: int, whole: list[bytes], answer: object
    ) -> Iterator[str]:
        mark = hashlib.sha256(repr((sorted(left.items()), least)).encode()).digest()
        if mark in self.seen:
            return
        self.seen.add(mark)
        self.cuts += 1
        place = self.folder / f"cut {self.cuts}"
        place.mkdir()
        put(left, self.base, place)
        if least and not (place / "ledger").exists():
            yield f"{self.steps}: the ledger is gone"
            return
        try:
            after = Played(place / "ledger")
        except (LedgerError, sqlite3.Error) as error:
            yield f"{self.steps}: {error}"
            return
        with after.ledger:
            found = after.bodies()
            if found != whole[: len(found)] or not max(least, 1) <= len(found) <= most:
                yield f"{self.steps}: {len(found)} records, of {least} to {most}"
            again = after.do(self.steps[-1]) if self.steps else None
            known = ("reserve", "store another", "publish")  # the same answer whenever it is asked
            if after.bodies() != whole:
                yield f"{self.steps}: repeated, it has another history"
            elif self.steps and self.steps[-1].startswith(known) and again != answer:
                yield f"{self.steps}: repeated, it answers {again}, not {answer}"
            after.ledger.check()


def sequences(depth: int) -> Iterator[tuple[str, ...]]:
    for length in range(depth + 1):
        yield from product(STEPS, repeat=length)


@pytest.mark.slow
def test_after_any_power_cut_what_was_told_is_kept_and_nothing_else(tmp_path: Path) -> None:
    """Every sequence of up to three of nine steps and one whole round."""
    depth, cuts = 3, 0
    rounds = [ROUND[:n] for n in range(depth + 1, len(ROUND) + 1)]
    for number, steps in enumerate([*sequences(depth), *rounds]):
        folder = tmp_path / str(number)
        folder.mkdir()
        checker = Checker(folder, steps)
        assert list(checker.wrong()) == []
        cuts += checker.cuts
    print(f"{cuts} cuts")
    assert cuts > 60 * 9 ** (depth - 1)


# broken twins ---------------------------------------------------------------------------------------------------------


def unsynced(level: str) -> Callable[[pytest.MonkeyPatch], None]:
    def twin(patched: pytest.MonkeyPatch) -> None:
        patched.setattr(storage, "_SETTINGS", (f"synchronous={level}",))
        patched.setattr(storage, "_check_durable", lambda connection: None)

    return twin


def in_memory(patched: pytest.MonkeyPatch) -> None:
    """A rollback journal that no power cut leaves."""
    ask = storage._ask

    def lying(connection: Any, pragma: str) -> object:
        return "wal" if ask(connection, pragma.replace("=WAL", "=MEMORY")) == "memory" else ask(connection, pragma)

    patched.setattr(storage, "_ask", lying)


def no_folder(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(storage, "_create", _without_the_folder)


def _without_the_folder(place: Path, first: tuple[bytes, bytes]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(storage, "sync", lambda folder: None)
        CREATE(place, first)


def charged_again(patched: pytest.MonkeyPatch) -> None:
    def reserve(self: Ledger, op: str, charges: Any, plan: bytes, note: str = "") -> frozenset[str]:
        return RESERVE(self, op if self.state(op) is None else f"{op} again", charges, plan, note)

    patched.setattr(Ledger, "reserve", reserve)


def written_in_place(patched: pytest.MonkeyPatch) -> None:
    """Founded under its own name, and not beside it."""

    def create(place: Path, first: tuple[bytes, bytes]) -> None:
        connection = storage._connect(f"{place.as_uri()}?mode=rwc")
        connection.execute("PRAGMA journal_mode=WAL")
        storage._write_schema(connection, first)
        connection.close()

    patched.setattr(storage, "_create", create)


CREATE, RESERVE = storage._create, Ledger.reserve
TWINS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[str, ...]]] = {
    "commits without a sync": (unsynced("OFF"), ("reserve",)),
    "syncs at checkpoints only": (unsynced("NORMAL"), ("reserve",)),
    "a journal in memory": (in_memory, ("reserve",)),
    "a folder that is not synced": (no_folder, ()),
    "founded in its place": (written_in_place, ()),
    "charges a repetition": (charged_again, ("reserve",)),
}


@pytest.mark.one_fast
@pytest.mark.parametrize("twin", TWINS)
def test_a_ledger_that_forgets_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twin: str) -> None:
    breaks, steps = TWINS[twin]
    breaks(monkeypatch)
    assert any(Checker(tmp_path, steps).wrong())


@pytest.mark.parametrize("step", ["reserve", "store", "publish"])
def test_a_release_before_its_record_is_caught(tmp_path: Path, step: str) -> None:
    before = ROUND[: ROUND.index(step)]
    assert any(Checker(tmp_path, (*before, step), careless=True).wrong())


def test_a_layer_that_forgets_to_write_down_is_no_layer(tmp_path: Path) -> None:
    """The control of the record: all calls replayed give the files as they are."""
    with recorded() as calls:
        played = Played(tmp_path / "ledger")
        for step in ROUND:
            played.do(step)
        played.ledger.close()
    disk = Disk({})
    for call in calls:
        disk.take(call)
    assert {call.what for call in calls} >= {"open", "write", "truncate", "sync", "delete", "link", "folder"}
    (made,) = [content for name, content in disk.names.items() if Path(name) == tmp_path / "ledger"]
    assert made.safe == (tmp_path / "ledger").read_bytes()
    assert not made.since
    assert Call("folder", str(tmp_path)) in calls


# files that are written whole or not at all ---------------------------------------------------------------------------


def halves(folder: Path, old: bytes | None, new: bytes, without: str = "") -> list[bytes | None]:
    """What a power cut leaves of a file that is replaced, where that is neither the old nor the new content, or where
    it is still the old one when the call has returned. `without`: calls that the broken twin does not make.
    """
    place = folder / "note"
    with recorded_files() as calls:
        files.atomic_write(place, new)
    assert place.read_bytes() == new
    disk, wrong = Disk({} if old is None else {str(place): old}), list[bytes | None]()
    for call in [*(one for one in calls if one.what != without), None]:
        allowed = (old, new) if call is not None else (new,)
        found = (left.get(str(place)) for left in disk.left())
        wrong += [content for content in found if content not in allowed]
        if call is not None:
            disk.take(call)
    return wrong


@pytest.mark.parametrize("old", [None, b"", b"old"])
@pytest.mark.parametrize("new", [b"n", b"new" * 1000])
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, old: bytes | None, new: bytes) -> None:
    """Notes of a run, a site's accounts, checkpoints. The broken twins leave a sync out."""
    assert halves(tmp_path, old, new) == []
    assert halves(tmp_path, old, new, without="sync")
    assert halves(tmp_path, old, new, without="folder")


# what was touched afterwards ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=slow)])
def test_no_bit_of_a_chain_can_be_turned(every: int) -> None:
    """Of records and hashes; and no record can be left out, doubled or moved."""
    with Ledger.open(":memory:", SCOPE, CAPS) as ledger:
        ledger.reserve("a", SHARED, b"plan", note='{"claim":1}')
        ledger.stored("a", b"content")
        ledger.seal(b"receipt")
        rows = list(ledger._db.execute("SELECT sequence, hash, body FROM record ORDER BY sequence"))

        def refused(changed: list[tuple[int, bytes, bytes]]) -> bool:
            books = Books(ledger.scope, ledger._books.caps)
            try:
                for row in changed:
                    books.fold(*row)
            except LedgerError:
                return True
            return books.head != rows[-1][1]

        assert not refused(rows)
        for i, (sequence, digest, body) in enumerate(rows):
            for bit in range(0, 8 * len(digest + body), every):
                turned = bytearray(digest + body)
                turned[bit // 8] ^= 1 << bit % 8
                changed = (sequence, bytes(turned[: len(digest)]), bytes(turned[len(digest) :]))
                assert refused([*rows[:i], changed, *rows[i + 1 :]])
            assert refused([*rows[:i], *rows[i + 1 :]])
            assert refused([*rows[:i], rows[i], *rows[i:]])
            assert i == 0 or refused([*rows[: i - 1], rows[i], rows[i - 1], *rows[i + 1 :]])
