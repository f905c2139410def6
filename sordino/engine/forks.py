"""Forked processes that help to train clients. They are forked from the process that they help (the parent), so they
have its data, its network and its code without a copy.

Threads wait for each other wherever Python itself has work to do; forks do not. A fork receives only what changes from
round to round: the broadcast, and the terms and states of the clients that it trains. It answers in the form in which
the parent would keep its own results (say, factors of an update), so results do not depend, in any byte, on which
process computes them. If a fork cannot compute a unit, or dies, the parent computes it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch

from sordino import tree
from sordino.engine.client_states import looks
from sordino.fast import give_back_freed_memory
from sordino.fast.factored import dense
from sordino.fast.parallel import ROOM, Ends, ProcessMessage, Values, apart, whole
from sordino.tree import Tree

if TYPE_CHECKING:
    from torch import Tensor

ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
WORDS = 1 << 10  # bytes that are enough to name a client or a tensor


class UnitAnswers(NamedTuple):
    """Uploads and new states of the clients of one unit (a group computed in one call)."""

    clients: Sequence[int]
    uploads: Sequence[Tree]  # of each client, or the sum of several as the only one
    states: Sequence[Tree]  # of each client


def possible() -> bool:
    """True on Linux with one torch thread. On other systems the state of a library may not survive a fork; neither do
    threads that share a matrix product.
    """
    return sys.platform.startswith("linux") and hasattr(os, "fork") and torch.get_num_threads() == 1


# the parent's side ----------------------------------------------------------------------------------------------------


class Unit(NamedTuple):
    """Group of clients that are computed in one call."""

    clients: Sequence[int]
    terms: Sequence[Values]
    states: Sequence[Tree]
    cost: float  # estimated work, relative to other units
    compute: Callable[[], UnitAnswers]


class Templates(NamedTuple):
    """Structure of an upload and of a client's state: only leaves are sent between processes, and this rebuilds the
    trees.
    """

    upload: Tree
    state: Tree


class Fork:
    """One forked process, as its parent sees it."""

    def __init__(self, serve: Callable[[Ends], None]) -> None:
        first, second = mmap.mmap(-1, ROOM), mmap.mmap(-1, ROOM)  # of which nothing is there that is not used
        asks, answers = os.pipe(), os.pipe()
        self.ends = Ends(answers[0], asks[1], first, second)
        its = Ends(asks[0], answers[1], second, first)
        with warnings.catch_warnings():  # of other threads: a fork uses nothing that they may hold
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            _live(serve, its)
        its.close()
        self.given: dict[int, Unit] = {}
        self.cost = self.busy = 0.0  # work given in this round, and seconds that it took

    def give(self, number: int, unit: Unit) -> bool:
        """Sends a unit to the fork; False, with nothing sent, where the shared memory has no room for its states."""
        leaves = [dense(leaf) for state in unit.states for leaf in tree.leaves(state)]
        if not self.ends.room(sum(leaf.nbytes + WORDS for leaf in leaves) + WORDS * len(unit.clients)):
            return False  # a process that waits at a full pipe hears nothing
        request = {"do": "unit", "number": number, "clients": list(unit.clients), "terms": list(unit.terms)}
        self.given[number] = unit
        self.cost += unit.cost
        self.say(request, leaves)
        return True

    def say(self, values: Values, tensors: Sequence[Tensor]) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended; the next `heard` notices that
            self.ends.say(values, tensors)

    def heard(self) -> ProcessMessage | None:
        """Next message of the fork; None where it has died."""
        with contextlib.suppress(EOFError):
            return self.ends.hear()
        return None

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.ends.close()


def _live(serve: Callable[[Ends], None], ends: Ends) -> NoReturn:
    """Main function of a fork: closes every file but its pipes and the standard streams, ignores signals that end a
    run, serves, and exits without the parent's cleanup.
    """
    try:
        for number in ENDING:  # the parent decides when the fork ends
            signal.signal(number, signal.SIG_IGN)
        for number in map(int, os.listdir("/proc/self/fd")):
            if number not in (0, 1, 2, *ends.open):
                with contextlib.suppress(OSError):  # that of the listing itself is closed
                    os.close(number)
        with contextlib.suppress(EOFError, BrokenPipeError):
            serve(ends)
    finally:
        os._exit(0)


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Postpones signals that end a run until the block ends: an exception raised in a library's fork hook would be
    lost, and a new fork would obey the signals, too.
    """
    came, before = list[int](), dict[int, Any]()
    try:
        if threading.current_thread() is threading.main_thread():  # no other thread handles signals
            before = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in ENDING}
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
        for number in came:
            signal.raise_signal(number)


