"""Clients in processes of this machine, which the server starts: client k lives in process k mod workers.

With a timeout, the clients of a silent process miss the round, and others are asked in their place until the process
has answered."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from sordino.algorithms.optional import PerClientMessages
from sordino.config import Network
from sordino.engine import wire
from sordino.runs.setup import Setup
from sordino.transport.message import Letterhead
from sordino.transport.pipes import Pipes
from sordino.transport.sites import Patience, Sites

ROOM = 1 << 26  # bytes of uploads in one message: what a process holds before it answers
MANY = 1000  # clients in one message


def in_processes(setup: Setup, folder: Path, place: Path, run: str) -> Sites:
    """The clients of a phase; `place` is where it keeps their states."""
    engine, header = setup.engine, setup.header(run)
    network, algorithm = engine.network, setup.algorithm
    workers = min(int(engine.workers), len(setup.public.sizes))  # who has no client has nothing to do
    command = [sys.executable, "-m", "sordino.runs.site_process", str(folder), str(place), run, str(setup.stage)]
    upload = wire.payload_bytes(wire.schema(algorithm.zero(setup.task, algorithm.broadcast(setup.state("server")))))
    return Sites(
        Pipes([[*command, str(i), str(workers)] for i in range(workers)]),
        Letterhead("", run),
        setup.stage,
        {str(i): range(i, len(setup.public.sizes), workers) for i in range(workers)},
        lambda t: header(t, -1),
        algorithm.per_client_message if isinstance(algorithm, PerClientMessages) else None,
        Patience(network.timeout_s or math.inf, 0, engine.deadline_s or math.inf),
        # with a simulated slow network each message carries one client, since each client has a network of its own
        1 if network != Network() else max(1, min(MANY, ROOM // max(1, upload))),
    )
