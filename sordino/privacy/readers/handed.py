"""Reader for a user's own training function, which is trusted with all rows of a client and returns tensors.

No guarantee for single examples follows: what the function does with them is not seen. A guarantee for whole clients
needs only what the uplink does with the tensors, as long as nothing of one client stays behind for the next. So the
function runs in a process of its own for each client and round: a fork of this one, in which it was never called and
which ends with the answer. What it keeps in memory is gone; files and other machines are beyond that, and the claims
say so.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
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
from sordino.device import on_gpu
from sordino.errors import ConfigError, OwnCodeError, PrivacyError, SordinoError
from sordino.privacy.readers.private_reader import GuardedShard
from sordino.types import Claim, Examples, Grant, Offer, Params, Reader, Shard, Task, Work

HANDED = "a client's rows are handed to a function that is trusted with them"
_FORK_CANNOT = {
    "what": "torch does not differentiate in a process of its own for each client",
    "why": "it sees an accelerator, and has differentiated in this process before the run: no fork of it can any more",
    "fix": 'start the run in a new process (`sordino run`), or set read = {name = "handed", process = "shared"}',
    "code": "no-fresh-process",
}
# forks, so that none inherits the pipe of another; calls in this process, which share its random generators
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class Handed(Reader):
    """A reader that passes all rows of a client to a function of the user's own. `process`: `fresh` calls it in a
    process of its own for each client and round, `shared` in this one, where it may keep what it has compiled."""

    process: Literal["fresh", "shared"] = "fresh"

    def offer(self) -> Offer | None:
        return None

    def claims(self, work: Work, size: int, multiplier: float | None) -> list[Claim]:
        return Claim.to_everyone("example", "replace", NonPrivate(HANDED), "none", (HANDED,))

    def reads(self, work: Work, size: int) -> int:
        return 0

    def check(self, work: Work, task: Task) -> None:
        if self.process == "fresh" and (on_gpu() or not sys.platform.startswith("linux")):
            raise ConfigError(
                'read.process = "fresh" ' + ("in a run on a GPU" if on_gpu() else "on this system"),
                why="a process for each client is a fork of this one, in which a GPU is lost, and which only Linux "
                "libraries survive",
                fix='set read = {name = "handed", process = "shared"}: the guarantee of a client then rests on the '
                "function keeping nothing between them; or leave engine.device out, and let the function use the GPU",
                code="no-fresh-process",
            )

    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        return HandedShard(self, examples, grant, task)

    @property
    def gives(self) -> Literal["rows"]:
        return "rows"

    @property
    def plain(self) -> bool:
        return True


@dataclass
class HandedShard(GuardedShard[Handed]):
    """One client's rows during one round, for one call of a function."""

    def refused(self, what: str) -> PrivacyError:
        return PrivacyError(
            f"the algorithm asks for {what}, but the reader hands all rows to one function",
            why="nothing is read of them in any other way",
            fix="use another reader, for example read = {name = 'open'}",
            code="rows-only",
        )

    def handed(self, to: Callable[[Examples], Params]) -> Params:
        """The tensors that `to` computes from the rows, which it gets as the network takes them."""
        x, y = self._examples
        if self._reader.process == "shared":
            with _ONE_AT_A_TIME:
                return to(Examples(self._task.inputs(x), y.clone()))
        return _in_fresh_process(lambda: to(Examples(self._task.inputs(x), y.clone())))


def _in_fresh_process(compute: Callable[[], Params]) -> Params:
    """The result of `compute`, called in a forked process that ends after it."""
    from safetensors.torch import load

    with _ONE_AT_A_TIME:
        read, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():  # of other threads: the fork uses one, and nothing that they may hold
            warnings.simplefilter("ignore", DeprecationWarning)
            parent, child = os.getpid(), os.fork()
        if not child:
            _answer(compute, write, parent)
        os.close(write)
    try:
        with os.fdopen(read, "rb") as pipe:
            said = pipe.read()
    except BaseException:  # such as Ctrl-C: nobody waits for the answer
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    head, _, tensors = said.partition(b"\n")
    if not head:
        raise _ended(os.waitstatus_to_exitcode(status))
    told = json.loads(head)
    if "refused" in told:
        raise OwnCodeError(**told["refused"])
    _import(told["imported"])
    found = load(tensors)
    return {name: found[name] for name in told["names"]}


def _ended(status: int) -> OwnCodeError:
    return OwnCodeError(
        f"the process of your own function ended without an answer, with status {status}",
        why="it ran out of memory (status -9), crashed in a library, or called os._exit",
        fix="train on fewer rows or a smaller model; try the function alone",
        code="trainer-ended",
    )


def _answer(compute: Callable[[], Params], write: int, parent: int) -> NoReturn:
    """Main function of the fork: sends the tensors, or the error, and exits without the parent's cleanup."""
    from safetensors.torch import save

    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who waits for the answer decides when it is over
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        torch.set_num_threads(1)  # the threads of a matrix product have not survived the fork
        known, tensors = set(sys.modules), b""
        try:
            with user_code.blamed():
                found = {name: value.detach().clone() for name, value in compute().items()}
            told: dict[str, Any] = {"names": list(found), "imported": [m for m in sys.modules if m not in known]}
            tensors = save(found)
        except SordinoError as error:
            told = {
                "refused": _FORK_CANNOT
                if "Autograd-and-Fork" in error.what
                else {name: getattr(error, name) for name in ("what", "why", "fix", "code")}
            }
        except BaseException as error:  # in code that the user's own has called without standing in the traceback
            told = {"refused": {"what": f"your own code failed: {user_code.described(error)}", "code": "own-code"}}
        with os.fdopen(write, "wb") as pipe:
            pipe.write(json.dumps(told).encode() + b"\n" + tensors)
        sys.stdout.flush()
    finally:
        os._exit(0)


def _import(modules: Iterable[str]) -> None:
    """Imports in this process what the function has imported in its own, so that the next fork has it from the start:
    an optimiser of torch alone takes seconds.
    """
    for name in modules:
        with contextlib.suppress(Exception):  # a name that nothing can be imported by
            importlib.import_module(name)


def _end_with(parent: int) -> None:
    """Ends this process once its parent has died."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
