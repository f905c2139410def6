"""Client code in other processes: only wire messages, grants and acknowledgements cross.

Each worker is `python -m sordino.worker FOLDER PLACE RUN STAGE FIRST STEP`: it builds its own clients from the experiment in the run folder, keeps their
states, and speaks frames of `length (8 bytes, little endian) + bytes` on its standard streams.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from sordino.engine import wire
from sordino.errors import RunError
from sordino.keys import Key
from sordino.types import Grant, Params

FRAME = struct.Struct("<Q")
LARGEST = 1 << 34


class Processes:
    """The executor: client k lives in worker k mod workers."""

    def __init__(
        self, folder: Path, place: Path, run: str, stage: int, workers: int, header: Callable[[int], wire.Header]
    ) -> None:
        """`place` is where this stage of the run keeps its states."""
        self._header = header  # of the broadcast of a round
        self._workers = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "sordino.worker",
                    str(folder),
                    str(place),
                    run,
                    str(stage),
                    str(i),
                    str(workers),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                process_group=0,  # Ctrl-C in a terminal is for the server, which ends its workers
            )
            for i in range(workers)
        ]

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.kill()
            worker.communicate()

    def __call__(self, t: int, down: Any, grants: Mapping[int, Grant], key: Key) -> Iterator[tuple[int, bytes]]:
        message = wire.encode(self._header(t), down)
        jobs: dict[int, subprocess.Popen[bytes]] = {}
        for i, worker in enumerate(self._workers):
            mine = {str(k): list(g.told()) for k, g in grants.items() if k % len(self._workers) == i}
            self._send(worker, json.dumps({"do": "round", "t": t, "grants": mine}).encode())
            self._send(worker, message)
            jobs |= {int(k): worker for k in mine}
        for k in sorted(jobs):
            yield k, self._receive(jobs[k])

    def score(self, t: int, models: Sequence[Params], ways: Sequence[str]) -> dict[int, list[float]]:
        """Every worker scores its own clients, all at once."""
        message = wire.encode(self._header(t), tuple(models))
        for worker in self._workers:
            self._send(worker, json.dumps({"do": "score", "t": t, "models": len(models), "ways": list(ways)}).encode())
            self._send(worker, message)
        found = [json.loads(self._receive(worker)) for worker in self._workers]
        return {int(k): row for part in found for k, row in part.items()}

    def save(self, step: int) -> None:
        self._all({"do": "save", "step": step})

    def restore(self, step: int, place: Path) -> None:
        """From this stage's own checkpoint, or from that of the stage before."""
        self._all({"do": "restore", "step": step, "place": str(place)})

    def _all(self, command: Mapping[str, Any]) -> None:
        for worker in self._workers:
            self._send(worker, json.dumps(command).encode())
        for worker in self._workers:
            self._receive(worker)

    def _send(self, worker: subprocess.Popen[bytes], data: bytes) -> None:
        assert worker.stdin is not None
        try:
            write(worker.stdin, data)
        except BrokenPipeError:
            raise _gone(worker) from None

    def _receive(self, worker: subprocess.Popen[bytes]) -> bytes:
        assert worker.stdout is not None
        data = read(worker.stdout)
        if data is None:
            raise _gone(worker)
        if data.startswith(b"ERROR "):
            raise RunError("a client process refused", why=data[6:].decode(errors="replace"), code="client-refused")
        return data


def _gone(worker: subprocess.Popen[bytes]) -> RunError:
    return RunError(
        f"a client process ended with status {worker.wait()}",
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
