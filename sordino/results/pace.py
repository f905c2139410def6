"""How far several runs are that follow each other, and how long the rest of them takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from sordino.runs.play import Progress

Watch = Callable[[Progress], None]


class NextRun(NamedTuple):
    method: str
    seed: int
    number: int  # from 1
    many: int
    left: float | None  # seconds, of this run and all after it; None: no run has been timed

    def __str__(self) -> str:
        return f"run {self.number} of {self.many}: {self.method}, seed {self.seed}"


Follow = Callable[[NextRun], AbstractContextManager[Watch | None]]  # what is run now -> who watches its rounds


class Pace:
    """Times the runs of each method. One that goes on from its middle counts as what it played, and one that was
    finished before as nothing.
    """

    def __init__(self, follow: Follow, methods: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._follow, self._methods, self._clock = follow, methods, clock  # methods: one name for each run
        self._number = 0
        self._seconds: dict[str, float] = {}  # that were measured, of each method
        self._played: dict[str, float] = {}  # in how many runs

    @property
    def _left(self) -> float | None:
        """A method that has not been timed is taken to be as quick as the others are in the mean."""
        each = {name: seconds / self._played[name] for name, seconds in self._seconds.items()}
        if not each:
            return None
        usual = statistics.fmean(each.values())
        return sum(each.get(name, usual) for name in self._methods[self._number :])

    @contextmanager
    def __call__(self, seed: int) -> Iterator[Watch]:
        method, played, begun = self._methods[self._number], 0.0, self._clock()
        asked = NextRun(method, seed, self._number + 1, len(self._methods), self._left)
        with self._follow(asked) as watch:

            def counted(step: Progress) -> None:
                nonlocal played
                if not step.metrics.phase:
                    played += 1 / step.rounds
                if watch is not None:
                    watch(step)

            yield counted
        self._number += 1
        if played:
            self._seconds[method] = self._seconds.get(method, 0.0) + self._clock() - begun
            self._played[method] = self._played.get(method, 0.0) + played
