"""Shared memory between two processes of one machine: words, and tensors behind them, as they were computed.

Both sides see the same memory. What is said is left there until the next round, and a pipe tells where; what there is
no room for goes through the pipe. Nothing of it outlives the processes, and no other process can write into it.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from sordino.fast.factored import EVERY, ClientRows, Lazy, Matrix, Scaled, Span

if TYPE_CHECKING:
    from torch import Tensor

ROOM = 1 << 28  # bytes that one side may leave for the other in a round
ALIGNED = 64  # where a tensor may begin
HEAD = struct.Struct("<qq")  # where words lie, -1 behind the head; and how long they are

Told = Mapping[str, Any]  # as JSON


@cache
def kinds() -> tuple[torch.dtype, ...]:
    """All types of numbers, spoken of by their place here; who only looks at runs needs no torch."""
    return tuple(sorted({kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}, key=str))


class Spoken(NamedTuple):
    """Message through a pipe: words, and tensors behind them."""

    told: Told
    tensors: list[Tensor]


class Ends:
    """One side of a conversation. What is said is left in memory that both sides see until the next round, and a pipe
    tells where. What there is no room for goes through the pipe.
    """

    def __init__(self, read: int, write: int, mine: mmap.mmap, others: mmap.mmap) -> None:
        self.read, self._write = read, write
        self._mine, self._others, self._used, self._round = mine, others, 0, -1

    @property
    def open(self) -> tuple[int, int]:
        return self.read, self._write

    def begin(self, t: int) -> None:
        """Begins a round: the memory of the round before is free again."""
        if t != self._round:
            self._round, self._used = t, 0

    def room(self, size: int) -> bool:
        return self._used + size <= len(self._mine)

    def say(self, told: Told, tensors: Sequence[Tensor] = ()) -> None:
        placed = [(kinds().index(one.dtype), self._left(one), *one.shape) for one in tensors]
        words = torch.frombuffer(bytearray(json.dumps({**told, "tensors": placed}).encode()), dtype=torch.uint8)
        at = self._left(words)
        behind = [words] * (at is None)
        behind += [one for one, (_, place, *_) in zip(tensors, placed, strict=True) if place is None]
        parts: list[Any] = [HEAD.pack(-1 if at is None else at, len(words)), *map(_bytes, behind)]
        for part in parts:
            left = memoryview(part)
            while left:
                left = left[os.write(self._write, left) :]

    def hear(self) -> Spoken:
        """Next message of the other side; EOFError where it is gone."""
        at, size = HEAD.unpack(self._read(bytearray(HEAD.size)))
        told = json.loads(bytes(_bytes(self._found(kinds().index(torch.uint8), None if at < 0 else at, size))))
        return Spoken(told, [self._found(*place) for place in told.pop("tensors")])

    def close(self) -> None:
        os.close(self.read)
        os.close(self._write)

    def _left(self, value: Tensor) -> int | None:
        """Place of a tensor that is left in the shared memory; None where there is no room for it."""
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
    """A tensor's own memory."""
    return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


# trees of tensors, as they were computed ------------------------------------------------------------------------------


def apart(leaves: Iterable[Matrix], into: list[Tensor]) -> list[Any]:
    """Puts what the leaves are made of into a list; says how to make them of it again."""
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
    """The leaves that such a list was made of."""
    found: list[Matrix] = []
    for how in made:
        first = next(of)
        if how == "span":
            found.append(Span(ClientRows(next(of)), first))
        else:
            found.append(first if how == "whole" else Scaled(first, float(how)))
    return found
