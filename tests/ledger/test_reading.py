"""Whoever only looks at a ledger writes nothing: an archive, or another user's ledger, is read as it stands."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sordino.ledger import storage
from sordino.ledger.ledger import Ledger
from tests.ledger.small import ONE, SCOPE, code_of


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    found = {path.name: path.stat() for path in folder.rglob("*")}
    return {name: (about.st_mtime_ns, about.st_size) for name, about in found.items()}


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A ledger as a kill leaves it: what was spent last stands in its journal."""
    (tmp_path / "alive").mkdir()
    place = tmp_path / "killed"
    with Ledger.open(tmp_path / "alive" / "ledger", SCOPE) as ledger:
        ledger.reserve("one", ONE, b"")
        shutil.copytree(tmp_path / "alive", place)
        assert (place / "ledger-wal").stat().st_size
    (place / "ledger-shm").unlink()
    return place / "ledger"


READ: dict[str, Callable[[Path], Ledger]] = {
    "as founded": Ledger.as_founded,
    "opened": lambda place: Ledger.open(place, SCOPE, reading=True),
}


@pytest.mark.parametrize("read", READ)
def test_reading_touches_nothing(read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "ledger"
    with Ledger.open(place, SCOPE) as ledger:
        ledger.reserve("one", ONE, b"")
        head = ledger.head()
    before = stamps(tmp_path)
    monkeypatch.setattr("sordino.ledger.ledger.turnstile", None)
    with READ[read](place) as seen:
        assert seen.head() == head
        assert seen.spent("ada") == ONE["ada"]
        assert not seen._db.execute("PRAGMA database_list").fetchone()[2]  # no file is open
        monkeypatch.undo()
        assert code_of(seen.reserve, "two", ONE, b"") == "ledger-unwritable"
    assert stamps(tmp_path) == before


def test_what_a_kill_left_in_the_journal_is_read_where_nothing_can_be_written(
    left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite reads a journal beside files of its own; where it cannot make them, both are copied."""
    connect = sqlite3.connect

    def archived(name: str, *given: Any, **named: Any) -> sqlite3.Connection:
        if left.as_uri() in name and "immutable" not in name:
            return connect("file:/nowhere/at/all?mode=ro", *given, **named)
        return connect(name, *given, **named)

    monkeypatch.setattr(storage.sqlite3, "connect", archived)
    before = stamps(left.parent)
    with Ledger.as_founded(left) as ledger:
        assert ledger.spent("ada") == ONE["ada"]
    assert stamps(left.parent) == before


def test_what_a_writer_has_just_written_is_read(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger", SCOPE) as writer:
        for name in ("one", "two"):
            writer.reserve(name, ONE, b"")
            with Ledger.as_founded(tmp_path / "ledger") as ledger:
                assert ledger.head() == writer.head()


def test_a_writer_that_comes_in_between_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that changed while it was read without any lock is read again."""
    place = tmp_path / "ledger"
    Ledger.open(place, SCOPE).close()
    backup, came = storage._backup, []

    def disturbed(name: str, into: sqlite3.Connection) -> None:
        backup(name, into)
        if not came:
            came.append(name)
            with Ledger.open(place, SCOPE) as writer:
                writer.reserve("one", ONE, b"")

    monkeypatch.setattr(storage, "_backup", disturbed)
    with Ledger.as_founded(place) as ledger:
        assert ledger.spent("ada") == ONE["ada"]


def test_a_ledger_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert code_of(Ledger.as_founded, tmp_path / "ledger") == "ledger-missing"
    assert os.listdir(tmp_path) == []
