"""A client process: `python -m sordino.runs.site_process FOLDER PLACE RUN STAGE FIRST STEP`.

It holds clients FIRST, FIRST+STEP, ... with their data and states; what leaves it are wire messages. It draws its own
noise: from the experiment's key in simulation, from the operating system otherwise.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from pathlib import Path
from typing import IO

import torch

from sordino import config, user_code
from sordino.engine import checkpoint
from sordino.engine.commands import Round, parsed
from sordino.engine.lines import failed, read, write
from sordino.engine.memory import keep_freed_memory
from sordino.engine.site import Site
from sordino.engine.slow_network import Emulated
from sordino.errors import SordinoError
from sordino.runs.folder import RunFolder
from sordino.runs.private import secret_of
from sordino.runs.simulation import simulated


def serve(site: Site, slowly: Emulated, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
    """Obeys commands until the stream ends."""
    write(outgoing, b"ready")
    while (frame := read(incoming)) is not None:
        try:
            with user_code.blamed():
                command = parsed(frame)
                messages = [_heard(incoming) for _ in range(command.messages)]
                answers = site.obey(command, messages)
                for answer in slowly.carried(messages, answers) if isinstance(command, Round) else answers:
                    write(outgoing, answer)
        except SordinoError as error:
            write(outgoing, failed(error))


def _heard(incoming: IO[bytes]) -> bytes:
    message = read(incoming)
    assert message is not None
    return message


def main(arguments: list[str]) -> None:
    commands, answers = _private_streams()
    threading.Thread(target=_end_with_server, args=(commands.fileno(),), daemon=True).start()
    with contextlib.suppress(BrokenPipeError):  # the server is gone: nobody is left to answer
        try:
            with user_code.blamed():
                _begin(arguments, commands, answers)
        except SordinoError as error:
            write(answers, failed(error))


def _begin(arguments: list[str], commands: IO[bytes], answers: IO[bytes]) -> None:
    folder, place, run, stage, first, step = arguments
    whole = simulated(config.load(Path(folder) / "experiment.toml"))
    mine, engine = whole.at(int(stage)), whole.setup.experiment.engine
    torch.set_num_threads(engine.threads)
    keep_freed_memory()
    which, handed = range(int(first), len(mine.setup.public.sizes), int(step)), RunFolder(Path(folder)).handed_file
    given = checkpoint.tensors(handed) if not mine.setup.prepares and handed.exists() else None
    secret = secret_of(Path(folder))
    site = mine.site(run, which, mine.states(Path(place)), secret, given, Path(place) / f"clients-{first}")
    serve(site, Emulated(**engine.network.model_dump(exclude={"timeout_s"})), commands, answers)


def _private_streams() -> tuple[IO[bytes], IO[bytes]]:
    """The standard streams carry frames. What client code, in whatever language, reads or prints is none of them: it
    reads nothing, and prints to the standard error."""
    commands, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return commands, answers


def _end_with_server(commands: int) -> None:
    """A server that is gone leaves the pipe hung up, which a client that is at work, perhaps for ever, would not
    see."""
    hung_up = select.poll()
    hung_up.register(commands, 0)
    while not hung_up.poll():
        pass
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
