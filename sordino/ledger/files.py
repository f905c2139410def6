"""Files that are written whole or not at all, and errors for what the disk refuses.

A file is written beside its place, synced, renamed over it, and the directory is synced: `kill -9` or a power cut at
any moment leaves the previous file or the whole new one.
"""

from __future__ import annotations

import functools
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from sordino.errors import DISK, NO_FILE_LEFT, REMEDIES, RunError

P = ParamSpec("P")
T = TypeVar("T")

_WAITS, _LOOK = 60.0, 0.1  # seconds: how long for a file that may be opened, and between two tries


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
def atomic_write(path: Path, data: bytes, private: bool = False) -> None:
    """Replaces the file's content durably and atomically: readers and crashes see all old or all new. `private`: only
    the owner may read it.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # same directory: same file system
    with disk_told(path):
        try:
            with open(temporary, "xb") as file:
                if private:
                    os.fchmod(file.fileno(), 0o600)
                file.write(data)
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
        if (length := file.seek(0, os.SEEK_END)) and os.pread(descriptor, 1, length - 1) != b"\n":
            file.truncate(os.pread(descriptor, length, 0).rfind(b"\n") + 1)
        file.write(line.encode() + b"\n")


def sync(directory: Path) -> None:
    """Makes new and renamed files of this directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)  # a rename is durable only when its directory is
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_told(path: Path, otherwise: str = "not-writable") -> Iterator[None]:
    """Turns an OSError inside the block into a `RunError` that names the file and the fix."""
    try:
        yield
    except OSError as error:
        code = DISK.get(error.errno or 0, otherwise)
        what = f"{path} is not {'readable' if otherwise == 'not-readable' else 'written'}"
        raise RunError(what, why=str(error), fix=REMEDIES[code], code=code) from error
