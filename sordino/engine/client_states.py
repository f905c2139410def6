"""Examples and states of clients, as a site keeps them: the examples without a copy, randomised where the method does
so; the states between rounds as one tensor per leaf, with a row for each client from its first round on.

Clients that never took part cost no memory. Up to `BUDGET` bytes the tensors of states lie in memory; larger ones are
memory-mapped files without a name in the run's folder: the system keeps the rows in use in memory, and drops the files
with the process. A run is resumed from its checkpoints alone, never from these files.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from sordino import tree
from sordino.data.dataset import DrawnRows, Split
from sordino.device import here
from sordino.errors import DataError
from sordino.tree import Tree
from sordino.types import Examples, NoiseSource, Reader

if TYPE_CHECKING:
    from torch import Tensor


class Shards(Mapping[int, Examples]):
    """Examples of each client, made on access: copied from the data set in memory, or drawn anew (`DrawnRows`)."""

    def __init__(self, train: Split, rows: Sequence[Any], which: range) -> None:
        self._drawn = isinstance(train.x, DrawnRows)
        self._x: Any = train.x if self._drawn else here(torch.from_numpy(np.asarray(train.x)))
        self._y = here(torch.from_numpy(np.asarray(train.y)))
        self._rows, self._which = rows, which

    def __getitem__(self, client: int) -> Examples:
        numbers = np.asarray(self._rows[client])
        rows = here(torch.from_numpy(numbers))
        x = here(torch.from_numpy(self._x[numbers])) if self._drawn else self._x.index_select(0, rows)
        return Examples(x, self._y.index_select(0, rows))

    def __contains__(self, client: object) -> bool:
        return client in self._which

    def __iter__(self) -> Iterator[int]:
        return iter(self._which)

    def __len__(self) -> int:
        return len(self._which)


class PreparedShards(Mapping[int, Examples]):
    """Examples of clients for methods that randomise them before training: once, and kept, or anew in every round."""

    def __init__(
        self, shards: Mapping[int, Examples], reader: Reader, source: Callable[[int], NoiseSource], t: int = 0
    ) -> None:
        self._shards, self._reader, self._source, self._t = shards, reader, source, t
        self._kept: dict[int, Examples] = {}

    def at(self, t: int) -> PreparedShards:
        """The clients' examples as they are randomised for round t."""
        return self if self._reader.redraw == "run" else PreparedShards(self._shards, self._reader, self._source, t)

    def __getitem__(self, client: int) -> Examples:
        if client not in self._kept:
            source = self._source(client).child("round", self._t)
            self._kept[client] = self._reader.prepare(self._shards[client], source)
        return self._kept[client]

    def __contains__(self, client: object) -> bool:
        return client in self._shards

    def __iter__(self) -> Iterator[int]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)


BUDGET = 1 << 28  # bytes of client state in memory
FEWEST = 64  # rows to begin with


class Packed(NamedTuple):
    """Client states as stored in a checkpoint: one tree with a row for each client, in ascending order."""

    clients: Tensor
    states: Tree


