"""Benchmarks of the few operations that decide how a run should be computed: fp32 or bf16, one library or the other,
clients alone or together. They use one thread and random numbers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sordino import keys, tree
from sordino.engine.stack import Member, stacks, together
from sordino.fast import products
from sordino.keys import Key
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.open import Open
from sordino.privacy.readers.padded_shard import SharedPass
from sordino.tasks.nets import cnn_wide, mlp
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant, LocalWork, Params, Shard, Task

REPEATS = 5


class BenchResult(NamedTuple):
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
    by_onednn = products.onednn()
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
