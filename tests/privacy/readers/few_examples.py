"""Small data for tests of readers."""

from __future__ import annotations

from typing import Any

import torch

from sordino import keys
from sordino.privacy.readers.class_sums import ROWS
from sordino.tasks.quadratic import Quadratic
from sordino.types import Examples, Grant, Shard
from tests.privacy.doubles import Still

CLASSES, DIM, Z = 3, 4, 1.7


DOUBLE = torch.float64


TASK = Quadratic(2)


def opened(reader: Any, rows: Examples, source: Any = None, **grant: Any) -> Shard:
    given_ = Grant(0, len(rows.y), len(rows.y), source or Still(), Z, **grant)
    return reader.open(rows, given_, TASK)  # type: ignore[no-any-return]


# what is released -----------------------------------------------------------------------------------------------------
def many(n: int = 2 * ROWS + 7) -> Examples:
    x = keys.normal(keys.root(4), n * DIM).reshape(n, DIM)
    return Examples(0.1 * x, keys.integers(keys.root(5), n, CLASSES))
