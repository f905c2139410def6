"""Ranks and client processes that are watched: `torchrun ... -m tests.runs.watched_workers PLAY ...`, with the
arguments of whoever would do it unwatched.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch

from sordino import config
from sordino.cli import main
from sordino.engine import client_states
from sordino.engine.server import FederatedServer
from sordino.runs import ranks, run, site_process
from sordino.runs.simulation import simulated
from sordino.types import Terms


def away(*arguments: str) -> None:
    """A run whose ranks all compute on the pretended accelerator."""
    from tests.pretended import DEVICE, accelerator  # who needs it alone: no fork of that process differentiates

    with (
        mock.patch.object(run, "device_of", return_value=str(DEVICE)),
        mock.patch.object(ranks, "device_of", return_value=str(DEVICE)),
        accelerator(),
    ):
        sys.argv = ["sordino", *arguments]
        main()


def left_behind(*arguments: str) -> None:
    """The broken twin: rows that the last rank does not move."""
    last = os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1)
    with mock.patch.object(client_states, "here", (lambda value: value) if last else client_states.here):
        away(*arguments)


def killed(*arguments: str) -> None:
    """A run that dies in its second phase, once what that has released is out."""
    whole = FederatedServer.publish

    def dying(self: FederatedServer, t: int, digest: bytes) -> None:
        whole(self, t, digest)
        if self.run.endswith(".ask"):
            os.kill(os.getpid(), signal.SIGKILL)

    with mock.patch.object(FederatedServer, "publish", dying):
        sys.argv = ["sordino", *arguments]
        main()


def client(*arguments: str) -> None:
    """A client process on the pretended accelerator."""
    from tests.pretended import DEVICE, accelerator

    with mock.patch.object(site_process, "device_of", return_value=str(DEVICE)), accelerator():
        site_process.main(list(arguments))


def client_left_behind(*arguments: str) -> None:
    with mock.patch.object(client_states, "here", lambda value: value):
        client(*arguments)


def broken_off(experiment: str, folder: str) -> None:
    """A round that nobody reads to its end, and one that is read: what comes then, as one file of each upload."""
    if ranks.following():
        ranks.follow()
        return
    simulation, out = simulated(config.load(Path(experiment))), Path(folder)
    task, algorithm = simulation.setup.task, simulation.setup.algorithm
    down, everyone = algorithm.broadcast(algorithm.init(task, 0)), range(len(simulation.setup.public.sizes))
    terms = {k: Terms(simulation.setup.public.largest, None) for k in everyone}
    with ranks.Ranks(simulation, "run", out, out, None) as those:
        next(iter(those(0, down, terms).uploads))
        (out / "uploads").mkdir()
        for k, upload in those(1, down, terms).uploads:
            (out / "uploads" / str(k)).write_bytes(upload)


PLAYS: dict[str, Callable[..., None]] = {
    "away": away,
    "left_behind": left_behind,
    "client": client,
    "client_left_behind": client_left_behind,
    "killed": killed,
    "broken_off": broken_off,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    PLAYS[sys.argv[1]](*sys.argv[2:])
