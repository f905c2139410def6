"""Files that are written whole or not at all, their locks, and errors for what the disk refuses.

A file is written beside its place, synced, renamed over it, and the directory is synced: `kill -9` or a power cut at
any moment leaves the previous file or the whole new one. Differences between operating systems stand here alone: locks,
synced directories, limits of a process.
"""

from __future__ import annotations

import errno
import functools
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from sordino.errors import DISK, NO_FILE_LEFT, REMEDIES, LedgerError, RunError

P = ParamSpec("P")
T = TypeVar("T")

_WAITS, _LOOK = 60.0, 0.1  # seconds: how long for a file that may be opened, and between two tries
_LOCKED = 1 << 30  # place of the byte that Windows locks: nobody reads a locked byte, so it lies far behind all content


def waiting_for_files(do: Callable[P, T]) -> Callable[P, T]:
    """Retries for a minute while the limit on open files (EMFILE, ENFILE) is reached, so that many connections cannot
    cost a run what it has paid for.
    """

    @functools.wraps(do)
    def tried(*args: P.args, **kwargs: P.kwargs) -> T:
        until = time.monotonic() + _WAITS
        while True:
            try:
                return do(*args, **kwargs)
            except (OSError, RunError) as error:
                cause = error if isinstance(error, OSError) else error.__cause__
                if getattr(cause, "errno", None) not in NO_FILE_LEFT or time.monotonic() >= until:
                    raise
            time.sleep(_LOOK)

    return tried


@waiting_for_files
def atomic_write(path: Path, data: bytes | Sequence[bytes | memoryview], private: bool = False) -> None:
    """Replaces the file's content durably and atomically: other processes, and this one after a crash, see all old or
    all new. `data`: whole, or its parts; `private`: only the owner may read it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # same directory: same file system
    with disk_errors(path):
        try:
            with open(temporary, "xb") as file:
                if private:
                    temporary.chmod(0o600)
                file.writelines([data] if isinstance(data, bytes) else data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)


@waiting_for_files
def append_line(path: Path, line: str, mode: int = 0o644) -> None:
    """Appends a line to a file; an incomplete last line, left by a kill or a full disk, is removed first."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - 1))
        if length and file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read(length).rfind(b"\n") + 1)
        file.write(line.encode() + b"\n")


def sync(directory: Path) -> None:
    """Makes new and renamed files of this directory durable. Windows opens no directory, and syncs none."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(directory, os.O_RDONLY)  # a rename is durable only when its directory is
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(descriptor: int, shared: bool = False) -> None:
    """Takes the lock of an open file for this process; raises `BlockingIOError` where another process holds it. Windows
    has no shared locks: there `shared` takes the whole lock.
    """
    try:
        import fcntl
    except ImportError:
        _lock_of_windows(descriptor)
    else:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def _lock_of_windows(descriptor: int) -> None:
    try:
        import msvcrt
    except ImportError:
        raise LedgerError(
            "this system has no file locks that sordino knows",
            why="two processes could spend the same budget, or write the same run",
            fix="run it on Linux, macOS or Windows",
            code="no-file-locks",
        ) from None
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, _LOCKED, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EDEADLK):
            raise BlockingIOError(errno.EAGAIN, "another process holds the lock") from error
        raise
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)


def files_allowed(wanted: int) -> int:
    """Number of files that this process may open, after raising it towards `wanted` as far as the system lets it;
    `wanted` where there is no limit.
    """
    try:
        import resource
    except ImportError:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # it goes on with what it has
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return wanted if soft == resource.RLIM_INFINITY else soft


def limits_file_sizes() -> bool:
    """True where the system limits the size of this process's files."""
    try:
        import resource
    except ImportError:
        return False
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY


@contextmanager
def disk_errors(path: Path, otherwise: str = "not-writable") -> Iterator[None]:
    """Context manager that turns an OSError into a `RunError` with the file's name and a fix."""
    try:
        yield
    except OSError as error:
        code = DISK.get(error.errno or 0, otherwise)
        what = f"{path} is not {'readable' if otherwise == 'not-readable' else 'written'}"
        raise RunError(what, why=str(error), fix=REMEDIES[code], code=code) from error