class States(Mapping[int, Tree]):
    """Mapping from each client that took part to its state, stored as rows of tensors. Reading copies a row; a state
    whose leaves differ from `template` in name, shape or dtype is stored separately.
    """

    def __init__(self, template: Tree, place: Path | None = None) -> None:
        self._template, self._place = template, place
        self._leaves = tree.leaves(template)
        self._looks = looks(template)
        self._columns = [leaf.new_empty(0, *leaf.shape) for leaf in self._leaves]
        self._row: dict[int, int] = {}
        self._capacity = 0
        self._odd: dict[int, Tree] = {}

    def __getitem__(self, client: int) -> Tree:
        if client in self._odd:
            return self._odd[client]
        row = self._row[client]
        found = [
            column[row].to(leaf.device, copy=True) for column, leaf in zip(self._columns, self._leaves, strict=True)
        ]
        return tree.like(self._template, found)

    def __setitem__(self, client: int, state: Tree) -> None:
        if looks(state) != self._looks:
            self._odd[client] = state
            return
        self._odd.pop(client, None)
        if client not in self._row:
            self._reach(len(self._row) + 1)
            self._row[client] = len(self._row)
        for column, leaf in zip(self._columns, tree.leaves(state), strict=True):
            column[self._row[client]] = leaf.detach()

    def __iter__(self) -> Iterator[int]:
        yield from sorted(self._row.keys() | self._odd.keys())

    def __len__(self) -> int:
        return len(self._row.keys() | self._odd.keys())

    # checkpoints ----------------------------------------------------------------------------------------------------

    def trees(self, live: bool = False) -> dict[str, Tree]:
        """States as trees of a checkpoint, which do not depend on the order in which clients first took part. `live`:
        not a copy where none is needed, for a tree that is written before any state changes.
        """
        who = sorted(self._row.keys() - self._odd.keys())
        rows = torch.tensor([self._row[client] for client in who], dtype=torch.int64)
        sorted_already = live and bool((rows == torch.arange(len(who))).all())
        held = [
            column[: len(who)] if sorted_already else column.index_select(0, rows.to(column.device))
            for column in self._columns
        ]
        packed = Packed(torch.tensor(who, dtype=torch.int64), tree.like(self._template, held))
        odd = {f"clients/{client}": self._odd[client] for client in sorted(self._odd)}
        return ({f"states/{len(who)}": packed} if who else {}) | odd

    def anew(self) -> States:
        """Empty copy of the mapping, with the same template and the same folder."""
        return States(self._template, self._place)

    def restore(self, trees: Mapping[str, Tree]) -> States:
        """Adds the client states in a checkpoint's trees; other trees are ignored."""
        for name, found in trees.items():
            for client, state in unpacked(name, found):
                self[client] = state
        return self

    # columns --------------------------------------------------------------------------------------------------------

    def _reach(self, rows: int) -> None:
        if rows <= self._capacity:
            return
        self._capacity = max(FEWEST, 2 * self._capacity)
        size = self._capacity * sum(leaf.nbytes for leaf in self._leaves)
        for i, (old, leaf) in enumerate(zip(self._columns, self._leaves, strict=True)):
            shape = self._capacity, *leaf.shape
            mapped = self._place is not None and size > BUDGET and leaf.nbytes > 0
            new = _mapped(self._place, shape, leaf.dtype) if mapped else leaf.new_empty(shape)  # type: ignore[arg-type]
            new[: len(old)] = old
            self._columns[i] = new


def looks(state: Tree) -> list[tuple[str, torch.Size, torch.dtype]]:
    """Name, shape and dtype of each leaf."""
    return [(name, leaf.shape, leaf.dtype) for name, leaf in tree.named(state)]


def shape_of(name: str, state: Tree) -> Tree:
    """Template for a checkpoint's tree of client states, by the tree's name; `state`: state of one client."""
    kind, _, rest = name.partition("/")
    if kind == "clients":
        return state
    if kind == "states":
        states = tree.map(lambda leaf: leaf.expand(int(rest), *leaf.shape), state)
        return Packed(torch.zeros(int(rest), dtype=torch.int64), states)
    raise DataError(
        f"a checkpoint holds {name!r}, which this version does not know",
        fix="resume with the version of sordino that wrote it",
        why="the checkpoint was written by another version of sordino",
        code="unknown-state",
    )


def unpacked(name: str, found: Tree) -> Iterator[tuple[int, Tree]]:
    """Client states in one tree of a checkpoint; none where the tree is the server's."""
    kind, _, rest = name.partition("/")
    if kind == "clients":
        yield int(rest), found
    elif kind == "states":
        for row, client in enumerate(found.clients.tolist()):
            yield client, tree.map(lambda leaf, row=row: leaf[row], found.states)


def _mapped(place: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    size = int(np.prod(shape)) * dtype.itemsize
    with tempfile.TemporaryFile(dir=place) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is noticed here, not by a signal later
        else:
            file.truncate(size)
        return torch.from_numpy(np.memmap(file, np.uint8, "r+", shape=(size,))).view(dtype).reshape(shape)
