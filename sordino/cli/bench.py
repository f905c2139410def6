"""Speed on this machine: benchmarks of the few operations that decide how a run should be computed, and a sampling
profiler of a run.

Benchmarks compare fp32 and bf16, one library and the other, clients alone and together. They use one thread and random
numbers.

Every few milliseconds the profiler reads the stacks of a run's threads, and adds up time by kind of work. The run
itself is not changed, so it costs next to nothing. The innermost module of the library on a stack decides the kind;
some modules, such as the ledger, count for all that they call. Time is divided equally among the threads that work at
the same time. Other processes are not sampled.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import PurePath
from types import FrameType
from typing import NamedTuple, Self

import torch
from torch import Tensor

from sordino import fast, keys, tree
from sordino.engine.stack import Member, stacks, together
from sordino.fast import linear
from sordino.keys import Key
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.open import Open
from sordino.privacy.readers.padded_shard import SharedPass
from sordino.tasks.nets import cnn_wide, mlp
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant, LocalWork, Params, Shard, Task

EVERY = 0.004  # seconds between two looks
PACKAGE = PurePath(__file__).parents[1]

# modules, or classes of them, that count for all that they call
CALLERS = {
    "evaluation": ("metrics/",),
    "ledger and prices": ("accounting/", "ledger/", "budget/", "planning/prices.py"),
    "checkpoints and records": ("engine/checkpoint.py", "engine/client_states.py", "runs/rounds.py:Rows."),
    "noise": ("privacy/noise/",),
    "secure sums": ("secagg/", "engine/executor.py:SecureSum."),
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
            places.append(f"{file.relative_to(PACKAGE).as_posix()}:{frame.f_code.co_qualname}")
        frame = frame.f_back
    for kind, where in CALLERS.items():
        if any(place.startswith(where) for place in places):
            return kind
    return next((kind for place in places for kind, where in OWN.items() if place.startswith(where)), None)


def reach(threads: int) -> float:
    """Speed of matrix products on this machine by number of threads, in floating-point operations per second."""
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


REPEATS = 5


class BenchResult(NamedTuple):
    """Seconds of one operation, computed in two ways."""

    what: str
    first: tuple[str, float]  # name and seconds
    second: tuple[str, float]

    @property
    def ratio(self) -> float:
        """Speed of the second choice relative to the first."""
        return self.first[1] / self.second[1]


def measure() -> list[BenchResult]:
    """Run the benchmarks, for about ten seconds. The two sides of a comparison take turns, so that other programs
    disturb both alike.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_products(), *_libraries(), _convolutions(), _pools(), _stacks()]
    finally:
        torch.set_num_threads(threads)


def _products() -> BenchResult:
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    low_a, low_b = a.bfloat16(), b.bfloat16()
    return _race("matrix product, 1024 x 1024", "fp32", lambda: a @ b, "bf16", lambda: low_a @ low_b)


def _libraries() -> list[BenchResult]:
    by_onednn = fast.onednn()
    if by_onednn is None:  # this torch was built without it: there is no choice
        return []
    x, weight = torch.randn(1024, 784), torch.randn(200, 784)
    return [
        _race(
            "1,024 rows through a linear layer",
            "MKL",
            lambda: torch.nn.functional.linear(x, weight),
            "oneDNN",
            lambda: by_onednn(x, weight, None, "none", [], ""),
        )
    ]


def _task(precision: torch.dtype, image: tuple[int, int, int], wide: bool) -> Classification:
    side, channels = image[0], image[2]
    net = (cnn_wide if wide else mlp)((channels, side, side), 10)
    middle = (0.5,) * channels
    return Classification(net, name="bench", shape=image, mean=middle, std=middle, image=True, precision=precision)


def _rows(count: int, image: tuple[int, int, int], seed: int) -> Examples:
    pixels = torch.randint(0, 256, (count, *image), dtype=torch.uint8, generator=keys.generator(keys.root(seed)))
    return Examples(pixels, torch.arange(count) % 10)


def _convolutions() -> BenchResult:
    image = (32, 32, 3)
    rows = _rows(50, image, 1)

    def step(precision: torch.dtype) -> Callable[[], Params]:
        task = _task(precision, image, wide=True)
        params, (x, y) = task.init(keys.root(1)), task.ready(*rows)
        return lambda: task.gradient(params, x, y, lambda: torch.zeros(0))

    return _race(
        "a step of a convolutional network, 50 images", "fp32", step(torch.float32), "bf16", step(torch.bfloat16)
    )


def _pools() -> BenchResult:
    image = (28, 28, 1)
    task, who = _task(torch.float32, image, wide=False), list(range(50))
    params = task.init(keys.root(1))
    shards = {k: _rows(60, image, k) for k in who}

    def alone() -> None:
        for k in who:
            task.clipped_sum(task.losses, params, shards[k], torch.zeros(0), 1.0, 2)

    def pooled() -> None:
        pool = SharedPass(task, shards, params)
        for k in who:
            pool.sum(k, params, 1.0, 2)

    return _race("clipped sums of 50 clients at the same weights", "alone", alone, "pooled", pooled)


class _Epoch:
    """The simplest algorithm to time: a local epoch of plain SGD."""

    read, work = Open(), LocalWork(1, None, 10)

    def local(self, task: Task, x: Params, state: Tensor, shard: Shard, key: Key) -> tuple[Params, Tensor]:
        y = x
        for batch in shard.batches(self.work, key):
            y = tree.descend(y, 0.1, batch.grad(task.losses, y), x)
        return tree.sub(y, x), state


def _stacks() -> BenchResult:
    image, epoch = (28, 28, 1), _Epoch()
    task = _task(torch.float32, image, wide=False)
    params, source = task.init(keys.root(1)), Counter(1)
    who = [
        Member(k, _rows(60, image, k), torch.tensor(0), Grant(k, 60, 60, source), keys.word(keys.root(k)))
        for k in range(50)
    ]

    def alone() -> None:
        for k in who:
            shard = epoch.read.open(k.examples, k.grant, task)
            tree.formed(epoch.local(task, params, k.state, shard, k.key)[0])

    def stack() -> None:
        for part in stacks(who, task.stacks):
            for upload, _ in together(epoch, task, params, part):
                tree.formed(upload)

    return _race("an epoch of 50 clients with 60 rows each, batches of 10", "alone", alone, "stack", stack)


def _race(what: str, first: str, one: Callable[[], object], second: str, other: Callable[[], object]) -> BenchResult:
    one(), other()
    taken = [(_seconds(one), _seconds(other)) for _ in range(REPEATS)]
    a, b = (statistics.median(side) for side in zip(*taken, strict=True))
    return BenchResult(what, (first, a), (second, b))


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
