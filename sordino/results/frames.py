"""Data frames, for whoever has pandas: nothing else in sordino needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sordino.errors import ConfigError

if TYPE_CHECKING:
    import pandas


def frame(rows: Sequence[Mapping[str, object]], columns: Sequence[str] = (), *, instead: str) -> pandas.DataFrame:
    """A data frame of so many rows; with these `columns` where there is none. `instead` is where the numbers are
    without pandas.
    """
    try:
        import pandas
    except ImportError:
        raise ConfigError(
            "data frames need pandas",
            why="it is not installed, and nothing else in sordino needs it",
            fix=f"run: pip install 'sordino[frames]'; {instead} has the same numbers without pandas",
            code="pandas-missing",
        ) from None
    return pandas.DataFrame(list(rows), columns=None if rows else list(columns))
