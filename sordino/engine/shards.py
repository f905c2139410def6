"""Shards: the examples of each client, without a copy, and as its reader prepares them for training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sordino.data.dataset import DrawnRows, Split
from sordino.device import here
from sordino.types import Examples, NoiseSource, Reader


class Shards(Mapping[int, Examples]):
    """Examples of each client, copied on access from the data set in memory, or drawn."""

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
    """Examples as the reader prepares them for training: once, and kept, or anew in every round (`reader.redraw`)."""

    def __init__(
        self, shards: Mapping[int, Examples], reader: Reader, source: Callable[[int], NoiseSource], t: int = 0
    ) -> None:
        self._shards, self._reader, self._source, self._t = shards, reader, source, t
        self._kept: dict[int, Examples] = {}

    def at(self, t: int) -> PreparedShards:
        """Shards as they are prepared for round t."""
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