@dataclass
class ParentUnits:
    """Units of a round that the parent process computes itself, with the time that they took."""

    cost: float = 0.0
    busy: float = 0.0  # seconds

    def does(self, unit: Unit) -> UnitAnswers:
        asked = time.perf_counter()
        answers = unit.compute()
        self.cost, self.busy = self.cost + unit.cost, self.busy + time.perf_counter() - asked
        return answers


class SpeedSoFar(NamedTuple):
    """Speed measured in the round before: times per unit of cost, and the total cost."""

    unit: float = 0.0  # seconds to compute it
    answer: float = 0.0  # seconds of the parent to process its answer
    all: float = 0.0  # the cost of all units together


class Forks:
    """Forked processes that help one site. They start when there is enough work, and end with this object."""

    def __init__(self, many: int) -> None:
        """`many`: number of processes that train at once, this one among them."""
        self._many, self._begun, self._own = many, 0.0, ParentUnits()
        self.pace = SpeedSoFar()
        self._forks: list[Fork] = []
        self._end = weakref.finalize(self, _end, self._forks)

    def begin(self, serve: Callable[[Ends], None], pace: float = 0.0) -> bool:
        """Starts the processes at the first call; True where at least one runs. `pace`: measured seconds per unit of
        estimated work (`Unit.cost`), 0 where unknown.
        """
        if self._many > 1 and possible():
            give_back_freed_memory()  # threads have trained so far, and pause from here on
            # where the machine gives no more, fewer help
            with _held_back(), contextlib.suppress(OSError):
                for _ in range(self._many - 1):
                    self._forks.append(Fork(serve))
            self._many, self.pace = 1, SpeedSoFar(pace)  # who died or was sent away is not replaced
        return bool(self._forks)

    def close(self) -> None:
        self._end()

    def map(
        self,
        t: int,
        down: Tree,
        units: Iterable[Unit],
        templates: Templates,
        keep: bool = False,
        cost: float | None = None,
    ) -> Iterator[tuple[int, UnitAnswers]]:
        """Answers of each unit (clients computed in one call) with its number, in order of completion. `keep`: copies
        answers, so that they can be read after the round. `cost`: total cost of all units; None: as in the round
        before."""
        for fork in self._forks:
            fork.cost = fork.busy = 0.0
            fork.ends.begin(t)
            fork.say({"do": "round", "t": t}, [dense(leaf) for leaf in tree.leaves(down)])
        self._begun, self._own = time.perf_counter(), ParentUnits()
        handed_on = 0.0
        try:
            for found in self._done(units, templates, keep, self.pace.all if cost is None else cost):
                asked = time.perf_counter()
                yield found
                handed_on += time.perf_counter() - asked
        finally:
            if self._owed:  # the rest is not wanted
                self.close()
        done = self._own.cost + sum(fork.cost for fork in self._forks)
        busy = self._own.busy + sum(fork.busy for fork in self._forks)
        self.pace = SpeedSoFar(busy / done, handed_on / done, done) if done else self.pace

    def _done(
        self, units: Iterable[Unit], templates: Templates, keep: bool, cost: float
    ) -> Iterator[tuple[int, UnitAnswers]]:
        left = to_give = cost  # answers of so much are still to be handed on; so much is still to be given
        known = cost > 0
        for number, unit in enumerate(units):
            # in a first round costs are unknown: assume one more group of this cost for each process
            to_give = max(0.0, to_give - unit.cost) if known else unit.cost * (len(self._forks) + 1)
            first = min(self._forks, key=self._free_at, default=None)
            theirs = first is not None and self._sooner(first, unit.cost, max(0.0, left), to_give)
            if first is None or not (theirs and _fits(unit, templates) and first.give(number, unit)):
                left -= unit.cost
                yield number, self._own.does(unit)
            for fork in self._ready(wait=False):
                left -= next(iter(fork.given.values())).cost
                yield from self._answered(fork, templates, keep)
        while self._owed:
            for fork in self._ready(wait=True):
                yield from self._answered(fork, templates, keep)

    def _sooner(self, first: Fork, cost: float, left: float, to_give: float) -> bool:
        """True where the round is estimated to end sooner if the fork `first` takes a unit of this cost than if the
        parent does. Assumes that the work left is divided evenly where possible; a fork that idles while the parent
        computes loses that time.
        """
        unit, own, theirs = cost * self.pace.unit, time.perf_counter() + left * self.pace.answer, self._free_at(first)
        rest = to_give * self.pace.unit + sum(self._free_at(fork) for fork in self._forks if fork is not first)
        many = len(self._forks) + 1
        given = max(theirs + unit, (own + theirs + unit + rest) / many)
        kept = max(own + unit, (own + unit + max(theirs, own + unit) + rest) / many)
        # on a tie the fork gets the group: the small ones, which come last, are left to the parent, which knows when
        # they are done
        return given <= kept + unit / 100

    def _free_at(self, fork: Fork) -> float:
        """Estimated time at which the fork runs out of work, if all processes are equally fast."""
        now = time.perf_counter()
        return max(now, self._begun + fork.cost * self.pace.unit) if fork.given else now

    @property
    def _owed(self) -> bool:
        return any(fork.given for fork in self._forks)

    def _ready(self, wait: bool) -> list[Fork]:
        """Forks that have sent an answer, among those that still owe one; `wait`: until there is at least one."""
        owing = {fork.ends.read: fork for fork in self._forks if fork.given}
        looking = select.poll()
        for read in owing:
            looking.register(read, select.POLLIN)
        return [owing[read] for read, _ in looking.poll(None if wait else 0)] if owing else []

    def _answered(self, fork: Fork, templates: Templates, keep: bool) -> Iterator[tuple[int, UnitAnswers]]:
        """Answers of the next unit from this fork; where the fork has died, of all units that it was given, computed
        here. `keep`: copies answers, so that they can be read after the round.
        """
        # exact because `compute` draws from the keys of its clients alone, whichever process computes them
        if (frame := fork.heard()) is None:
            self._forks.remove(fork)
            fork.end()
            for number, unit in fork.given.items():
                yield number, unit.compute()
            return
        number = frame.values["number"]
        unit = fork.given.pop(number)
        fork.busy += frame.values["seconds"]
        if "made" not in frame.values:  # an error of a client's own comes up again
            yield number, unit.compute()
            return
        of = iter([one.clone() for one in frame.tensors] if keep else frame.tensors)
        uploads, states = frame.values["made"]
        yield (
            number,
            UnitAnswers(
                unit.clients,
                [tree.like(templates.upload, whole(one, of)) for one in uploads],
                [tree.like(templates.state, whole(one, of)) for one in states],
            ),
        )


