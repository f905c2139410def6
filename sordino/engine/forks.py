"""Processes that help to train clients. They are forked from the process that asks, so they have its data, its network
and its code without a copy.

Threads wait for each other wherever Python itself has work to do; forks do not. A fork is told only what changes from
round to round: the broadcast, and the terms and states of the clients that it shall train. It answers in the form in
which the asker itself would have computed it, coefficients where those are kept, so that who computes changes no byte.
What it cannot do, or does not live to do, the asker does itself.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import sys
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import torch

from sordino import tree
from sordino.engine.common_memory import ROOM, Ends, Spoken, Told, apart, whole
from sordino.lazy import dense
from sordino.tree import Tree

if TYPE_CHECKING:
    from torch import Tensor

AHEAD = 16  # units that wait for a worker at most
WORDS = 1 << 10  # bytes that are enough to name a client or a tensor

Answers = list[tuple[int, Tree, Tree]]  # of each client: its upload, and its new state


def possible() -> bool:
    """Elsewhere, what a library has begun may not outlive a fork; nor do threads that share a product of matrices."""
    return sys.platform.startswith("linux") and torch.get_num_threads() == 1


def looks(state: Tree) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [(name, leaf.shape, leaf.dtype) for name, leaf in tree.named(state)]


# the asker's side -----------------------------------------------------------------------------------------------------


class Unit(NamedTuple):
    """Clients that are computed in one go."""

    clients: Sequence[int]
    terms: Sequence[Told]
    states: Sequence[Tree]
    cost: float  # about how much work it is, beside others
    compute: Callable[[], Answers]


class Templates(NamedTuple):
    """What the trees look like that are sent as bare leaves."""

    upload: Tree
    state: Tree


class Worker:
    """Somebody who trains clients. All are taken to be equally fast."""

    def __init__(self) -> None:
        self.cost = self.busy = 0.0  # what it was given in this round, and the seconds that it took


class Fork(Worker):
    """One forked process."""

    def __init__(self, serve: Callable[[Ends], None]) -> None:
        super().__init__()
        asks, answers = os.pipe(), os.pipe()
        first, second = mmap.mmap(-1, ROOM), mmap.mmap(-1, ROOM)  # of which nothing is there that is not used
        self.ends = Ends(answers[0], asks[1], first, second)
        its = Ends(asks[0], answers[1], second, first)
        with warnings.catch_warnings():  # of other threads: a fork uses nothing that they may hold
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            _live(serve, its)
        its.close()
        self.given: dict[int, Unit] = {}

    def give(self, number: int, unit: Unit) -> bool:
        """False where there is no room for the states."""
        leaves = [dense(leaf) for state in unit.states for leaf in tree.leaves(state)]
        if not self.ends.room(sum(leaf.nbytes + WORDS for leaf in leaves) + WORDS * len(unit.clients)):
            return False  # whoever waits at a full pipe hears nothing
        told = {"do": "unit", "number": number, "clients": list(unit.clients), "terms": list(unit.terms)}
        self.given[number] = unit
        self.cost += unit.cost
        self.say(told, leaves)
        return True

    def say(self, told: Told, tensors: Sequence[Tensor]) -> None:
        with contextlib.suppress(BrokenPipeError):  # it is gone, as whoever listens will hear
            self.ends.say(told, tensors)

    def heard(self) -> Spoken | None:
        """What it says next; None where it is gone."""
        with contextlib.suppress(EOFError):
            return self.ends.hear()
        return None

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.ends.close()


def _live(serve: Callable[[Ends], None], ends: Ends) -> NoReturn:
    """A fork's life. It has nothing open but its pipes, and leaves without the asker's farewells."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks decides when it is over
        kept = sorted((2, *ends.open))
        for low, high in zip(kept, [*kept[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
            os.closerange(low + 1, high)
        with contextlib.suppress(EOFError, BrokenPipeError):
            serve(ends)
    finally:
        os._exit(0)


class Forks:
    """Some processes that help one site. They begin when there is enough to do, and end with it."""

    def __init__(self, many: int) -> None:
        """`many`: how many train at once, the asker among them."""
        self._many, self._me, self._spare = many, Worker(), 0.0
        self._forks: list[Fork] = []
        self._end = weakref.finalize(self, _end, self._forks)

    def begin(self, serve: Callable[[Ends], None]) -> bool:
        """True where there is help."""
        if self._many > 1 and possible():
            self._forks += [Fork(serve) for _ in range(self._many - 1)]
            self._many = 1  # who died or was sent away is not replaced
        return bool(self._forks)

    def close(self) -> None:
        self._end()

    def map(
        self, t: int, down: Tree, units: Iterable[Unit], templates: Templates, keep: bool = False
    ) -> Iterator[Answers]:
        """What becomes of each unit, in the order in which it is done. `keep`: may answers be looked at after the
        round?
        """
        begun, waited = time.perf_counter(), 0.0
        self._me.cost = self._spare  # in the measure of what is given
        self._me.busy = 0.0
        for fork in self._forks:
            fork.cost = fork.busy = 0.0
            fork.ends.begin(t)
            fork.say({"do": "round", "t": t}, [dense(leaf) for leaf in tree.leaves(down)])
        coming, mine, done = enumerate(units), deque[Unit](), False
        try:
            while not done or mine or self._owed:
                while not done and (free := self._free(len(mine))):
                    number, unit = next(coming, (0, None))
                    if unit is None:
                        done = True
                    elif not self._given(min(free, key=lambda one: one.cost), number, unit, templates):
                        self._me.cost += unit.cost
                        mine.append(unit)
                asked = time.perf_counter()
                ready = self._ready(wait=not mine)
                waited += time.perf_counter() - asked
                for fork in ready:
                    yield self._answer(fork, templates, keep)
                if mine:
                    asked = time.perf_counter()
                    answers = mine.popleft().compute()
                    self._me.busy += time.perf_counter() - asked
                    yield answers
        finally:
            if self._owed:  # nobody wants the rest
                self.close()
        all_of_us = self._me, *self._forks
        given = sum(one.cost for one in all_of_us) - self._spare
        rest = time.perf_counter() - begun - waited - self._me.busy  # whatever else the asker has to do
        self._spare = rest / max(1e-9, sum(one.busy for one in all_of_us)) * given

    @property
    def _owed(self) -> bool:
        return any(fork.given for fork in self._forks)

    def _ready(self, wait: bool) -> list[Fork]:
        """Who has answered something, of those that owe something."""
        owing = {fork.ends.read: fork for fork in self._forks if fork.given}
        looking = select.poll()
        for read in owing:
            looking.register(read, select.POLLIN)
        return [owing[read] for read, _ in looking.poll(None if wait else 0)] if owing else []

    def _free(self, mine: int) -> list[Worker]:
        """Who has room for another unit."""
        free: list[Worker] = [fork for fork in self._forks if len(fork.given) < AHEAD]
        return [*free, self._me] if mine < AHEAD else free

    def _given(self, to: Worker, number: int, unit: Unit, templates: Templates) -> bool:
        return isinstance(to, Fork) and _fits(unit, templates) and to.give(number, unit)

    def _answer(self, fork: Fork, templates: Templates, keep: bool) -> Answers:
        if (frame := fork.heard()) is None:  # it died: what it owes is done here
            self._forks.remove(fork)
            fork.end()
            return [answer for unit in fork.given.values() for answer in unit.compute()]
        unit = fork.given.pop(frame.told["number"])
        fork.busy += frame.told["seconds"]
        if "made" not in frame.told:  # an error of a client's own comes up again
            return unit.compute()
        of = iter([one.clone() for one in frame.tensors] if keep else frame.tensors)
        return [
            (k, tree.like(templates.upload, whole(upload, of)), tree.like(templates.state, whole(state, of)))
            for k, (upload, state) in zip(unit.clients, frame.told["made"], strict=True)
        ]


def _fits(unit: Unit, templates: Templates) -> bool:
    like = looks(templates.state)
    return all(looks(state) == like for state in unit.states)


def _end(forks: list[Fork]) -> None:
    for fork in forks:
        fork.end()
    forks.clear()


# the fork's side ------------------------------------------------------------------------------------------------------


class ForksWork:
    """What a fork is told, one thing after the other, and what it answers."""

    def __init__(self, ends: Ends, state: Tree) -> None:
        """`state`: what that of a client looks like."""
        self._ends, self._state, self._began = ends, state, 0.0

    def __iter__(self) -> Iterator[tuple[Spoken, list[Tree]]]:
        """A round, or a unit with the states of its clients."""
        size = len(tree.leaves(self._state))
        while True:
            frame = self._ends.hear()
            self._began = time.perf_counter()
            if frame.told["do"] == "round":
                self._ends.begin(frame.told["t"])
            many = range(len(frame.told.get("clients", ())))
            yield frame, [tree.like(self._state, frame.tensors[i * size : (i + 1) * size]) for i in many]

    def tell(self, number: int, answers: Answers, templates: Templates) -> None:
        """The answers of a unit."""
        names, like = [name for name, _ in tree.named(templates.upload)], looks(templates.state)
        if any([name for name, _ in tree.named(up)] != names or looks(state) != like for _, up, state in answers):
            self.give_up(number)
            return
        tensors: list[Tensor] = []
        made = [[apart(tree.leaves(up), tensors), apart(tree.leaves(state), tensors)] for _, up, state in answers]
        self._ends.say({"number": number, "seconds": time.perf_counter() - self._began, "made": made}, tensors)

    def give_up(self, number: int) -> None:
        """The asker does it, and tells what is wrong."""
        self._ends.say({"number": number, "seconds": 0.0})
