"""A ledger's file: bound to its scope, append-only, refused wherever it was touched or cannot be kept."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sordino.accounting.claims import PURE, ZCDP, cap, cost
from sordino.errors import LedgerError
from sordino.ledger import storage
from sordino.ledger.books import link
from sordino.ledger.ledger import Ledger, State
from tests.ledger.small import CLIENT, ONE, SCOPE, code_of


# ---------------------------------------------------------------- the file
def test_a_ledger_is_bound_to_its_scope_and_caps(tmp_path: Path) -> None:
    path, caps = tmp_path / "ledger", {"ada": (5,)}
    Ledger.open(path, SCOPE, caps, (9,)).close()
    others: list[dict[str, Any]] = [
        {"dataset": "other"},
        {"subject": CLIENT.beside(unit="example")},
        {"subject": CLIENT.beside(neighbours="replace")},
        {"subject": CLIENT.beside(adversary="public")},
        {"subject": None},
        {"delta": 1e-6},
        {"delta": None},
        {"currency": PURE},
        {"currency": replace(ZCDP, rule="any")},
    ]
    for other in others:
        assert code_of(Ledger.open, path, replace(SCOPE, **other), caps, (9,)) == "ledger-foreign"
    wrong: list[tuple[Any, Any]] = [({"ada": (6,)}, (9,)), ({}, (9,)), (None, None), (caps, None), (caps, (10,))]
    for moved, total in [*wrong, ({**caps, "ben": (1,)}, (9,))]:
        assert code_of(Ledger.open, path, SCOPE, moved, total) == "ledger-caps-changed"
    with Ledger.open(path, SCOPE, caps, (9,)) as ledger:
        assert ledger.remaining("ada") == (5,)


def test_two_ledgers_on_one_file_see_each_other(tmp_path: Path) -> None:
    with (
        Ledger.open(tmp_path / "l", SCOPE, {"ada": (3,)}) as one,
        Ledger.open(tmp_path / "l", SCOPE, {"ada": (3,)}) as two,
    ):
        assert one.reserve("a", {"ada": (2,)}, b"") == {"ada"}
        assert two.spent("ada") == (2,)
        assert two.reserve("b", {"ada": (2,)}, b"") == set()
        two.stored("a", b"digest")
        assert one.entry("a").digest == b"digest".hex()
        assert one.head() == two.head()


def test_a_commit_is_synced_and_the_pragmas_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.open(tmp_path / "ledger", SCOPE) as ledger:
        assert ledger._db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert ledger._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    monkeypatch.setattr(storage, "_SETTINGS", ("synchronous=NORMAL",))
    assert code_of(Ledger.open, tmp_path / "ledger", SCOPE) == "ledger-not-durable"


def test_a_ledger_is_in_wal_mode_from_its_birth_and_for_whoever_opens_it_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback journal in memory would lose the file in a power cut, and nobody who reopens it could tell."""
    path = (tmp_path / "ledger").resolve()
    storage._create(path, (b"hash", b"body"))
    assert path.read_bytes()[18:20] == b"\2\2"  # read and write version: 2 is WAL (sqlite.org/fileformat.html)
    path.unlink()
    Ledger.open(path, SCOPE).close()
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    ask = storage._ask
    for mode in ("memory", "off", "delete", "truncate", "persist"):
        monkeypatch.setattr(
            storage, "_ask", lambda c, pragma, mode=mode: mode if "journal_mode" in pragma else ask(c, pragma)
        )
        assert code_of(Ledger.open, path, SCOPE) == "ledger-not-durable"


