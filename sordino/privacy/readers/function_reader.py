"""Reader for a user's own training function, which is trusted with all rows of a client and returns tensors.

No guarantee for single examples follows: what the function does with them is not seen. A guarantee for whole clients
needs only what the uplink does with the tensors, as long as nothing of one client stays behind for the next. So the
function runs in a process of its own for each client and round: a fork of this one, in which it was never called and
which ends with the answer. What it keeps in memory is gone; files and other machines are beyond that, and the claims
say so. Where this process has used an accelerator, a fork of it cannot compute: then the function is called in a fork
of a clean process, which holds nothing but what it has imported.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch

from sordino import user_code
from sordino.accounting.events import NonPrivate
from sordino.device import CPU
from sordino.errors import ConfigError, OwnCodeError, PrivacyError, SordinoError
from sordino.privacy.readers import GuardedShard
from sordino.types import Claim, Examples, Grant, LocalWork, Offer, Params, Reader, Shard, Task

PASSED = "a client's rows are passed to a function that is trusted with them"
NO_FORK = "no-fresh-process"
FORK_CANNOT = {
    "what": "your function cannot compute gradients in a separate process for each client",
    "why": "this process has used an accelerator, or computed gradients with one present, so forks of it cannot; and a "
    "clean process does not have the functions and networks of a Python session",
    "fix": "put both into a file (`module:function`), start the run in a new process (`sordino run`), or set "
    'read = {name = "function", process = "shared"}',
    "code": NO_FORK,
}
MOST_IMPORTS = 1000  # names, as many as one message holds; the rest comes with them
STATUS = 16  # most bytes in which a clean process reports how a fork ended
Elsewhere = Callable[[Examples], tuple[str, bytes]]  # makes the module and the request of a call from rows
_CANNOT_FORK = set[str]()  # not empty once a fork of this process has reported that
# forks, so that none inherits the pipe of another; calls in this process, which share its random generators
_ONE_AT_A_TIME = threading.Lock()
_CLEAN: dict[str, _CleanProcess] = {}  # clean processes, by module


@dataclass(frozen=True)
class FunctionReader(Reader):
    """All rows of a client, passed to the user's own training function. `process`: `fresh` calls it in a new process
    for each client and round; `shared` in this one, where compiled code may be reused."""

    process: Literal["fresh", "shared"] = "fresh"

    def offer(self) -> Offer | None:
        return None

    def claims(self, work: LocalWork, size: int, multiplier: float | None) -> list[Claim]:
        return Claim.to_everyone("example", "replace", NonPrivate(PASSED), "none", (PASSED,))

    def reads(self, work: LocalWork, size: int) -> int:
        return 0

    def check(self, work: LocalWork, task: Task) -> None:
        if self.process == "fresh" and not sys.platform.startswith("linux"):
            raise ConfigError(
                'read.process = "fresh" on this system',
                why="a process for each client is a fork, which only Linux libraries survive",
                fix='set read = {name = "function", process = "shared"}: the guarantee of a client then rests on the '
                "function keeping nothing between them",
                code=NO_FORK,
            )

    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        return FunctionShard(self, examples, grant, task)

    gives = ("rows",)

    plain = True


@dataclass
class FunctionShard(GuardedShard[FunctionReader]):
    """One client's rows during one round, to be passed to one call of a function."""

    def refused(self, what: str) -> PrivacyError:
        return PrivacyError(
            f"the algorithm asks for {what}, but the reader passes all rows to one function",
            why="nothing is read of them in any other way",
            fix="use another reader, for example read = {name = 'open'}",
            code="rows-only",
        )

    def passed_to(self, to: Callable[[Examples], Params], elsewhere: Elsewhere | None = None) -> Params:
        """Tensors that the function `to` computes from the rows, in the form that the network takes. `elsewhere` does
        the same in a clean process, where this process cannot be forked.
        """
        x, y = self._examples
        rows = Examples(self._task.inputs(x), y.clone())
        if self._reader.process == "shared":
            with _ONE_AT_A_TIME:
                return to(rows)
        if rows.x.device.type == CPU and not _CANNOT_FORK:
            try:
                return _in_fresh_process(lambda: to(rows))
            except OwnCodeError as error:
                if error.code != NO_FORK:
                    raise
                _CANNOT_FORK.add(NO_FORK)
        if elsewhere is None:
            raise OwnCodeError(**FORK_CANNOT)
        return {name: value.to(rows.x.device) for name, value in _in_clean_process(*elsewhere(rows)).items()}


def _in_fresh_process(compute: Callable[[], Params]) -> Params:
    """The result of `compute`, called in a fork of this process that ends after it."""
    with _ONE_AT_A_TIME:
        read, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():  # of other threads: the fork uses one, and nothing that they may hold
            warnings.simplefilter("ignore", DeprecationWarning)
            parent, child = os.getpid(), os.fork()
        if not child:
            answer(compute, write, parent)
        os.close(write)
    try:
        with os.fdopen(read, "rb") as pipe:
            output = pipe.read()
    except BaseException:  # such as Ctrl-C: no one waits for the answer
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    reply, found = _understood(output, os.waitstatus_to_exitcode(status))
    _import(reply["imported"])
    return found


