"""A client process: `python -m sordino.runs.site_process FOLDER PLACE RUN STAGE FIRST STEP`.

It holds clients FIRST, FIRST+STEP, ... with their data and states, and sends nothing but messages. It draws its own
noise: from the experiment's key in simulation, from the operating system otherwise."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import torch

from sordino import user_code
from sordino.config import Experiment
from sordino.device import here, on
from sordino.engine import checkpoint
from sordino.engine.commands import Refused
from sordino.engine.executor import device_of
from sordino.engine.forks import ENDING
from sordino.errors import SordinoError
from sordino.fast import keep_freed_memory
from sordino.planning import Agreement
from sordino.privacy.readers.function_reader import empty_input
from sordino.receipts.folder import RunFolder
from sordino.receipts.private import key_of_data
from sordino.runs.simulation import check_rows, secret_of, simulated
from sordino.transport.message import Signer, peek, serve, write
from sordino.transport.request_handler import RequestHandler


@dataclass(frozen=True)
class SlowNetwork:
    """Simulation of a slow device on a slow network: it waits as long as these would take. Nothing that is computed or
    sent changes.
    """

    latency_ms: float = 0.0  # each way
    down_mbit: float | None = None
    up_mbit: float | None = None
    compute: float = 1.0  # times slower

    def behind(self, answer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        """Wrap `answer` so that it replies as late as a device that is `compute` times as slow, behind this network."""
        if self == SlowNetwork():
            return answer

        def late(message: bytes) -> bytes:
            self._wait(len(message), self.down_mbit)
            begin = time.monotonic()
            reply = answer(message)
            time.sleep((self.compute - 1) * (time.monotonic() - begin))
            self._wait(len(reply), self.up_mbit)
            return reply

        return late

    def receive(self, size: int) -> None:
        """Wait as long as the network would take for the tensors that every client receives once."""
        self._wait(size, self.down_mbit)

    def _wait(self, size: int, mbit: float | None) -> None:
        travel = 0.0 if mbit is None else 8 * size / (mbit * 1e6)
        time.sleep(self.latency_ms / 1e3 + travel)


def main(arguments: list[str]) -> None:
    for number in ENDING:  # a signal to all processes of a run is for the server, which ends the others
        signal.signal(number, signal.SIG_IGN)
    messages, answers = _private_streams()
    threading.Thread(target=_end_with_server, args=(messages.fileno(),), daemon=True).start()
    with contextlib.suppress(BrokenPipeError):  # the server has ended: there is no one to answer
        try:
            with user_code.blamed():
                _begin(arguments, messages, answers)
        except SordinoError as error:
            write(answers, json.dumps(asdict(Refused.of(error))).encode())


def _begin(arguments: list[str], messages: IO[bytes], answers: IO[bytes]) -> None:
    folder, _, _, _, first, _ = arguments
    experiment = RunFolder(Path(folder)).experiment
    with on(device_of(experiment.engine.device, int(first))):
        _serve(experiment, arguments, messages, answers)


def _serve(experiment: Experiment, arguments: list[str], messages: IO[bytes], answers: IO[bytes]) -> None:
    folder, place, run, stage, first, step = arguments
    whole, engine = simulated(experiment, key_of_data(Path(folder))), experiment.engine
    check_rows(whole, Agreement.read(Path(folder)).dataset)
    phase = whole.at(int(stage))
    torch.set_num_threads(engine.threads)
    keep_freed_memory()
    which, file = range(int(first), len(phase.setup.public.sizes), int(step)), RunFolder(Path(folder)).tensors_file
    given = None
    if not phase.setup.prepares and file.exists():
        given = {name: here(value) for name, value in checkpoint.tensors(file).items()}
    secret = secret_of(Path(folder))
    kept = RunFolder(Path(place)).checkpoints / f"clients-{first}"  # what clients keep is not to be shown
    site = phase.site(run, which, phase.setup.states(Path(place)), secret, given, kept)
    handler = RequestHandler(Signer(first, run), lambda stage: site)
    line = SlowNetwork(**engine.network.of(int(first)))
    if given is not None:
        line.receive(file.stat().st_size)
    late = line.behind(handler.answer)
    serve(lambda message: (late if _of_a_round(message) else handler.answer)(message), messages, answers)


def _of_a_round(message: bytes) -> bool:
    return peek(message).said.get("do") == "round"


def _private_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Keep standard input and output for messages. Client code that reads its input then gets nothing, and what it
    prints goes to standard error.
    """
    messages, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    empty_input()
    os.dup2(2, 1)
    return messages, answers


def _end_with_server(messages: int) -> None:
    """Exit when the server closes the pipe, even while a client is at work and would not notice."""
    hung_up = select.poll()
    hung_up.register(messages, 0)
    while not hung_up.poll():
        pass
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
