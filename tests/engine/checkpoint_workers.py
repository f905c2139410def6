"""A process that saves checkpoints and is killed; started by test_checkpoint.py as a child of the warm server
(`laws.warm`).

It forks a child for every crash, so a crash costs milliseconds. Commands come as JSON
lines on stdin; each is answered by one JSON line when its child is gone.
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sordino.engine import checkpoint
from sordino.errors import RunError
from sordino.ledger import files

FAILPOINTS = ("unopened", "opened", "half-written", "written", "synced", "replaced", "directory-synced")
COUNT = 20_000


class Server(NamedTuple):
    weights: dict[str, Tensor]
    round: Tensor


def state(step: int) -> dict[str, Any]:
    """The state after a round in closed form; the set of clients changes from round to round."""
    ramp = torch.arange(COUNT, dtype=torch.float32)
    server = Server({"w": torch.cos(ramp + step), "b": torch.full((3,), float(step))}, torch.tensor(step))
    return {"server": server, **{f"clients/{step + k}": (ramp[:50] * step, ()) for k in range(step % 4)}}


def template(name: str) -> Any:
    return state(0)["server"] if name == "server" else (torch.zeros(50), ())


def meta(step: int) -> dict[str, Any]:
    return {"losses": [1 / (1 + k) for k in range(step % 7)], "note": "τ"}


def acknowledged(directory: Path) -> int:
    """The last step whose save returned; -1 if none did."""
    path = directory / "acknowledged"
    return int(["-1", *path.read_text().split()][-1]) if path.exists() else -1


def _save_forever(directory: Path, start: int) -> None:
    log = os.open(directory / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for step in range(start, start + 10_000):
        checkpoint.save(directory, step, state(step), meta(step))
        os.write(log, f"{step}\n".encode())


def _arm(point: str, saves: int) -> None:
    """Die at this point of the save number `saves`."""
    left = saves

    def hit(name: str) -> None:
        nonlocal left
        left -= name == point
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(before: str, call: Callable[..., Any], after: str) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            hit(before)
            result = call(*args)
            hit(after)
            return result

        return wrapped

    class Halving(io.FileIO):
        parts = 0

        def write(self, data: Any) -> int:
            super().write(data[: len(data) // 2])
            self.parts += 1
            if self.parts == 3:  # the first tensor
                hit("half-written")
            super().write(data[len(data) // 2 :])
            return len(data)

        def flush(self) -> None:
            if self.parts:
                self.parts = 0
                hit("written")
            super().flush()

    def opening(path: Path, mode: str) -> io.FileIO:
        hit("unopened")
        file = Halving(path, mode.replace("b", ""))
        hit("opened")
        return file

    vars(files)["open"] = opening
    os.replace = around("synced", os.replace, "replaced")
    checkpoint.sync = files.sync = around("", files.sync, "directory-synced")


def _overwrite(path: Path, data: Sequence[bytes], private: bool = False) -> None:
    """The broken twin of atomic_write: straight into its place."""
    with vars(files)["open"](path, "wb") as file:
        for part in data:
            file.write(part)
        file.flush()


def _crash(directory: Path, start: int, point: str, saves: int, broken: bool, delay: float) -> None:
    if point:
        _arm(point, saves)
    if broken:
        checkpoint.atomic_write = _overwrite
    _save_forever(directory, start)


def _limited(directory: Path, step: int, limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    checkpoint.save(directory, step, state(step), meta(step))


def _unprivileged(directory: Path, step: int) -> None:
    if os.geteuid() == 0:  # root may write anywhere
        os.setgid(65534)
        os.setuid(65534)
    checkpoint.save(directory, step, state(step), meta(step))


ACTIONS: dict[str, Callable[..., None]] = {
    "crash": _crash,
    "limited": _limited,
    "unprivileged": _unprivileged,
}


def _child(action: str, directory: str, answer: int, **arguments: Any) -> None:
    code = "done"
    try:
        ACTIONS[action](Path(directory), **arguments)
    except RunError as error:
        code = error.code
    except BaseException as error:
        code = f"{type(error).__name__}: {error}"
    os.write(answer, code.encode())
    os._exit(0)


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        command = json.loads(line)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            _child(answer=writing, **command)
        os.close(writing)
        if command.get("delay"):
            time.sleep(command["delay"])
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print(json.dumps("killed" if killed else os.read(reading, 4096).decode()), flush=True)
        os.close(reading)