def test_the_file_is_append_only_and_holds_no_float(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with Ledger.open(path, SCOPE, {"ada": cap([0.7])}) as ledger:
        ledger.reserve("op", {"ada": cost([0.1])}, b"plan")
        ledger.stored("op", b"digest")
    assert path.stat().st_mode & 0o777 == 0o600
    raw = sqlite3.connect(path)
    bodies = [row[0] for row in raw.execute("SELECT body FROM record")]
    found = [json.loads(body, parse_float=lambda text: pytest.fail(f"a float: {text}")) for body in bodies]
    assert [record["kind"] for record in found] == ["scope", "reserved", "stored"]
    for statement in ("UPDATE record SET body = x''", "DELETE FROM record"):
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
    with Ledger.open(path, SCOPE, {"ada": (9,)}) as ledger:
        ledger.reserve("op", {"ada": (5,)}, b"plan")
        ledger.stored("op", b"digest")
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
    assert code_of(Ledger.open, path, SCOPE, {"ada": (9,)}) == "ledger-damaged"


def test_broken_pages_are_found_at_opening(tmp_path: Path) -> None:
    path, filling = tmp_path / "ledger", b"n"
    with Ledger.open(path, SCOPE) as ledger:
        ledger.reserve("op", ONE, b"plan", note=20_000 * filling.decode())
    content = bytearray(path.read_bytes())
    page = next(at for at in range(0, len(content), 4096) if content[at + 4 : at + 4096] == 4092 * filling)
    content[page : page + 4] = (1).to_bytes(4, "big")  # the note goes on at the first page of the file
    path.write_bytes(content)
    assert code_of(Ledger.open, path, SCOPE) == "ledger-damaged"


def test_tampering_under_an_open_ledger_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with Ledger.open(path, SCOPE) as ledger:
        for op in ("one", "two"):
            ledger.reserve(op, ONE, b"plan")
            ledger.stored(op, b"digest")
        raw = sqlite3.connect(path, isolation_level=None)
        for name, _ in raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall():
            raw.execute(f"DROP TRIGGER {name}")
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
    Ledger.open(path, SCOPE).close()
    Path(f"{path}.old").write_bytes(path.read_bytes())
    with Ledger.open(path, SCOPE) as ledger:
        ledger.reserve("one", ONE, b"")
        change(path)
        assert code_of(ledger.reserve, "two", ONE, b"") == "ledger-damaged"
        assert code_of(ledger.stored, "one", b"digest") == "ledger-damaged"


FORGERIES: dict[str, dict[str, Any]] = {
    "the same operation again": {"kind": "reserved", "op": "op", "charges": [], "refused": []},
    "published before stored": {"kind": "published", "op": "op"},
    "an operation never reserved": {"kind": "drawn", "op": "ghost"},
    "a second scope": {"kind": "scope", "scope": {}, "caps": {}},
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


@pytest.mark.parametrize("format", [0, 2, 9])
def test_another_format_is_refused(tmp_path: Path, format: int) -> None:
    path = tmp_path / "ledger"
    Ledger.open(path, SCOPE).close()
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version = {format}")
    raw.close()
    assert code_of(Ledger.open, path, SCOPE) == "ledger-version"


@pytest.mark.parametrize("content", [b"", b"\0", b"text", b"SQLite format 3\0", bytes(5000), b"\xff" * 5000])
def test_what_is_no_ledger_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(content)
    assert code_of(Ledger.open, path, SCOPE) == "ledger-damaged"
    assert path.read_bytes() == content


def test_places_that_cannot_hold_a_ledger(tmp_path: Path) -> None:
    assert code_of(Ledger.open, tmp_path / "no" / "ledger", SCOPE) == "ledger-no-directory"
    assert code_of(Ledger.open, tmp_path, SCOPE) == "ledger-damaged"
    foreign = tmp_path / "foreign"
    raw = sqlite3.connect(foreign)
    raw.execute("CREATE TABLE mine (text)")
    raw.close()
    assert code_of(Ledger.open, foreign, SCOPE) == "ledger-damaged"
    (tmp_path / "lost-wal").write_bytes(b"journal")
    assert code_of(Ledger.open, tmp_path / "lost", SCOPE) == "ledger-gone"
    assert not (tmp_path / "lost").exists()
    (tmp_path / "lost").touch()
    assert code_of(Ledger.open, tmp_path / "lost", SCOPE) == "ledger-damaged"
    assert (tmp_path / "lost-wal").read_bytes() == b"journal"


@pytest.mark.parametrize("name", ["a b", "a?mode=memory", "100%", "#1", "é", "a'b"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with Ledger.open(path, SCOPE) as ledger:
        ledger.reserve("op", ONE, b"")
    with Ledger.open(str(path), SCOPE) as ledger:
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
        assert code_of(Ledger.open, tmp_path / "ledger", SCOPE) == "ledger-network-disk"
    for number, kind in enumerate(("ext4", "xfs", "btrfs", "overlay", "tmpfs", "fuseblk", "")):
        monkeypatch.setattr(storage, "file_system", lambda *_, kind=kind: kind)
        Ledger.open(tmp_path / str(number), SCOPE).close()


def test_a_ledger_with_a_second_name_is_refused(tmp_path: Path) -> None:
    """SQLite keeps a journal beside each name: two processes with a cap of 1,000 spent 900 each. What a kill left while
    the ledger was founded is no second name.
    """
    path, other = tmp_path / "ledger", tmp_path / "copy"
    Ledger.open(path, SCOPE).close()
    (draft := tmp_path / ".ledger-abc" / "ledger").parent.mkdir()
    os.link(path, draft)
    with Ledger.open(path, SCOPE) as ledger:
        ledger.reserve("a", {"ada": ONE["ada"]}, b"")
    assert not draft.exists()
    os.link(path, other)
    assert {code_of(Ledger.open, one, SCOPE) for one in (path, other)} == {"ledger-two-names"}
    assert Ledger.as_founded(path).spent("ada") == ONE["ada"]  # who only reads may
    other.unlink()
    Ledger.open(path, SCOPE).close()


def test_ledgers_founded_at_once_are_one(tmp_path: Path) -> None:
    path, gate = tmp_path / "ledger", threading.Barrier(6)

    def found(who: int) -> None:
        gate.wait()
        with Ledger.open(path, SCOPE) as ledger:
            ledger.reserve(f"op{who}", {"ada": (1,)}, b"")

    threads = [threading.Thread(target=found, args=(who,)) for who in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Ledger.open(path, SCOPE) as ledger:
        assert ledger.spent("ada") == (6,)


def test_a_ledger_held_by_another_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "PATIENCE", 0.05)
    path = tmp_path / "ledger"
    with Ledger.open(path, SCOPE) as ledger:
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
        assert code_of(Ledger.open, tmp_path / "ledger", SCOPE) == code
    assert list(tmp_path.iterdir()) == []
    Ledger.open(tmp_path / "ledger", SCOPE).close()


def test_errors_of_sqlite_never_escape(ledger: Ledger) -> None:
    ledger.reserve("op", ONE, b"")
    ledger._db.execute("CREATE TRIGGER broken AFTER INSERT ON record BEGIN INSERT INTO gone VALUES (1); END")
    ledger._db.execute("PRAGMA query_only = ON")
    assert code_of(ledger.stored, "op", b"digest") == "ledger-unwritable"
    ledger._db.execute("PRAGMA query_only = OFF")
    assert code_of(ledger.stored, "op", b"digest") == "ledger-damaged"
    assert ledger.state("op") is State.RESERVED  # the record went back


IO = [name for name in dir(sqlite3) if name.startswith("SQLITE_IOERR")]


TOLD = {
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
