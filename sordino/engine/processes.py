"""Client code in other processes: only wire messages, grants and acknowledgements cross.

Each worker is `python -m sordino.runs.site_process FOLDER PLACE RUN STAGE FIRST STEP`: it builds its own clients from
the experiment in the run folder, keeps their states, and speaks frames (`engine.lines`) on its standard streams. With a
timeout a worker that is silent costs its clients the round, and others are asked in their place until it has answered.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from sordino.engine import wire
from sordino.engine.commands import Command, Keep, Restore, Round, Score, packed
from sordino.engine.executor import Executor, Scores
from sordino.engine.lines import Line
from sordino.ledger.events import Json
from sordino.tree import Tree
from sordino.types import Params, Terms


class Processes(Executor):
    """Sites behind pipes: client k lives in worker k mod workers."""

    def __init__(
        self,
        folder: Path,
        place: Path,
        run: str,
        stage: int,
        workers: int,
        header: Callable[[int], wire.Header],
        timeout: float | None = None,
        deadline: float | None = None,
        told: Callable[[Any, int], Any] | None = None,
    ) -> None:
        """`told`: what of the broadcast each client gets; None where all get the same. `place` is where this stage of
        the run keeps its states. Seconds, or None to wait: after `timeout` a round goes on, after `deadline` the run
        ends."""
        self._header, self._timeout, self._told = header, timeout, told  # header: of the broadcast of a round
        command = [sys.executable, "-m", "sordino.runs.site_process", str(folder), str(place), run, str(stage)]
        self._lines = [
            Line(
                subprocess.Popen(
                    [*command, str(i), str(workers)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    process_group=0,  # Ctrl-C in a terminal is for the server, which ends its workers
                ),
                deadline,
            )
            for i in range(workers)
        ]

    def __enter__(self) -> Processes:
        for line in self._lines:  # who has not begun yet is not silent
            line.receive()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in self._lines:
            line.process.kill()
            line.process.communicate()

    def away(self, client: int) -> bool:
        """Is its process still silent?"""
        return not self._lines[client % len(self._lines)].settled()

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Iterator[tuple[int, bytes]]:
        jobs: dict[int, Line] = {}
        for i, line in enumerate(self._lines):
            mine = {k: terms[k] for k in sorted(terms) if k % len(self._lines) == i}
            if not line.settled():
                continue
            line.send(packed(Round(t, mine, apart=self._told is not None)))
            for message in self._messages(t, down, list(mine)):
                line.send(message)
            jobs |= dict.fromkeys(mine, line)
        until = float("inf") if self._timeout is None else time.monotonic() + self._timeout
        for k in sorted(jobs):
            answer = jobs[k].receive(until)
            if answer is None:
                jobs[k].owed += 1
            else:
                yield k, answer

    def _messages(self, t: int, down: Tree, clients: Sequence[int]) -> Iterator[bytes]:
        """One for all clients of a process; where each is told something of its own, one for each, and nobody else's
        part is in it."""
        told = self._told
        parts = [down] if told is None else [told(down, k) for k in clients]
        yield from (wire.encode(self._header(t), part) for part in parts)

    def score(self, t: int, models: Sequence[Params], ways: Sequence[str]) -> Scores:
        """Every worker scores its own clients, all at once."""
        message = wire.encode(self._header(t), tuple(models))
        scored = [json.loads(part) for part in self._all(Score(t, len(models), list(ways)), message)]
        return {int(k): row for part in scored for k, row in part.items()}

    def keep(self, step: int) -> Json:
        self._all(Keep(step))
        return {}

    def restore(self, step: int, place: Path) -> None:
        """The clients go on from the checkpoint of this stage, or from that of the stage before."""
        self._all(Restore(step, str(place)))

    def _all(self, command: Command, message: bytes | None = None) -> list[bytes]:
        """Asks everybody who is not silent, and waits for the answers."""
        asked = [line for line in self._lines if line.settled()]
        for line in asked:
            line.send(packed(command))
            if message is not None:
                line.send(message)
        answers = [line.receive() for line in asked]
        return [answer for answer in answers if answer is not None]
