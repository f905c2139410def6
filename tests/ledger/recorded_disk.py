"""Every write, sync, link and removal of a ledger's files as the program asks for them, and every disk that a power cut
may leave behind.

SQLite is given a file layer that is its own, with a record of the calls; what Python asks for is recorded beside it. A
disk keeps what was synced. Of all that was written since, it keeps any part: here every beginning, all but one write,
one write alone, and each of these with the last write torn.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
from collections.abc import Iterator
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p, cast
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sordino.ledger import files

SECTOR = 512


class Call(NamedTuple):
    what: str  # open, write, truncate, sync, delete, link, move, folder
    name: str
    at: int = 0
    data: bytes = b""


# the file layer -------------------------------------------------------------------------------------------------------
METHODS = [
    "close",
    "read",
    "write",
    "truncate",
    "sync",
    "size",
    "lock",
    "unlock",
    "reserved",
    "control",
    "sector",
    "device",
    "shm_map",
    "shm_lock",
    "shm_barrier",
    "shm_unmap",
    "fetch",
    "unfetch",
]
REST = [
    "access",
    "full",
    "dl_open",
    "dl_error",
    "dl_sym",
    "dl_close",
    "random",
    "sleep",
    "time",
    "error",
    "time64",
    "set_call",
    "get_call",
    "next_call",
]


class Methods(Structure):
    _fields_ = [("version", c_int), *((name, c_void_p) for name in METHODS)]


class File(Structure):
    _fields_ = [("methods", POINTER(Methods))]


class Layer(Structure):
    _fields_ = [
        ("version", c_int),
        ("size", c_int),
        ("longest", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", c_void_p),
        ("delete", c_void_p),
        *((name, c_void_p) for name in REST),
    ]


OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(File), c_int, c_void_p)  # behind a name stand its options
DELETE = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
WRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
TRUNCATE = CFUNCTYPE(c_int, c_void_p, c_int64)
SYNC = CFUNCTYPE(c_int, c_void_p, c_int)


def _sqlite() -> Any:
    """SQLite as Python's own module has loaded it, or a skip where it is not a library of its own."""
    import _sqlite3

    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = POINTER(Layer)
        library.sqlite3_vfs_register.argtypes = POINTER(Layer), c_int
        return library
    return pytest.skip("Python's SQLite shows no file layer here")


@contextlib.contextmanager
def recorded() -> Iterator[list[Call]]:
    """The calls inside the block. Files that are opened inside must be closed inside."""
    library, calls = _sqlite(), list[Call]()
    own = library.sqlite3_vfs_find(None)
    kept: list[Any] = []  # what SQLite points to must not be collected
    names: dict[int, str] = {}
    tables: dict[int, Methods] = {}

    def table(real: Methods, address: int) -> Methods:
        if address in tables:
            return tables[address]
        made = Methods.from_buffer_copy(real)
        write, cut, sync = (
            kind(getattr(real, n)) for kind, n in ((WRITE, "write"), (TRUNCATE, "truncate"), (SYNC, "sync"))
        )

        def writes(file: int, data: int, size: int, at: int) -> int:
            calls.append(Call("write", names[file], at, ctypes.string_at(data, size)))
            return int(write(file, data, size, at))

        def truncates(file: int, size: int) -> int:
            calls.append(Call("truncate", names[file], size))
            return int(cut(file, size))

        def syncs(file: int, flags: int) -> int:
            done = int(sync(file, flags))
            calls.append(Call("sync", names[file]))
            return done

        functions = WRITE(writes), TRUNCATE(truncates), SYNC(syncs)
        made.write, made.truncate, made.sync = (cast(one, c_void_p).value for one in functions)
        kept.append(functions)
        tables[address] = made
        return made

    open_, delete = OPEN(own.contents.open), DELETE(own.contents.delete)

    def opens(_: int, path: int | None, file: Any, flags: int, out: int) -> int:
        name = os.fsdecode(ctypes.string_at(path)) if path else ""
        there = os.path.exists(name)
        done = int(open_(cast(own, c_void_p).value, path, file, flags, out))
        if done == 0 and name:
            address = cast(file, c_void_p).value
            assert address
            names[address] = name
            if not there:
                calls.append(Call("open", names[address]))
            methods = file.contents.methods
            real = cast(methods, c_void_p).value
            assert real
            file.contents.methods = ctypes.pointer(table(methods.contents, real))
        return done

    def deletes(_: int, name: bytes, flush: int) -> int:
        calls.append(Call("delete", os.fsdecode(name)))
        return int(delete(cast(own, c_void_p).value, name, flush))

    layer = Layer.from_buffer_copy(own.contents)
    functions = OPEN(opens), DELETE(deletes)
    layer.name, layer.open, layer.delete = b"recorded", *(cast(one, c_void_p).value for one in functions)
    kept += [layer, functions]
    with pytest.MonkeyPatch.context() as patched:
        link = os.link

        def links(one: Any, other: Any) -> None:
            link(one, other)
            calls.append(Call("link", str(other), data=os.fsencode(one)))

        patched.setattr(os, "link", links)
        patched.setattr("sordino.ledger.storage.sync", lambda folder: calls.append(Call("folder", str(folder))))
        assert library.sqlite3_vfs_register(ctypes.pointer(layer), 1) == 0
        try:
            yield calls
        finally:
            library.sqlite3_vfs_unregister(ctypes.pointer(layer))
            library.sqlite3_vfs_register(own, 1)
            tables.clear()
            kept.clear()


