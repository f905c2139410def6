"""Messages through pipes, to processes that the server starts itself. A frame is `length (8 bytes, little endian) +
bytes`; the first one of a process says that it is ready, and every later one is the answer to the next message.
"""

from __future__ import annotations

import collections
import contextlib
import json
import queue
import struct
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import IO

from sordino.engine.commands import Refused, read_answer
from sordino.errors import RunError, SordinoError
from sordino.transport.message import Arrived, Carrier, Writes

FRAME = struct.Struct("<Q")
LARGEST = 1 << 34
READY = b"ready"


class Pipes(Carrier):
    """Client processes that answer messages on their standard streams."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        """`commands`: command line of each process."""
        self._came: queue.SimpleQueue[tuple[str, bytes | None]] = queue.SimpleQueue()
        self._processes = {str(i): _started(command) for i, command in enumerate(commands)}
        self._owed = {peer: collections.deque[int]() for peer in self._processes}  # tickets, oldest first
        self._sent = 0
        for peer, process in self._processes.items():
            threading.Thread(target=self._hear, args=(peer, process.stdout), daemon=True).start()

    def __enter__(self) -> Pipes:
        for _ in self._processes:  # who has not begun yet is not silent
            peer, frame = self._came.get()
            if frame != READY:
                raise self._gone(peer) if frame is None else _refusal(frame)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()

    def peers(self) -> frozenset[str]:
        return frozenset(self._processes)

    @property
    def who(self) -> Sequence[str]:
        return list(self._processes)

    def send(self, to: str, message: Writes) -> int:
        stream = self._processes[to].stdin
        assert stream is not None
        try:
            write(stream, message())
        except BrokenPipeError:
            raise self._gone(to) from None
        self._sent += 1
        self._owed[to].append(self._sent)
        return self._sent

    def came(self, seconds: float) -> Sequence[Arrived]:
        try:
            peer, frame = (
                self._came.get(timeout=min(seconds, threading.TIMEOUT_MAX)) if seconds else self._came.get_nowait()
            )
        except queue.Empty:
            return []
        if frame is None or not self._owed[peer]:
            raise self._gone(peer)
        return [Arrived(self._owed[peer].popleft(), frame)]

    def cancel(self, ticket: int) -> None:
        """Cancels nothing: a process executes every command that it was sent."""

    def given_up(self, peer: str, seconds: float) -> SordinoError:
        return RunError(
            f"a client process has not answered for {seconds:g} s",
            why="engine.deadline_s limits the work of one client: it is too slow, or it never ends",
            fix="look for an endless loop in your model or algorithm, or give a larger engine.deadline_s; then "
            "resume the run",
            code="deadline-passed",
        )

    def _hear(self, peer: str, stream: IO[bytes]) -> None:
        """Moves a process's answers from its pipe to the server's queue: a full pipe would stop the process."""
        frame: bytes | None = b""
        while frame is not None:
            frame = read(stream)
            self._came.put((peer, frame))

    def _gone(self, peer: str) -> RunError:
        process = self._processes[peer]
        process.kill()  # a process that sends anything but frames is not a client any more
        return RunError(
            f"a client process ended with status {process.wait()}",
            why="it was killed, ran out of memory, or its program ended it",
            fix="resume the run, where memory was short with fewer engine.workers: nothing that was released is lost",
            code="client-process-ended",
        )


def _refusal(frame: bytes) -> SordinoError:
    """Error of a process that could not start."""
    try:
        answer = read_answer(json.loads(frame))
    except (ValueError, RecursionError):
        answer = Refused("what it said cannot be read")
    return (answer if isinstance(answer, Refused) else Refused("it did not begin")).error("a client process")


def serve(answer: Callable[[bytes], bytes], incoming: IO[bytes], outgoing: IO[bytes]) -> None:
    """Main loop of a client process: answers messages until the stream ends."""
    write(outgoing, READY)
    while (message := read(incoming)) is not None:
        write(outgoing, answer(message))


def write(stream: IO[bytes], data: bytes) -> None:
    stream.write(FRAME.pack(len(data)))
    stream.write(data)
    stream.flush()


def read(stream: IO[bytes]) -> bytes | None:
    """Next frame; None where the stream ends before a whole one."""
    head = stream.read(FRAME.size)
    if len(head) < FRAME.size:
        return None
    (length,) = FRAME.unpack(head)
    if length > LARGEST:
        return None
    data = stream.read(length)
    return data if len(data) == length else None


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    # a group of its own: Ctrl-C in a terminal is for the server, which ends its processes
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, process_group=0)
