"""A disk that fails is told in its own words, and a whole file is never called damaged."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sordino.errors import LedgerError, Range, RunError, damaged, unwritten
from sordino.ledger import files, storage
from sordino.receipts.folder import RunFolder
from sordino.runs.run import resume, start
from tests.laws.cases import BY_NAME

CASE = BY_NAME["gaussian_gdp"]
READ = {
    errno.EIO: "disk-error",
    errno.EACCES: "not-readable",
    errno.EMFILE: "no-file-left",
    errno.ENOENT: "run-file-damaged",
    errno.EISDIR: "run-file-damaged",
}
WRITTEN = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.EIO: "disk-error",
    errno.EROFS: "not-writable",
    errno.EACCES: "not-writable",
}


def failing(number: int) -> Callable[..., Any]:
    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fails


@pytest.mark.parametrize("number", READ)
def test_what_cannot_be_read_now_is_not_damaged(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(tmp_path)
    monkeypatch.setattr(Path, "read_text", failing(number))
    with pytest.raises(RunError) as refusal:
        _ = run.environment
    assert refusal.value.code == READ[number]
    assert os.strerror(number) in refusal.value.why
    assert ("is damaged" in refusal.value.what) == (READ[number] == "run-file-damaged")


@pytest.mark.parametrize("number", WRITTEN)
def test_a_folder_that_cannot_be_made_says_why(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`choose another --out` helps nobody whose disk is full."""
    for call in ("replace", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(files.os, call, failing(number))
            with pytest.raises(RunError) as refusal:
                start(CASE.experiment(), tmp_path / "run")
        assert refusal.value.code == WRITTEN[number]
        assert refusal.value.what == f"cannot create {tmp_path / 'run'}"
        assert ("free some space, then" in refusal.value.fix) == (WRITTEN[number] == "disk-full")
    assert not any(tmp_path.iterdir())


def test_the_words_of_a_write_are_those_of_the_system() -> None:
    said = unwritten("cannot write", OSError(errno.EROFS, "Read-only file system"), "look at the folder")
    assert (said.code, said.fix) == ("not-writable", "look at the folder")
    assert damaged(Path("x"), "it has a hole", "mend it").code == "run-file-damaged"


def test_a_run_whose_disk_fails_goes_on_when_it_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(CASE.experiment(), tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", failing(errno.EIO))
        with pytest.raises(RunError) as refusal:
            resume(tmp_path / "run")
    assert refusal.value.code == "disk-error"
    assert not resume(tmp_path / "run").interrupted


@pytest.mark.parametrize(("limit", "code"), [(1 << 20, "ledger-disk-full"), (-1, "ledger-disk-error")])
def test_a_write_that_failed_is_a_limit_only_where_there_is_one(
    limit: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite says the same of a limit, of a disk that failed and of one that may only be read."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
    with pytest.raises(LedgerError) as refusal, storage.refusals():
        raise error
    assert refusal.value.code == code


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("Tree 2 page 5: unable to get the page. error code=266", "ledger-disk-error"),  # SQLITE_IOERR_READ
        ("Tree 2 page 5: unable to get the page. error code=522", "ledger-damaged"),  # SQLITE_IOERR_SHORT_READ
        ("Tree 2 page 5: unable to get the page. error code=11", "ledger-damaged"),
        ("row 3 missing from index", "ledger-damaged"),
    ],
)
def test_a_page_that_could_not_be_read_is_not_a_wrong_one(said: str, code: str) -> None:
    connection = Mock(**{"execute.return_value.fetchall.return_value": [(said,)]})
    with pytest.raises(LedgerError) as refusal:
        storage.check_pages(connection)
    assert refusal.value.code == code


def test_a_range_holds_whole_numbers_that_no_float_holds() -> None:
    large = 10**400
    assert Range(least=1, whole=True).holds(large)
    assert not Range(most=5.0).holds(large)
    assert not Range(above=0).holds(-large)
    assert not Range(least=0).holds(float("inf"))
