"""Parallel work on one machine: threads, and messages between two processes through shared memory, as JSON and tensors
in the form in which they were computed (factored ones as their factors).

Both processes see the same memory. A message stays there until the next round, and a pipe says where it lies; what does
not fit goes through the pipe. The memory ends with the processes, and no other process can write into it.

Threads compute several clients, or many test examples, at once in this process: torch releases the interpreter lock
while it computes. Each thread has an instance of the task (network and loss) of its own, because a running network
changes its state. Results do not depend on the thread that computes them and come in the order of the requests, so the
number of threads changes no byte of a result.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import chain, islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch

from sordino.fast.factored import EVERY, ClientRows, Lazy, Matrix, Scaled, Span

if TYPE_CHECKING:
    from torch import Tensor


ROOM = 1 << 28  # bytes of shared memory for one side's messages in a round
ALIGNED = 64  # tensors begin at multiples of it
HEAD = struct.Struct("<qq")  # position of the JSON, -1: it follows in the pipe; and its length

Values = Mapping[str, Any]  # plain values, sent as JSON


@cache
def kinds() -> tuple[torch.dtype, ...]:
    """All torch dtypes in a fixed order, so that messages name each by its index. Looked up at the first call: commands
    that only look at runs need no torch.
    """
    return tuple(sorted({kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}, key=str))


class ProcessMessage(NamedTuple):
    """A message between the two processes: plain values as JSON (`values`), and tensors."""

    values: Values
    tensors: list[Tensor]


class Ends:
    """One end of the channel between two processes. `say` writes a message to shared memory, where it stays until the
    next round, and sends its position through a pipe; a message that does not fit goes through the pipe.
    """

    def __init__(self, read: int, write: int, own: mmap.mmap, others: mmap.mmap) -> None:
        self.read, self._write = read, write
        self._mine, self._others, self._used, self._round = own, others, 0, -1

    @property
    def open(self) -> tuple[int, int]:
        return self.read, self._write

    def begin(self, t: int) -> None:
        """Begins a round: memory with the messages of the round before is reused."""
        if t != self._round:
            self._round, self._used = t, 0

    def room(self, size: int) -> bool:
        return self._used + size <= len(self._mine)

    def say(self, values: Values, tensors: Sequence[Tensor] = ()) -> None:
        placed = [(kinds().index(one.dtype), self._left(one), *one.shape) for one in tensors]
        words = torch.frombuffer(bytearray(json.dumps({**values, "tensors": placed}).encode()), dtype=torch.uint8)
        at = self._left(words)
        behind = [words] * (at is None)
        behind += [one for one, (_, place, *_) in zip(tensors, placed, strict=True) if place is None]
        parts: list[Any] = [HEAD.pack(-1 if at is None else at, len(words)), *map(_bytes, behind)]
        for part in parts:
            left = memoryview(part)
            while left:
                left = left[os.write(self._write, left) :]

    def hear(self) -> ProcessMessage:
        """Next message of the other process; EOFError where that process has ended."""
        at, size = HEAD.unpack(self._read(bytearray(HEAD.size)))
        values = json.loads(bytes(_bytes(self._found(kinds().index(torch.uint8), None if at < 0 else at, size))))
        return ProcessMessage(values, [self._found(*place) for place in values.pop("tensors")])

    def close(self) -> None:
        os.close(self.read)
        os.close(self._write)

    def _left(self, value: Tensor) -> int | None:
        """Puts a tensor into the shared memory, and returns its place; None where there is no room for it."""
        at, size = self._used, value.nbytes
        if not size or not self.room(size):
            return None
        torch.frombuffer(self._mine, dtype=value.dtype, count=value.numel(), offset=at).copy_(value.reshape(-1))
        self._used += -(-size // ALIGNED) * ALIGNED
        return at

    def _found(self, kind: int, at: int | None, *shape: int) -> Tensor:
        if at is not None:
            count = torch.Size(shape).numel()
            return torch.frombuffer(self._others, dtype=kinds()[kind], count=count, offset=at).reshape(shape)
        made = torch.empty(shape, dtype=kinds()[kind])
        self._read(_bytes(made))
        return made

    def _read(self, into: Any) -> Any:
        left = memoryview(into)
        while left:
            if not (count := os.readv(self.read, [left])):
                raise EOFError
            left = left[count:]
        return into


def _bytes(value: Tensor) -> Any:
    """Bytes of a tensor, without a copy where it is contiguous."""
    return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


# trees of tensors, as they were computed ------------------------------------------------------------------------------


def apart(leaves: Iterable[Matrix], into: list[Tensor]) -> list[Any]:
    """Takes leaves apart: appends the tensors of each (of a factored leaf, its factors) to `into`. Returns what `whole`
    needs to rebuild them.
    """
    made: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, Span) and leaf.index is EVERY:
            into += [leaf.c, leaf.rows.x]
            made.append("span")
        elif isinstance(leaf, Scaled):
            into.append(leaf.x)
            made.append(leaf.factor)
        else:
            into.append(leaf.dense() if isinstance(leaf, Lazy) else leaf)
            made.append("whole")
    return made


def whole(made: Sequence[Any], of: Iterator[Tensor]) -> list[Matrix]:
    """Leaves rebuilt from the list that `apart` returned and the tensors that it appended."""
    found: list[Matrix] = []
    for how in made:
        first = next(of)
        if how == "span":
            found.append(Span(ClientRows(next(of)), first))
        else:
            found.append(first if how == "whole" else Scaled(first, float(how)))
    return found


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
        """`many`: number of threads. `another`: builds a task for each further thread; None: there is one thread."""
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
