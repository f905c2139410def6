"""A client process: `python -m sordino.runs.site_process FOLDER PLACE RUN STAGE FIRST STEP`.

It holds clients FIRST, FIRST+STEP, ... with their data and states; what leaves it are wire messages. It draws its own
noise: from the experiment's key in simulation, from the operating system otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch

from sordino import config, keys, user_code
from sordino.engine import checkpoint
from sordino.engine.client import Clients
from sordino.engine.lines import failed, read, write
from sordino.engine.memory import keep_freed_memory
from sordino.engine.slow_network import Emulated
from sordino.errors import SordinoError
from sordino.privacy.noise.sources import for_client
from sordino.runs.folder import RunFolder
from sordino.runs.private import secret_of
from sordino.runs.setup import Parts
from sordino.types import Grant


def serve(parts: Parts, clients: Clients, place: Path, name: str, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
    """Answer commands until the stream ends. States are kept in `place`, under the `name` of this worker."""
    write(outgoing, b"ready")
    while (frame := read(incoming)) is not None:
        command = json.loads(frame)
        try:
            with user_code.blamed():
                _obey(parts, clients, place, name, command, incoming, outgoing)
        except SordinoError as error:
            write(outgoing, failed(error))


def _obey(
    parts: Parts,
    clients: Clients,
    place: Path,
    name: str,
    command: dict[str, Any],
    incoming: IO[bytes],
    outgoing: IO[bytes],
) -> None:
    if command["do"] == "round":
        messages = [_heard(incoming) for _ in range(len(command["grants"]) if command["apart"] else 1)]
        slowly = Emulated(**parts.experiment.engine.network.model_dump(exclude={"timeout_s"}))
        for message in messages:
            slowly.receive(message)
        for answer in slowly.computed(_round(parts, clients, command, messages)):
            slowly.send(answer)
            write(outgoing, answer)
    elif command["do"] == "score":
        write(outgoing, json.dumps(clients.answer_scores(command, _heard(incoming))).encode())
    elif command["do"] == "save":
        checkpoint.save(place / name, command["step"], clients.states.trees(), {})
        write(outgoing, b"saved")
    else:
        loaded = checkpoint.load(Path(command["place"]) / name, parts.state, at=command["step"])
        assert loaded is not None
        clients.states = parts.states(place, loaded)
        write(outgoing, b"restored")


def _heard(incoming: IO[bytes]) -> bytes:
    message = read(incoming)
    assert message is not None
    return message


def _round(parts: Parts, clients: Clients, command: dict[str, object], messages: list[bytes]) -> Iterator[bytes]:
    t, granted = command["t"], command["grants"]
    assert isinstance(t, int)
    assert isinstance(granted, dict)
    largest, noise = parts.largest, parts.experiment.privacy.noise
    grants = {
        k: Grant(k, parts.sizes[k], largest, for_client(noise, parts.phase_key, t, k), *told)
        for k, told in sorted((int(name), value) for name, value in granted.items())
    }
    key = keys.fold(parts.phase_key, "round", t)
    if command["apart"]:
        for (k, grant), message in zip(grants.items(), messages, strict=True):
            yield from (answer for _, answer in clients.answer(t, message, {k: grant}, key, apart=True))
        return
    yield from (answer for _, answer in clients.answer(t, messages[0], grants, key))


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
    parts = Parts(config.load(Path(folder) / "experiment.toml"), stage=int(stage))
    torch.set_num_threads(parts.experiment.engine.threads)
    keep_freed_memory()
    which, handed = range(int(first), len(parts.sizes), int(step)), RunFolder(Path(folder)).handed_file
    given = checkpoint.tensors(handed) if not parts.prepares and handed.exists() else None
    clients = parts.clients(run, which, parts.states(Path(place)), secret_of(Path(folder)), given)
    serve(parts, clients, Path(place), f"clients-{first}", commands, answers)


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
