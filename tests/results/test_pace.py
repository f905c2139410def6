"""How long several runs still take: the sum in closed form, with a clock that is told what time it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from sordino.results.comparison import NextRun, TimeLeft


def test_the_rest_takes_what_the_runs_before_have_taken() -> None:
    """Three methods with two seeds, that take 10, 30 and 40 seconds a run."""
    now, told = 0.0, list[NextRun]()

    @contextmanager
    def follow(run: NextRun) -> Iterator[None]:
        told.append(run)
        yield

    def played(pace: TimeLeft, seed: int, rounds: int, seconds: float) -> None:
        nonlocal now
        with pace(seed) as watch:
            for t in range(rounds):
                step: Any = SimpleNamespace(metrics=SimpleNamespace(phase=""), rounds=4, round=t + 1)
                watch(step)
            now += seconds

    pace = TimeLeft(follow, ["a", "a", "b", "b", "c", "c"], lambda: now)
    played(pace, 0, 0, 0.5)  # it was finished before, so it says nothing of the others
    played(pace, 1, 1, 2.5)  # it goes on, and plays the last of four rounds
    played(pace, 0, 4, 30)
    played(pace, 1, 4, 30)
    played(pace, 0, 4, 40)
    with pytest.raises(KeyboardInterrupt), pace(1):
        raise KeyboardInterrupt
    assert [run.left for run in told] == [None, None, 4 * 10, 30 + 2 * 20, 2 * 20, 40]
    assert str(told[2]) == "run 3 of 6: b, seed 0"
    assert [run.number for run in told] == [1, 2, 3, 4, 5, 6]
