"""Rows that are passed to a function, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.function_reader import FunctionReader, FunctionShard
from sordino.runs.simulation import simulated
from sordino.types import Examples, Grant, Params
from tests.laws.cases import BY_NAME

if not sys.platform.startswith("linux"):
    pytest.skip("processes are forked, on Linux alone", allow_module_level=True)


def shard() -> FunctionShard:
    task = simulated(BY_NAME["fedavg"].experiment()).setup.task
    rows = Examples(torch.zeros(5, 8, 8, 1, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64))
    opened = FunctionReader().open(rows, Grant(0, 5, 5, Counter(0)), task)
    assert isinstance(opened, FunctionShard)
    return opened


def pid(rows: Examples) -> Params:
    return {"z": torch.tensor(os.getpid()), "a": rows.y + 1}


def test_the_answer_comes_from_another_process_in_its_own_order() -> None:
    one, other = shard().passed_to(pid), shard().passed_to(pid)
    assert list(one) == ["z", "a"]
    assert len({os.getpid(), int(one["z"]), int(other["z"])}) == 3
    assert torch.equal(one["a"], torch.ones(5, dtype=torch.int64))


def test_what_the_function_imports_is_there_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module alone, not what the function did with it."""
    (tmp_path / "imported_late.py").write_text("seen = []\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def train(rows: Examples) -> Params:
        import imported_late  # type: ignore[import-not-found]

        imported_late.seen.append(rows)
        return {"seen": torch.tensor(len(imported_late.seen))}

    for _ in range(2):
        assert int(shard().passed_to(train)["seen"]) == 1
    assert sys.modules.pop("imported_late").seen == []


@pytest.mark.slow
def test_several_threads_may_wait_for_their_own_processes() -> None:
    """Each gets its own answer, and none waits for the pipe of another."""
    opened = shard()

    def answer(seconds: float) -> Callable[[Examples], Params]:
        def train(rows: Examples) -> Params:
            time.sleep(seconds)
            return {"seconds": torch.tensor(seconds)}

        return train

    waits = [0.15, 0.05, 0.1, 0.0]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seconds: opened.passed_to(answer(seconds)), waits))
    assert [round(float(one["seconds"]), 3) for one in found] == waits


ORPHAN = """
import os, time
import tests.privacy.readers.test_function_reader as test

def train(rows):
    print(os.getpid(), flush=True)
    time.sleep(60)

test.shard().passed_to(train)
"""


@pytest.mark.slow
def test_a_process_ends_with_the_run_that_was_killed() -> None:
    run = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    child = int(run.stdout.readline())
    run.kill()
    run.wait()
    ended = time.monotonic() + 20
    while time.monotonic() < ended and Path(f"/proc/{child}").exists():
        time.sleep(0.1)
    alive = Path(f"/proc/{child}").exists()
    if alive:
        os.kill(child, signal.SIGKILL)
    assert not alive
