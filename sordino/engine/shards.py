"""Which rows are whose, without a copy of any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sordino.data import Split
from sordino.types import Examples


class Shards(Mapping[int, Examples]):
    """Each client's rows, gathered when the client is asked: the data lie in memory once."""

    def __init__(self, train: Split, rows: Sequence[Any], which: range) -> None:
        self._x, self._y = torch.from_numpy(np.asarray(train.x)), torch.from_numpy(np.asarray(train.y))
        self._rows, self._which = rows, which

    def __getitem__(self, client: int) -> Examples:
        rows = torch.from_numpy(np.asarray(self._rows[client]))
        return Examples(self._x.index_select(0, rows), self._y.index_select(0, rows))

    def __iter__(self) -> Iterator[int]:
        return iter(self._which)

    def __len__(self) -> int:
        return len(self._which)