def _understood(output: bytes, status: int) -> tuple[dict[str, Any], Params]:
    """Decodes a process's answer into its tensors; raises the error that occurred in the process."""
    from safetensors.torch import load

    head, _, tensors = output.partition(b"\n")
    if not head:
        raise _ended(status)
    reply = json.loads(head)
    if "refused" in reply:
        raise OwnCodeError(**reply["refused"])
    found = load(tensors)
    return reply, {name: found[name] for name in reply["names"]}


class _CleanProcess:
    """A clean process, which holds nothing of this one, and forks for each call before it receives the call's data.

    Each call sends it one end of a pair of sockets, through which its fork reads the request and answers.
    """

    def __init__(self, module: str) -> None:
        """`module`: the program that the clean process runs, and that answers calls."""
        here, its = socket.socketpair(type=socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", module, str(its.fileno())]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(command, env=environment, pass_fds=[its.fileno()], process_group=0)
        its.close()
        self._line, self._owner, self._imports = here, os.getpid(), list[str]()

    @property
    def usable(self) -> bool:
        return self._owner == os.getpid() and self._process.poll() is None

    def __call__(self, request: bytes) -> Params:
        here, its = socket.socketpair()
        with here:
            with its:
                socket.send_fds(self._line, [json.dumps(self._imports).encode()], [its.fileno()])
            here.sendall(request)
            here.shutdown(socket.SHUT_WR)
            with here.makefile("rb") as stream:
                output = stream.read()
        status = self._line.recv(STATUS)
        reply, found = _understood(output, int(status or b"1"))
        self._imports = reply["imported"][:MOST_IMPORTS]
        return found

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._line.close()


def _in_clean_process(module: str, request: bytes) -> Params:
    with _ONE_AT_A_TIME:
        if not (known := _CLEAN.get(module)) or not known.usable:
            known = _CLEAN[module] = _CleanProcess(module)
        try:
            return known(request)
        except OwnCodeError:
            raise
        except BaseException:  # what it would answer to the next call is unknown
            known.end()
            raise


def forking(line: socket.socket, compute: Callable[[bytes], Params]) -> None:
    """Main loop of a clean process: it forks for each call, and only the fork reads the call's data."""
    empty_input()
    while True:
        text, ends, _, _ = socket.recv_fds(line, 1 << 20, 1)
        if not ends:  # the parent has ended
            return
        _import(json.loads(text))
        (end,), parent = ends, os.getpid()
        if not (child := os.fork()):
            line.close()
            with open(end, "rb", closefd=False) as stream:
                answer(lambda: compute(stream.read()), end, parent)
        os.close(end)
        _, status = os.waitpid(child, 0)
        line.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _ended(status: int) -> OwnCodeError:
    return OwnCodeError(
        f"the process of your own function ended without an answer, with status {status}",
        why="it ran out of memory (status -9), crashed in a library, or called os._exit",
        fix="train on fewer rows or a smaller model; try the function alone",
        code="trainer-ended",
    )


def answer(compute: Callable[[], Params], write: int, parent: int) -> NoReturn:
    """Main function of a fork: sends the tensors, or the error, and exits without the parent's cleanup."""
    from safetensors.torch import save

    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who waits for the answer decides when it is over
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        empty_input()  # where one client has stopped to read, the next would go on
        torch.set_num_threads(1)  # the threads of a matrix product have not survived the fork
        known, tensors = set(sys.modules), b""
        try:
            with user_code.blamed():
                found = {name: value.detach().clone() for name, value in compute().items()}
            reply: dict[str, Any] = {"names": list(found), "imported": [m for m in sys.modules if m not in known]}
            tensors = save(found)
        except SordinoError as error:
            reply = {
                "refused": FORK_CANNOT
                if "Autograd-and-Fork" in error.what
                else {name: getattr(error, name) for name in ("what", "why", "fix", "code")}
            }
        except BaseException as error:  # in code that the user's own has called without standing in the traceback
            reply = {"refused": {"what": f"your own code failed: {user_code.described(error)}", "code": "own-code"}}
        with os.fdopen(write, "wb") as pipe:
            pipe.write(json.dumps(reply).encode() + b"\n" + tensors)
        sys.stdout.flush()
    finally:
        os._exit(0)


def empty_input() -> None:
    """Leaves this process nothing to read. /dev/null is a file that holds something in some containers, and missing in
    others.
    """
    nothing, end = os.pipe()
    os.close(end)
    os.dup2(nothing, 0)
    os.close(nothing)


def _import(modules: Iterable[str]) -> None:
    """Imports what the function had imported in an earlier fork, so that later forks have it from the start: an
    optimiser of torch alone takes seconds.
    """
    for name in modules:
        with contextlib.suppress(Exception):  # a name that nothing can be imported by
            importlib.import_module(name)


def _end_with(parent: int) -> None:
    """Ends this process once its parent has died."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