class Written(io.BytesIO):
    """A file that Python writes, whose calls are recorded when they reach the system."""

    def __init__(self, path: Path, mode: str, calls: list[Call]) -> None:
        super().__init__()
        self.place, self.calls, self.file, self.told = path, calls, io.FileIO(path, mode.replace("b", "")), 0
        calls.append(Call("open", str(path)))

    def fileno(self) -> int:
        return self.file.fileno()

    def flush(self) -> None:
        new = self.getvalue()[self.told :]
        if new and not self.file.closed:
            self.file.write(new)
            self.calls.append(Call("write", str(self.place), self.told, new))
            self.told += len(new)

    def close(self) -> None:
        self.flush()
        self.file.close()
        super().close()


@contextlib.contextmanager
def recorded_files() -> Iterator[list[Call]]:
    """What `files.atomic_write` asks of the disk inside the block."""
    calls, made = list[Call](), list[Written]()
    replace = os.replace

    def opens(path: Path, mode: str) -> Written:
        made.append(Written(path, mode, calls))
        return made[-1]

    def syncs(descriptor: int) -> None:
        calls.extend(Call("sync", str(one.place)) for one in made if one.fileno() == descriptor)

    def moves(one: Path, other: Path) -> None:
        replace(one, other)
        calls.append(Call("move", str(other), data=os.fsencode(one)))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "open", opens, raising=False)
        patched.setattr(files.os, "fsync", syncs)
        patched.setattr(files.os, "replace", moves)
        patched.setattr(files, "sync", lambda folder: calls.append(Call("folder", str(folder))))
        yield calls


# the disk -------------------------------------------------------------------------------------------------------------


@dataclass
class Content:
    """What a file holds for certain, and what was written since."""

    safe: bytes = b""
    since: list[Call] = field(default_factory=list)


def after(content: bytes, calls: list[Call]) -> bytes:
    made = bytearray(content)
    for call in calls:
        if call.what == "truncate":
            del made[call.at :]
            made.extend(bytes(max(0, call.at - len(made))))
        else:
            made.extend(bytes(max(0, call.at - len(made))))
            made[call.at : call.at + len(call.data)] = call.data
    return bytes(made)


def torn(call: Call) -> list[Call]:
    """A write of which only the first or only the last sectors came."""
    middle = max(len(call.data) // 2 // SECTOR * SECTOR, min(SECTOR, len(call.data) // 2))
    if call.what != "write" or not 0 < middle < len(call.data):
        return []
    return [call._replace(data=call.data[:middle]), call._replace(at=call.at + middle, data=call.data[middle:])]


def parts(calls: list[Call]) -> Iterator[list[Call]]:
    """What may have come of these calls."""
    for n in range(len(calls) + 1):
        yield calls[:n]
        if n:
            yield from ([*calls[: n - 1], half] for half in torn(calls[n - 1]))
    if len(calls) > 2:
        yield from ([*calls[:i], *calls[i + 1 :]] for i in range(len(calls) - 1))
        yield from ([call] for call in calls[1:])


class Disk:
    """A disk in front of which calls are made."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.names = {name: Content(content) for name, content in files.items()}  # as the program sees them
        self.safe = dict(self.names)  # as a power cut leaves them

    def take(self, call: Call) -> None:
        if call.what == "open":
            self.names[call.name] = Content()
        elif call.what == "link":
            self.names[call.name] = self.names[os.fsdecode(call.data)]
        elif call.what == "move":
            self.names[call.name] = self.names.pop(os.fsdecode(call.data))
        elif call.what == "delete":
            self.names.pop(call.name, None)
        elif call.what == "folder":
            inside = Path(call.name)
            self.safe = {n: c for n, c in self.safe.items() if Path(n).parent != inside}
            self.safe |= {n: c for n, c in self.names.items() if Path(n).parent == inside}
        elif call.what == "sync":
            content = self.names[call.name]
            content.safe, content.since = after(content.safe, content.since), []
            if call.name.endswith("-wal"):  # SQLite syncs the folder with the first sync of a journal that it made
                self.safe[call.name] = content
        else:
            self.names[call.name].since.append(call)

    def left(self) -> Iterator[dict[str, bytes]]:
        """Every disk that a power cut may leave now."""
        listed = self.safe.keys() | self.names.keys()
        unsure = [name for name in listed if self.safe.get(name) is not self.names.get(name)]
        for seen in product((False, True), repeat=len(unsure)):
            chosen = dict(self.safe)
            for name, new in zip(unsure, seen, strict=True):
                content = (self.names if new else self.safe).get(name)
                chosen.pop(name, None)
                if content is not None:
                    chosen[name] = content
            kinds = {id(content): content for content in chosen.values()}
            each = [[after(content.safe, part) for part in parts(content.since)] for content in kinds.values()]
            for made in product(*each):
                bodies = dict(zip(kinds, made, strict=True))
                yield {name: bodies[id(content)] for name, content in chosen.items()}
