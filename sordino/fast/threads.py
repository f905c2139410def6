"""Threads that compute several clients, or many test examples, at once in this process: torch releases the interpreter
lock while it computes.

Each thread has an instance of the task (network and loss) of its own, because a running network changes its state.
Results do not depend on the thread that computes them and come in the order of the requests, so the number of threads
changes no byte of a result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch

Task = TypeVar("Task")
T = TypeVar("T")
R = TypeVar("R")

HEAVY = 2_000_000  # weights times rows of one pass: from here on threads gain more than they lose


def heavy(weights: int, rows: int) -> bool:
    """True if a pass over `rows` rows through a network of `weights` numbers has enough arithmetic to gain from
    threads: in small passes Python does most of the work, and threads wait for the GIL.
    """
    return weights * rows >= HEAVY


class Threads(Generic[Task]):
    """Threads of a site: one, or several that start as soon as there are two units of work."""

    def __init__(self, task: Task, many: int = 1, another: Callable[[], Task] | None = None) -> None:
        """`another`: builds another instance of the same task."""
        self._tasks = [task]
        self.many = many if another is not None else 1
        self._another = another
        self._free: SimpleQueue[Task] = SimpleQueue()
        self._pool: ThreadPoolExecutor | None = None

    def map(
        self, work: Callable[[Task, T], R], units: Iterable[T], worth: Callable[[T], bool] = lambda unit: True
    ) -> Iterator[R]:
        """Results for all units, in their order. Units are taken from the iterator in the caller's thread, a few ahead
        of time. `worth`: whether a unit has enough work for a thread.
        """
        units = iter(units)
        first = list(islice(units, 2 if self.many > 1 else 0))
        if len(first) < 2 or not all(map(worth, first)):
            for unit in chain(first, units):
                yield work(self._tasks[0], unit)
            return
        if self._pool is None:
            self._begin()
        assert self._pool is not None
        going: deque[Future[R]] = deque()
        try:
            for unit in chain(first, units):
                going.append(self._pool.submit(self._with_a_task, work, unit))
                if len(going) > self.many:
                    yield going.popleft().result()
            while going:
                yield going.popleft().result()
        finally:  # after the last request, or an error, no thread is at work
            for one in going:
                one.cancel()
            for one in going:
                if not one.cancelled():
                    one.exception()

    def _begin(self) -> None:
        assert self._another is not None
        for _ in range(self.many - 1):
            self._tasks.append(self._another())
        for task in self._tasks:
            self._free.put(task)
        threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self.many, "client", lambda: torch.set_num_threads(threads))

    def _with_a_task(self, work: Callable[[Task, T], R], unit: T) -> R:
        task = self._free.get()
        try:
            return work(task, unit)
        finally:
            self._free.put(task)
