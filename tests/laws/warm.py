"""Real processes at the price of a fork: a server that has imported everything forks a child for every command.

`Process` looks like `subprocess.Popen` and runs `[python, "-m", MODULE, ...]`, of `sordino`,
`sordino.runs.site_process`, `checkpoint_workers` or `tests.runs.watched_workers`, in a process of its own, with its own
memory and descriptors, that dies of real signals. Only the seconds of importing torch are saved. The client processes
that such a child starts are warm too.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

PLACE = "SORDINO_TEST_WARM"  # where the server listens


class Process:
    """A child of the warm server, in the clothes of `subprocess.Popen`."""

    def __init__(
        self,
        arguments: list[str],
        *,
        stdin: int | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        cwd: Path | None = None,
        limit: int | None = None,  # bytes that a file may grow to
        files: int | None = None,  # that may be open
        env: dict[str, str] | None = None,  # what the environment says otherwise
        **_: object,
    ) -> None:
        assert arguments[1] == "-m"
        self.args = arguments
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.returncode: int | None = None
        given: list[int] = [0, 1, 2]
        ours: list[int] = []
        if stdin == subprocess.PIPE:
            given[0], write_end = os.pipe()
            ours.append(given[0])
            self.stdin = os.fdopen(write_end, "wb")
        if stdout == subprocess.PIPE:
            read_end, given[1] = os.pipe()
            ours.append(given[1])
            self.stdout = os.fdopen(read_end, "rb")
        for place, stream in ((1, stdout), (2, stderr)):
            if stream is not None and not isinstance(stream, int):
                given[place] = stream.fileno()
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(os.environ[PLACE])
        where = {"cwd": str(cwd or Path.cwd()), "limit": limit, "files": files, "env": env or {}}
        command = {"module": arguments[2], "arguments": arguments[3:], **where}
        socket.send_fds(self._line, [json.dumps(command).encode()], given)
        for descriptor in ours:
            os.close(descriptor)
        self._answers = self._line.makefile("rb")
        self.pid = int(self._answers.readline())

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._line.settimeout(timeout)
            self.returncode = int(self._answers.readline())
        return self.returncode

    def communicate(self) -> tuple[bytes | None, None]:
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        rest = self.stdout.read() if self.stdout is not None else None
        if self.stdout is not None:
            self.stdout.close()
        self.wait()
        self._answers.close()
        self._line.close()
        return rest, None


def complaining(file: Path) -> list[int]:
    """Processes that complain into this file, this one left out."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(pid) != os.getpid() and os.readlink(f"/proc/{pid}/fd/2") == str(file):
                found.append(int(pid))
        except OSError:
            continue
    return found


def stand_in() -> Any:
    """What `sordino.transport.message` may use instead of `subprocess`."""
    return types.SimpleNamespace(Popen=Process, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)


def start() -> None:
    """Fork the warm server, once in the life of this process; `Process` finds it through the environment.

    It is what this process is now: call it before the first test runs, so that no test has changed anything.
    """
    if PLACE in os.environ:
        return
    folder = tempfile.mkdtemp()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/socket")
    listener.listen(64)
    os.environ[PLACE] = f"{folder}/socket"
    ours, alive = os.pipe()  # closed when this process ends, however it ends
    if os.fork() == 0:
        try:
            _leave(keep={0, 1, 2, ours, listener.fileno()})
            serve(listener, ours)
        finally:
            os._exit(0)
    listener.close()
    os.close(ours)

    @atexit.register
    def stop() -> None:
        os.close(alive)
        shutil.rmtree(folder, ignore_errors=True)


def _leave(keep: set[int]) -> None:
    """Hold nothing open that the parent has open. The numbers stay taken: objects that are copies may close them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in map(int, os.listdir("/dev/fd")):
        if descriptor not in keep | {nothing}:
            with contextlib.suppress(OSError):  # the listing's own is closed
                os.fstat(descriptor)
                os.dup2(nothing, descriptor, inheritable=False)


# the server -----------------------------------------------------------------------------------------------------------


def serve(
    listener: socket.socket, alive: int, known: Callable[[], dict[str, Callable[[list[str]], None]]] | None = None
) -> None:
    import select

    import torch

    # what the parent reads and writes is captured by pytest
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mode, lines = "w" if number else "r", 1 if name == "stderr" else -1
        setattr(sys, name, open(number, mode, lines, closefd=False, errors="backslashreplace"))  # noqa: SIM115
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    entries: dict[str, Callable[[list[str]], None]] = {}
    begun: dict[int, socket.socket] = {}  # by the ids of children: where their ends are told
    ended, wake = os.pipe()  # a fork of so much takes long: one for each child, and this process waits for all
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([listener, alive, ended], [], [])
        if alive in ready:
            return
        if ended in ready:
            os.read(ended, 1 << 12)
            _tell_ends(begun)
        if listener in ready:
            line, _ = listener.accept()
            entries = entries or (known or _entries)()
            ours = [listener.fileno(), alive, ended, wake, *(other.fileno() for other in begun.values())]
            child = _begin(line, entries, ours)
            begun[child] = line
            with contextlib.suppress(BrokenPipeError):
                line.sendall(f"{child}\n".encode())


def _tell_ends(begun: dict[int, socket.socket]) -> None:
    while begun:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            return
        if child in begun:
            with begun.pop(child) as line, contextlib.suppress(BrokenPipeError):
                line.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _entries() -> dict[str, Callable[[list[str]], None]]:
    """Everything a run needs, imported and used once."""
    import sordino.cli.tables  # noqa: F401
    from sordino import config
    from sordino.cli import main
    from sordino.runs import site_process
    from sordino.runs.run import start
    from sordino.transport import message

    few = ["rounds=1", "partition=iid", "partition.clients=2"]
    with tempfile.TemporaryDirectory() as folder:
        start(config.load(None, few), Path(folder) / "run")
    message.subprocess = stand_in()  # type: ignore[attr-defined]
    from tests.engine import checkpoint_workers
    from tests.runs import watched_workers

    def command_line(arguments: list[str]) -> None:
        sys.argv = ["sordino", *arguments]
        main()

    gc.freeze()  # no fork has to look for garbage in it
    return {
        "sordino": command_line,
        "sordino.runs.site_process": site_process.main,
        "checkpoint_workers": lambda arguments: checkpoint_workers.main(),
        "tests.runs.watched_workers": lambda arguments: watched_workers.PLAYS[arguments[0]](*arguments[1:]),
    }


def _begin(line: socket.socket, entries: dict[str, Callable[[list[str]], None]], ours: list[int]) -> int:
    """Fork a child that runs the command of this line, and holds nothing open of `ours`; its id."""
    import resource

    data, descriptors, _, _ = socket.recv_fds(line, 1 << 16, 3)
    command = json.loads(data)
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup takes it from all tests, and some of them hang up
        line.close()
        for held in ours:
            os.close(held)
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        os.chdir(command["cwd"])
        os.environ.update(command["env"])
        if command["limit"] is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (command["limit"], command["limit"]))
        if command["files"] is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (command["files"], command["files"]))
        code = 1
        try:
            entries[command["module"]](command["arguments"])
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            import traceback

            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)
    for descriptor in descriptors:
        os.close(descriptor)
    return child
