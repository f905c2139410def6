"""What Windows lacks is taken away from this system, and it gets the locks of Windows: a simulation, its books and its
locks go on. No test here ran on Windows itself.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sordino.errors import LedgerError, RunError
from sordino.ledger import files
from sordino.ledger.files import atomic_write, files_allowed, limits_file_sizes, lock
from sordino.ledger.storage import turnstile
from sordino.receipts import folder
from sordino.receipts.folder import RunFolder
from sordino.receipts.verify import verify

MODULES = "fcntl", "resource", "termios", "pwd", "grp"
OF_OS = "fchmod", "pread", "pwrite", "O_CLOEXEC", "O_DIRECTORY", "fork", "geteuid", "getuid", "sched_getaffinity"
SIGNALS = "SIGHUP", "SIGQUIT", "SIGKILL"
SETTINGS = "rounds=2", "partition.clients=4", "engine.workers=2"


def locks_of_windows() -> types.ModuleType:
    """A module msvcrt whose locks are kept in a dict, by file and byte. A lock ends with its descriptor."""
    made, held = types.ModuleType("msvcrt"), dict[tuple[int, int], int]()

    def locking(descriptor: int, mode: int, count: int) -> None:
        file, at = os.fstat(descriptor), os.lseek(descriptor, 0, os.SEEK_CUR)
        assert mode == 2, "it would wait"
        assert count == 1
        assert at > file.st_size, "nobody could read what is locked"
        holder = held.get((file.st_ino, at), descriptor)
        if holder != descriptor:
            try:
                if os.fstat(holder).st_ino == file.st_ino:
                    raise PermissionError(errno.EACCES, "locked")
            except OSError as error:
                if error.errno != errno.EBADF:
                    raise
        held[file.st_ino, at] = descriptor

    made.locking, made.LK_NBLCK = locking, 2  # type: ignore[attr-defined]
    return made


def strip() -> None:
    """Takes away from this process what Windows does not have."""
    import shutil
    import signal

    sys.modules.update(dict.fromkeys(MODULES))  # type: ignore[arg-type]
    sys.modules["msvcrt"] = locks_of_windows()
    for name in OF_OS:
        delattr(os, name)
    for name in SIGNALS:
        delattr(signal, name)
        del signal.Signals._member_map_[name]
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    opened = os.open

    def refusing(path: str, *how: int, **more: int) -> int:
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "a directory", str(path))
        return opened(path, *how, **more)

    os.open = refusing  # type: ignore[assignment]


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of this process are those of Windows."""
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "msvcrt", locks_of_windows())
    monkeypatch.setattr(folder, "LOCKS", Path("/nowhere"))


@pytest.mark.usefixtures("windows")
def test_of_two_who_open_a_file_one_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "a", "wb") as one, open(tmp_path / "a", "rb") as two, open(tmp_path / "b", "wb") as other:
        one.write(b"12345")
        lock(one.fileno())
        assert one.tell() == 5  # what is written next comes behind what was written
        for shared in (False, True):
            with pytest.raises(BlockingIOError):
                lock(two.fileno(), shared)
        lock(other.fileno())
        one.close()
        lock(two.fileno())


@pytest.mark.usefixtures("windows")
def test_a_run_folder_and_a_ledger_have_one_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(tmp_path)
    with run.locked():
        assert run.in_use
        with pytest.raises(RunError, match="in use"), run.locked():
            pass
    assert not run.in_use
    monkeypatch.setattr("sordino.ledger.storage.PATIENCE", 0.05)
    with turnstile(tmp_path / "ledger"):
        with pytest.raises(LedgerError) as refused, turnstile(tmp_path / "ledger"):
            pass
        assert refused.value.code == "ledger-busy"
    with turnstile(tmp_path / "ledger"):
        pass


def test_where_there_are_no_locks_at_all_nothing_is_begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*MODULES, "msvcrt"):
        monkeypatch.setitem(sys.modules, name, None)
    with open(tmp_path / "a", "wb") as file, pytest.raises(LedgerError) as refused:
        lock(file.fileno())
    assert refused.value.code == "no-file-locks"
    assert files_allowed(100) == 100
    assert not limits_file_sizes()


def test_an_error_that_is_no_lock_of_another_is_not_called_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = locks_of_windows()

    def locking(*how: int) -> None:
        raise OSError(errno.EIO, "the disk")

    made.locking = locking  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", made)
    with open(tmp_path / "a", "wb") as file, pytest.raises(OSError, match="the disk") as failed:
        lock(file.fileno())
    assert not isinstance(failed.value, BlockingIOError)


def test_a_private_file_is_private_from_its_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    synced = os.fsync
    monkeypatch.setattr(files.os, "fsync", lambda file: (seen.append(os.fstat(file).st_mode & 0o777), synced(file))[1])
    with masked(0o022):
        atomic_write(tmp_path / "secret", b"x", private=True)
        atomic_write(tmp_path / "open", b"x")
    assert [seen[0], seen[2]] == [0o600, 0o644]  # each file, then its directory


@contextmanager
def masked(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


PROGRAM = """
import sys, warnings
warnings.filterwarnings("error", category=EncodingWarning, module="sordino")  # texts are UTF-8, whatever the system reads
import torch, numpy, scipy.optimize, pydantic, dp_accounting, safetensors.torch  # what is not ours knows its system
from tests.ledger.test_systems import SETTINGS, strip
strip()
import sordino
from pathlib import Path
from sordino.receipts import folder
from sordino.receipts.verify import verify
folder.LOCKS = Path("/nowhere")
for more in ((), ("privacy.noise=system",)):
    out = Path(sys.argv[1], str(len(more)))
    sordino.run(None, *SETTINGS, *more, out=out)
    assert verify(out) == [], verify(out)
from sordino.ledger.files import append_line, atomic_write
for text in ("one", "two"):
    append_line(out / "lines", text)
assert (out / "lines").read_bytes() == b"one\\ntwo\\n"
atomic_write(out / "secret", b"x", private=True)
from sordino.sites.grpc_server import connections_for
assert connections_for(3) > 3
"""


@pytest.mark.slow
def test_without_all_that_a_run_has_the_same_model(tmp_path: Path) -> None:
    import sordino

    sordino.run(None, *SETTINGS, out=tmp_path / "plain")
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-c", PROGRAM, tmp_path],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "0" / "model.safetensors").read_bytes() == (
        tmp_path / "plain" / "model.safetensors"
    ).read_bytes()
    assert verify(tmp_path / "0") == verify(tmp_path / "1") == []
