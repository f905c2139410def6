"""A line to a client process: frames of `length (8 bytes, little endian) + bytes`, waited for as long as it takes, or
no longer than somebody's patience.

What comes too late is thrown away when it comes: a process that owes an answer is asked nothing until it has given it.
"""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import time
from typing import IO

from sordino.errors import OwnCodeError, RunError, SordinoError, WireError

FRAME = struct.Struct("<Q")
LARGEST = 1 << 34
FAILED = b"ERROR "  # begins a frame that is no answer
_CHUNK = 1 << 20


class Line:
    def __init__(self, process: subprocess.Popen[bytes], deadline: float | None = None) -> None:
        """`deadline`: seconds after which a process that owes an answer is given up; None to be patient for ever."""
        self.process, self._deadline = process, deadline
        self._moved = float("inf")  # when it was last asked or heard
        self.owed = 0  # answers that are still to come, and that nobody waits for any more
        self._came = bytearray()

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            write(self.process.stdin, data)
            self._moved = time.monotonic()
        except BrokenPipeError:
            raise self._gone() from None

    def receive(self, until: float = float("inf")) -> bytes | None:
        """The next frame; None where it has not come in time."""
        assert self.process.stdout is not None
        place = self.process.stdout.fileno()
        last = float("inf") if self._deadline is None else self._moved + self._deadline
        while (frame := self._whole()) is None:
            left = None if min(until, last) == float("inf") else max(0.0, min(until, last) - time.monotonic())
            if not select.select([place], [], [], left)[0]:
                if time.monotonic() >= last:
                    raise self._endless()
                return None
            if not (chunk := os.read(place, _CHUNK)):
                raise self._gone()
            self._came += chunk
        self._moved = time.monotonic()
        if frame.startswith(FAILED):
            raise failure(frame)
        return frame

    def settled(self) -> bool:
        """Has everything come that was owed? A failure that comes late is no answer that may be thrown away."""
        while self.owed and self.receive(0.0) is not None:
            self.owed -= 1
        return not self.owed

    def _whole(self) -> bytes | None:
        if len(self._came) < FRAME.size:
            return None
        (length,) = FRAME.unpack_from(self._came)
        if length > LARGEST:
            raise WireError(
                "a client process sent what is no frame",
                why=f"it would be {length} bytes long",
                fix="resume the run: nothing that was released is lost",
                code="no-frame",
            )
        end = FRAME.size + length
        if len(self._came) < end:
            return None
        frame = bytes(self._came[FRAME.size : end])
        del self._came[:end]
        return frame

    def _endless(self) -> RunError:
        return RunError(
            f"a client process has not answered for {self._deadline:g} s",
            why="engine.deadline_s says that the work of one client takes no longer: it is too slow, or it never ends",
            fix="look for an endless loop in your model or algorithm, or give a larger engine.deadline_s; then "
            "resume the run",
            code="deadline-passed",
        )

    def _gone(self) -> RunError:
        return RunError(
            f"a client process ended with status {self.process.wait()}",
            why="it was killed, ran out of memory, or its program ended it",
            fix="resume the run: nothing that was released is lost",
            code="client-process-ended",
        )


def failed(error: SordinoError) -> bytes:
    """A refusal as a frame; what fails in the user's own code is told apart."""
    told = {"own": isinstance(error, OwnCodeError), "what": error.what, "why": error.why, "fix": error.fix}
    return FAILED + json.dumps(told).encode()


def failure(frame: bytes) -> SordinoError:
    """The refusal in a frame. It is the text of a client: shown, and not believed."""
    try:
        told = json.loads(frame[len(FAILED) :])
        own, what, why, fix = (told[name] for name in ("own", "what", "why", "fix"))
    except (ValueError, KeyError, TypeError):
        own, what, why, fix = False, "what it said cannot be read", "", ""
    if own is True:
        return OwnCodeError(str(what), why=str(why), fix=str(fix), code="own-code")
    return RunError("a client process refused", why=f"{what}\n{why}".strip(), fix=str(fix), code="client-refused")


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
