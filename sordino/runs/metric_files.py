"""Write metrics.jsonl, one object per round. With real noise it holds only what may be published under the guarantees;
the rest, such as test results, goes to the private folder, for the evaluator.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sordino.accounting.events import Json
from sordino.errors import damaged
from sordino.metrics import RoundLine
from sordino.receipts.private import FOLDER

ALWAYS = ("phase", "round", "lost", "model_norm")
# public unless the cohort is hidden
SEEN = ("active", "answered", "bytes_down", "bytes_up", "payload", "device_flops", "secure")
INSIDE = ("saturated", "cpu_seconds")  # of a secure sum: the size of single values, and the time of single clients


def shown(row: RoundLine, hidden: bool) -> Json:
    """The public fields of a row: what was released anyway; of a hidden cohort neither its size nor anything that grows
    with it.
    """
    told = row.to_json()
    kept = {name: told[name] for name in (*ALWAYS, *(() if hidden else SEEN)) if name in told}
    if "secure" in kept:
        kept["secure"] = {name: value for name, value in kept["secure"].items() if name not in INSIDE}
    return kept


class Rows:
    """Writer of the rows of a run, or of its preparation: public fields and, with real noise, private ones."""

    def __init__(self, public: _Kept, private: _Kept | None, hidden: bool) -> None:
        self._public, self._private, self._hidden = public, private, hidden

    def write(self, row: RoundLine) -> None:
        whole = row.to_json()
        if self._private is None:
            self._public.write(_line(whole))
            return
        told = shown(row, self._hidden)
        kept = {name: value for name, value in whole.items() if value != told.get(name)}
        self._public.write(_line(told))
        self._private.write(_line({"round": row.round, **kept}))

    def sync(self) -> dict[str, int | str]:
        """Flush to disk; returns lengths and digests of the files, for the checkpoint."""
        known = self._public.sync("metrics")
        return known if self._private is None else known | self._private.sync("private")


def _line(told: Json) -> bytes:
    return json.dumps(told).encode() + b"\n"


class _Kept:
    """An append-only file, and the running SHA-256 of its content."""

    def __init__(self, file: IO[bytes], digest: hashlib._Hash) -> None:
        self._file, self._digest = file, digest

    def write(self, line: bytes) -> None:
        self._file.write(line)
        self._digest.update(line)

    def sync(self, name: str) -> dict[str, int | str]:
        self._file.flush()
        os.fsync(self._file.fileno())
        return {f"{name}_bytes": self._file.tell(), f"{name}_sha256": self._digest.hexdigest()}


@contextlib.contextmanager
def opened(path: Path, known: Json, private: bool, hidden: bool) -> Iterator[Rows]:
    """Open the file of public rows and, if `private`, that of the rows of single clients, both truncated to the lengths
    that the checkpoint names (`known`). `hidden`: public rows leave out the size of the cohort, and all that grows with
    it.
    """
    with contextlib.ExitStack() as stack:
        public = stack.enter_context(_cut(path, known, "metrics", 0o644))
        place = path.parent / FOLDER / path.name
        own = stack.enter_context(_cut(place, known, "private", 0o600)) if private else None
        yield Rows(public, own, hidden)


@contextlib.contextmanager
def _cut(path: Path, known: Json, name: str, mode: int) -> Iterator[_Kept]:
    length = known.get(f"{name}_bytes", 0)
    fix = "put the file back from a copy, or start the run again in another folder"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode)
    with os.fdopen(descriptor, "a+b") as file:
        if (held := os.fstat(file.fileno()).st_size) < length:
            why = f"it has {held} bytes, but the checkpoint says {length}"
            raise damaged(path, why, fix)
        file.seek(0)
        digest = hashlib.sha256(file.read(length))
        if digest.hexdigest() != known.get(f"{name}_sha256", digest.hexdigest()):
            raise damaged(path, "its rows are not those that the checkpoint was written with", fix)
        file.truncate(length)
        file.seek(0, os.SEEK_END)
        yield _Kept(file, digest)
