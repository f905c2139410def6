"""Flower's apps at the price of a fork: a process of its environment imports them once and forks a child for each.

Flower starts `flwr-clientapp` or `flwr-serverapp` anew for every message, by its name. `lent` puts programs of these
names into a folder; they ask the warm process for a child with their arguments, and end as it ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

APPS = ("flwr-clientapp", "flwr-serverapp")
PROGRAM = """#!{python} -IS
import sys
sys.path.insert(0, {here!r})
from warm_apps import ask
ask({place!r}, {name!r})
"""


def lent(python: Path, folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """The warm process, which ends with its standard input, and the programs that ask it."""
    folder.mkdir()
    for name in APPS:
        file, here = folder / name, str(Path(__file__).parent)
        file.write_text(PROGRAM.format(python=python, here=here, place=f"{folder}/socket", name=name))
        file.chmod(0o755)
    command = [str(python), "-m", "tests.adapters.warm_apps", f"{folder}/socket"]
    with (folder / "log").open("wb") as log:
        begun = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )
    return begun


def ask(place: str, name: str) -> None:
    """Have the warm process run an app with the arguments of this one, and end as that ends."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(place)
    where = {"cwd": str(Path.cwd()), "limit": None, "files": None, "env": {}}
    command = {"module": name, "arguments": sys.argv[1:], **where}
    socket.send_fds(line, [json.dumps(command).encode()], [0, 1, 2])
    answers = line.makefile()
    child = int(answers.readline())
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    code = int(answers.readline())
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def apps() -> dict[str, Callable[[list[str]], None]]:
    """The apps by name, with what they and those of the tests import."""
    import gc

    from flwr.superlink.cli import flwr_serverapp
    from flwr.supernode.cli import flwr_clientapp

    from sordino.runs.run import start  # noqa: F401

    def called(name: str, app: Callable[[], None]) -> Callable[[list[str]], None]:
        def call(arguments: list[str]) -> None:
            sys.argv = [name, *arguments]
            app()

        return call

    gc.freeze()
    return {name: called(name, app) for name, app in zip(APPS, (flwr_clientapp, flwr_serverapp), strict=True)}


if __name__ == "__main__":
    from tests.laws import warm

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(64)
    warm.serve(listener, os.dup(0), apps)