def _fits(unit: Unit, templates: Templates) -> bool:
    like = looks(templates.state)
    return all(looks(state) == like for state in unit.states)


def _end(forks: list[Fork]) -> None:
    for fork in forks:
        fork.end()
    forks.clear()


# the fork's side ------------------------------------------------------------------------------------------------------


class ForksWork:
    """A forked process's end of its connection to the parent: iterates over its tasks, and sends their results."""

    def __init__(self, ends: Ends, state: Tree) -> None:
        """`state`: template of a client's state."""
        self._ends, self._state, self._began = ends, state, 0.0

    def __iter__(self) -> Iterator[tuple[ProcessMessage, list[Tree]]]:
        """Yields messages that begin a round or give a unit, with the states of the unit's clients."""
        size = len(tree.leaves(self._state))
        while True:
            frame = self._ends.hear()
            self._began = time.perf_counter()
            if frame.values["do"] == "round":
                self._ends.begin(frame.values["t"])
            many = range(len(frame.values.get("clients", ())))
            yield frame, [tree.like(self._state, frame.tensors[i * size : (i + 1) * size]) for i in many]

    def tell(self, number: int, answers: UnitAnswers, templates: Templates) -> None:
        """Sends the uploads and states of a unit (clients computed in one call) to the parent; where their structure is
        not the usual one, asks the parent to compute the unit itself.
        """
        names, like = [name for name, _ in tree.named(templates.upload)], looks(templates.state)
        _, uploads, states = answers
        if any([name for name, _ in tree.named(one)] != names for one in uploads) or any(
            looks(one) != like for one in states
        ):
            self.give_up(number)
            return
        # exact because tensors cross as their bytes, and lazy ones as their coefficients: nothing is rounded on the way
        tensors: list[Tensor] = []
        made = [[apart(tree.leaves(one), tensors) for one in trees] for trees in (uploads, states)]
        self._ends.say({"number": number, "seconds": time.perf_counter() - self._began, "made": made}, tensors)

    def give_up(self, number: int) -> None:
        """Asks the parent process to compute the unit itself: an error of a client's code is then raised there."""
        self._ends.say({"number": number, "seconds": 0.0})
