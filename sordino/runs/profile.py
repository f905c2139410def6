"""Sampling profiler: every few milliseconds it reads the stacks of a run's threads, and adds up time by kind of work.

The run itself is not changed, so it costs next to nothing. The innermost module of the library on a stack decides the
kind; some modules, such as the ledger, count for all that they call. Time is divided equally among the threads that
work at the same time. Other processes are not sampled."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from pathlib import PurePath
from types import FrameType
from typing import Self

import torch

from sordino.fast.products import linear

EVERY = 0.004  # seconds between two looks
PACKAGE = PurePath(__file__).parents[1]

# modules that count for all that they call
CALLERS = {
    "evaluation": ("metrics/",),
    "ledger and prices": ("accounting/", "ledger/", "budget/", "planning/prices.py"),
    "checkpoints and records": ("engine/checkpoint.py", "engine/client_states.py", "runs/metric_files.py"),
    "noise": ("privacy/noise/",),
    "secure sums": ("secagg/", "engine/secure_sum.py"),
    "clipping": ("privacy/readers/per_example_gradients.py", "privacy/uplink/stages.py"),
}
# modules that count for themselves, and for other libraries that they call
OWN = {
    "forward and backward": ("tasks/", "synthesis/generators/"),
    "steps of the method": ("algorithms/", "synthesis/"),
    "reading examples": ("privacy/readers/", "engine/client_states.py", "data/", "partition/"),
    "handing out and collecting": ("engine/", "transport/", "sites/", "round.py"),
    "adding up": ("privacy/uplink/",),
    "preparing the run": ("runs/", "config/", "cli/", "report/"),
}
WAITS = (
    "threading.py",
    "queue.py",
    "selectors.py",
    "socket.py",
    "subprocess.py",
    "concurrent/futures/thread.py",
    "engine/forks.py",
)
WAITING = "waiting"


class Profile:
    """Sampling profiler of a `with` block: seconds spent on each kind of work."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="profile", daemon=True)
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def shares(self) -> dict[str, float]:
        """Seconds spent on each kind of work, the longest first."""
        return dict(sorted(self._seconds.items(), key=lambda share: -share[1]))

    def _look(self) -> None:
        last = begun = time.perf_counter()
        while not self._over.wait(EVERY):
            now = time.perf_counter()
            stacks = sys._current_frames()
            found = [kind_of(stacks[one]) for one in stacks if one != threading.get_ident()]
            busy = [kind for kind in found if kind is not None] or [WAITING]
            for kind in busy:
                self._seconds[kind] += (now - last) / len(busy)
            last = now
            self.seconds = now - begun


def kind_of(frame: FrameType | None) -> str | None:
    """The kind of work on a thread's stack; None where it waits, or runs none of this library."""
    if frame is None or frame.f_code.co_filename.endswith(WAITS):
        return None
    places = []
    while frame is not None:
        file = PurePath(frame.f_code.co_filename)
        if file.is_relative_to(PACKAGE):
            places.append(file.relative_to(PACKAGE).as_posix())
        frame = frame.f_back
    for kind, where in CALLERS.items():
        if any(place.startswith(where) for place in places):
            return kind
    return next((kind for place in places for kind, where in OWN.items() if place.startswith(where)), None)


def reach(threads: int) -> float:
    """Speed of matrix products on this machine with so many threads, in floating-point operations per second."""
    size, before = 768, torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a = torch.ones(size, size)
        linear(a, a)
        took = []
        for _ in range(5):
            begun = time.perf_counter()
            linear(a, a)
            took.append(time.perf_counter() - begun)
    finally:
        torch.set_num_threads(before)
    return 2 * size**3 / min(took)
