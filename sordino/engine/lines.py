"""A line to a client process: frames of `length (8 bytes, little endian) + bytes`, waited for as long as it takes, or no longer than somebody's patience.

What comes too late is thrown away when it comes: a process that owes an answer is asked nothing until it has given it.
"""

from __future__ import annotations

import os
import select
import struct
import subprocess
import time
from typing import IO

from sordino.errors import RunError

FRAME = struct.Struct("<Q")
LARGEST = 1 << 34
_CHUNK = 1 << 20


class Line:
    def __init__(self, process: subprocess.Popen[bytes], patient: bool) -> None:
        self.process, self._patient = process, patient
        self.owed = 0  # answers that are still to come, and that nobody waits for any more
        self._came = bytearray()

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            write(self.process.stdin, data)
        except BrokenPipeError:
            raise self._gone() from None

    def receive(self, until: float = float("inf")) -> bytes | None:
        """The next frame; None where it has not come in time."""
        assert self.process.stdout is not None
        if self._patient:
            data = read(self.process.stdout)
            if data is None:
                raise self._gone()
        else:
            data = self._before(until)
        if data is not None and data.startswith(b"ERROR "):
            raise RunError("a client process refused", why=data[6:].decode(errors="replace"), code="client-refused")
        return data

    def settled(self) -> bool:
        """Has everything come that was owed?"""
        while self.owed and self._before(0.0) is not None:
            self.owed -= 1
        return not self.owed

    def _before(self, until: float) -> bytes | None:
        assert self.process.stdout is not None
        place = self.process.stdout.fileno()
        while (frame := self._whole()) is None:
            left = None if until == float("inf") else max(0.0, until - time.monotonic())
            if not select.select([place], [], [], left)[0]:
                return None
            if not (chunk := os.read(place, _CHUNK)):
                raise self._gone()
            self._came += chunk
        return frame

    def _whole(self) -> bytes | None:
        if len(self._came) < FRAME.size:
            return None
        end = FRAME.size + FRAME.unpack_from(self._came)[0]
        if len(self._came) < end:
            return None
        frame = bytes(self._came[FRAME.size : end])
        del self._came[:end]
        return frame

    def _gone(self) -> RunError:
        return RunError(
            f"a client process ended with status {self.process.wait()}",
            why="it was killed or ran out of memory",
            fix="resume the run: nothing that was released is lost",
            code="client-process-ended",
        )


def write(stream: IO[bytes], data: bytes) -> None:
    stream.write(FRAME.pack(len(data)))
    stream.write(data)
    stream.flush()


def read(stream: IO[bytes]) -> bytes | None:
    head = stream.read(FRAME.size)
    if len(head) < FRAME.size:
        return None
    (length,) = FRAME.unpack(head)
    if length > LARGEST:
        return None
    data = stream.read(length)
    return data if len(data) == length else None
