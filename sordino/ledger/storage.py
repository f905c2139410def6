"""The ledger's file: one SQLite database of its own, in WAL mode, fully synced, on a local disk, or refused.

A file appears under its name only when it is complete, so one that is empty, cut or of another kind is damaged, and
never a reason to start again. Errors of SQLite and of the operating system become `LedgerError`s.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from sordino.errors import LedgerError
from sordino.ledger.files import limits_file_sizes, lock, sync

PATIENCE = 60.0  # seconds to wait for other writers

_APPLICATION, _VERSION = 0x536F7264, 1
_SCHEMA = [
    "CREATE TABLE record (sequence INTEGER PRIMARY KEY, hash BLOB NOT NULL, body BLOB NOT NULL)",
    *(
        f"CREATE TRIGGER record_{event} BEFORE {event} ON record BEGIN SELECT RAISE(ABORT, 'fixed'); END"
        for event in ("update", "delete")
    ),
]
_SETTINGS = "foreign_keys=ON", "trusted_schema=OFF", "cell_size_check=ON", "fullfsync=ON", "synchronous=FULL"
_FULL_SYNC = 2
_REMOTE = frozenset({"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "lustre", "ncpfs", "smb3", "smbfs"})
_REMOTE_FAMILIES = "nfs", "fuse."


def open_database(place: Path | None, first: tuple[bytes, bytes]) -> sqlite3.Connection:
    """Opens the file, or creates it with its first record (hash, body). Without a place the database is in memory."""
    with ExitStack() as undo:
        if place is None:
            connection = undo.enter_context(closing(_connect(":memory:")))
            _write_schema(connection, first)
        else:
            check_directory(place)
            if not place.exists():
                _create(place, first)
            _check_file(place)
            _check_one_name(place)
            connection = undo.enter_context(closing(_connect(f"{place.as_uri()}?mode=rw")))
            _check_database(connection)
            _check_durable(connection)
        undo.pop_all()
    return connection


def read_database(place: Path) -> sqlite3.Connection:
    """Copy of the ledger's present state in memory, to be read only: making it needs no write permission, leaves
    nothing on disk and keeps no writer waiting.
    """
    if not place.exists():
        raise missing(place)
    place = Path(os.path.realpath(place))  # unlike resolve(), it leaves a loop of links to what opens it
    _check_file(place)
    with ExitStack() as undo:
        connection = undo.enter_context(closing(_connect(":memory:")))
        _copy(place, connection)
        _check_database(connection)
        connection.execute("PRAGMA query_only=ON")
        undo.pop_all()
    return connection


def _copy(place: Path, into: sqlite3.Connection) -> None:
    journal = Path(f"{place}-wal")
    while not journal.exists():  # no process has it open, and no lock is touched
        stamp = _stamp(place)
        _backup(f"{place.as_uri()}?mode=ro&immutable=1", into)
        if not journal.exists() and stamp == _stamp(place):
            return
    try:
        _backup(f"{place.as_uri()}?mode=ro", into)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
        with tempfile.TemporaryDirectory(prefix="sordino-") as own:  # a kill left the journal where nothing is written
            for path in (place, journal):
                shutil.copy(path, own)
            _backup(Path(own, place.name).as_uri(), into)


def _backup(name: str, into: sqlite3.Connection) -> None:
    with closing(_connect(name)) as source:
        source.backup(into)


def _stamp(place: Path) -> tuple[int, int]:
    found = place.stat()
    return found.st_mtime_ns, found.st_size


def _check_file(place: Path) -> None:
    if not place.is_file() or place.stat().st_size == 0:
        # SQLite would take an empty file for a new database, and drop the journal beside it
        raise damaged(f"{place} is empty, or not a file")


def _check_one_name(place: Path) -> None:
    """Refuses a file that a hard link gives a second name: SQLite keeps a journal beside each name, so a process would
    not see what is spent under the other one.
    """
    for draft in place.parent.glob(f".{glob.escape(place.name)}-*/{glob.escape(place.name)}"):
        if identity(draft) == identity(place):  # left by a kill in `_create`
            draft.unlink(missing_ok=True)
    if place.stat().st_nlink > 1:
        raise LedgerError(
            f"the ledger {place} has a second name, a hard link",
            why="what is spent under one name is not seen under the other, so budgets would be spent twice",
            fix="remove the other name (`find -samefile` finds it); a copy for keeping is made by `cp`, without -l",
            code="ledger-two-names",
        )


def _connect(name: str) -> sqlite3.Connection:
    # threads are kept apart by the ledger's own mutex; isolation_level=None leaves transactions to the ledger
    connection = sqlite3.connect(name, timeout=PATIENCE, isolation_level=None, check_same_thread=False, uri=True)
    try:
        for setting in _SETTINGS:
            connection.execute(f"PRAGMA {setting}")
    except BaseException:
        connection.close()
        raise
    return connection


def _write_schema(connection: sqlite3.Connection, first: tuple[bytes, bytes]) -> None:
    connection.execute(f"PRAGMA application_id={_APPLICATION}")
    connection.execute(f"PRAGMA user_version={_VERSION}")
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute("INSERT INTO record VALUES (0, ?, ?)", first)
    connection.execute("COMMIT")


def _create(place: Path, first: tuple[bytes, bytes]) -> None:
    check_never_there(place)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as workshop:
        draft = Path(workshop, place.name)
        with closing(_connect(f"{draft.as_uri()}?mode=rwc")) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            _write_schema(connection, first)
        draft.chmod(0o600)  # it shows what single clients have spent
        try:
            os.link(draft, place)  # unlike a rename, a link never replaces a ledger another process has just founded
        except FileExistsError:
            return
    sync(place.parent)


def check_never_there(place: Path) -> None:
    """Refuses to create a ledger where one has been before: files that belonged to it are still there."""
    left = [name for name in (f"{place}-wal", f"{place}-lock", f"{place}.key") if os.path.lexists(name)]
    if left and not os.path.lexists(place):  # tested in this order: these files are created after the ledger
        raise LedgerError(
            f"the ledger {place} is gone: {' and '.join(Path(name).name for name in left)} are still there",
            why="a ledger is never started again from zero: what was spent on it stays spent",
            fix="put the ledger back from a copy; for other people and other data, give a new ledger another name",
            code="ledger-gone",
        )


def _check_database(connection: sqlite3.Connection) -> None:
    if _ask(connection, "application_id") != _APPLICATION:
        raise damaged("it is a database, but not a ledger")
    version = _ask(connection, "user_version")
    if version != _VERSION:
        raise LedgerError(
            f"the ledger has format {version}",
            why=f"this version of sordino reads format {_VERSION}",
            fix="open it with the version of sordino that wrote it",
            code="ledger-version",
        )
    if [row[0] for row in connection.execute("SELECT sql FROM sqlite_master ORDER BY rowid")] != _SCHEMA:
        raise damaged("its tables are not those of a ledger")


def _check_durable(connection: sqlite3.Connection) -> None:
    if _ask(connection, "journal_mode=WAL") != "wal" or _ask(connection, "synchronous") != _FULL_SYNC:
        raise LedgerError(
            "SQLite does not write every commit of this file durably to disk",
            why="a reservation must survive a power cut",
            fix="put the ledger on a local disk",
            code="ledger-not-durable",
        )


def _ask(connection: sqlite3.Connection, pragma: str) -> object:
    return connection.execute(f"PRAGMA {pragma}").fetchone()[0]


def check_directory(place: Path) -> None:
    if not place.parent.is_dir():
        raise LedgerError(
            f"there is no directory {place.parent}",
            fix="create it, or correct the path",
            code="ledger-no-directory",
        )
    mounts = Path("/proc/mounts")
    kind = file_system(place.parent, mounts.read_text(encoding="utf-8", errors="replace")) if mounts.exists() else ""
    if kind in _REMOTE or kind.startswith(_REMOTE_FAMILIES):
        raise LedgerError(
            f"{place.parent} is on a network file system ({kind})",
            why="file locks and durable writes are not reliable over a network",
            fix="put the ledger on a local disk of the machine that runs sordino",
            code="ledger-network-disk",
        )


def file_system(directory: Path, mounts: str) -> str:
    """The type of the file system that holds a resolved directory, from the text of /proc/mounts."""
    depth, kind = -1, ""
    for line in mounts.splitlines():
        _, point, found, *_ = line.split(" ")
        mount = Path(point.encode().decode("unicode_escape"))  # a space is written \\040
        if directory.is_relative_to(mount) and len(mount.parts) >= depth:  # a later mount hides an earlier one
            depth, kind = len(mount.parts), found
    return kind


def identity(place: Path | None) -> tuple[int, int] | None:
    """Device and inode number of the file at a path; None where there is none."""
    try:
        found = place.stat() if place else None
    except FileNotFoundError:
        return None
    return (found.st_dev, found.st_ino) if found else None


@contextmanager
def turnstile(place: Path | None) -> Iterator[None]:
    """Lets writers of a ledger proceed one at a time, their checkpoints included.

    SQLite's own lock already makes transactions exclusive. This one also keeps a checkpoint from racing a commit, which
    could corrupt the file in SQLite 3.7.0 to 3.51.2 (sqlite.org/wal.html#walresetbug).
    """
    if place is None:
        yield
        return
    gate = os.open(f"{place}-lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        wait_for(gate)
        yield
    finally:
        os.close(gate)


def wait_for(descriptor: int) -> None:
    """Takes the lock of an open file, waiting up to PATIENCE seconds for another process to release it."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return lock(descriptor)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise _refused(_BUSY) from None
            time.sleep(0.001)


def damaged(what: str) -> LedgerError:
    return LedgerError(
        f"the ledger is damaged: {what}",
        why="the privacy spent can no longer be read from it; a ledger is never started again from zero",
        fix="restore a complete copy of the file that was made after the last round; an older one is refused where "
        "this machine's notes show it",
        code="ledger-damaged",
    )


def missing(place: Path) -> LedgerError:
    return LedgerError(
        f"there is no ledger {place}",
        why="without the ledger nothing can be verified, and no run can continue",
        fix="put the file back; of a ledger that runs share, its new place may stand in privacy.ledger of the run's "
        "experiment.toml (a relative path leads from the folder in which the run began)",
        code="ledger-missing",
    )


_REFUSED = {  # code: what, why, fix
    "ledger-disk-full": (
        "the ledger cannot grow: the disk is full, or a quota or size limit is reached",
        "nothing was recorded, so nothing may be released",
        "free some space, then repeat the operation",
    ),
    "ledger-busy": (
        f"another process has held the ledger for {PATIENCE:.0f} s",
        "only one process at a time writes to a ledger",
        "look for a process that uses the ledger and hangs, then repeat the operation",
    ),
    "ledger-unwritable": (
        "the ledger cannot be opened for writing",
        "sordino may not write to it",
        "check the owner and the permissions of the file and its directory",
    ),
    "ledger-disk-error": (
        "the disk under the ledger reported an error",
        "it failed, a quota is reached, or it may only be read; the ledger itself is not damaged, and all that was "
        "recorded before is still there",
        "try again: nothing is lost; if the error comes back, check the disk and the system's log",
    ),
}
_FULL, _BUSY, _UNWRITABLE, _DISK = _REFUSED


def _refused(code: str) -> LedgerError:
    what, why, fix = _REFUSED[code]
    return LedgerError(what, why=why, fix=fix, code=code)


def _unwritten() -> str:
    """Error code for SQLITE_IOERR_WRITE, which SQLite reports for file size limits, quotas and failed disks alike:
    "disk full" if this process has a file size limit, otherwise "disk failed".
    """
    return _FULL if limits_file_sizes() else _DISK


def check_pages(connection: sqlite3.Connection) -> None:
    """Refuses a file whose pages are inconsistent, as damaged; a page that the disk could not read is reported as a
    disk error.
    """
    if (found := connection.execute("PRAGMA quick_check").fetchall()) == [("ok",)]:
        return
    code = next(map(int, re.findall(r"error code=([0-9]+)", str(found))), sqlite3.SQLITE_CORRUPT)
    raise (
        _refused(_DISK)
        if code & 0xFF == sqlite3.SQLITE_IOERR and code not in _DAMAGE
        else damaged("its pages do not agree")
    )


_BY_SQLITE = {  # what is not named here, is damage
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_IOERR: _DISK,
    sqlite3.SQLITE_IOERR_SHMSIZE: _FULL,
    sqlite3.SQLITE_PROTOCOL: _BUSY,
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_CANTOPEN: _UNWRITABLE,
    sqlite3.SQLITE_PERM: _UNWRITABLE,
    sqlite3.SQLITE_READONLY: _UNWRITABLE,
}
# the disk answers, with less than was written
_DAMAGE = sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS
_BY_SYSTEM = {errno.ENOSPC: _FULL, errno.EDQUOT: _FULL, errno.EFBIG: _FULL, errno.EIO: _DISK}


@contextmanager
def refusals() -> Iterator[None]:
    """Context manager that turns errors of SQLite and of the file system into `LedgerError`s."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        known = _BY_SQLITE.get(code) or _BY_SQLITE.get(code & 0xFF)  # extended code, else its primary one
        if known is None or code in _DAMAGE:
            raise damaged(str(error)) from error
        raise _refused(_unwritten() if code == sqlite3.SQLITE_IOERR_WRITE else known) from error
    except UnicodeDecodeError as error:  # Python reading SQLite's complaint about a file that is no longer text
        raise damaged("it cannot be read") from error
    except OSError as error:
        raise _refused(_BY_SYSTEM.get(error.errno or 0, _UNWRITABLE)) from error
