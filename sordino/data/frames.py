"""Tables in memory, of any library, and their cells as text: no cell decides how another one is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sordino.errors import DataError

EXACT = 2.0**53  # from which on floats are not one apart


def in_memory(frame: object) -> pa.Table:
    """A data frame as an arrow table."""
    try:
        return as_arrow(frame)
    except (pa.ArrowException, TypeError, OverflowError) as error:  # the last for an integer beyond 64 bits
        raise DataError(
            "the data frame cannot be read as a table",
            why=str(error.args[-1]),  # the column; the first part may quote a cell
            fix="give every column one type: numbers, strings or booleans",
            code="mixed-column",
        ) from None


def as_arrow(frame: Any) -> pa.Table:
    """Columns of any library as an arrow table: of pandas without its index, which is no column; of a data set of
    `datasets` with its own order of rows.
    """
    if hasattr(frame, "with_format"):
        frame = frame.with_format("arrow")[:]
    indexed = hasattr(frame, "reset_index") and hasattr(frame, "columns")
    if indexed:
        _check_kinds(frame)
    found = pa.Table.from_pandas(frame, preserve_index=False) if indexed else pa.table(frame)
    return found.cast(pa.schema([field.with_type(_without_views(field.type)) for field in found.schema]))


def _check_kinds(frame: Any) -> None:
    """Refuses a column of objects of several kinds: the first one, or the oddest, would decide how all are written."""
    for at, name in enumerate(frame.columns):
        column = frame.iloc[:, at]
        if column.dtype == object and len(kinds := {_kind(cell) for cell in column[column.notna()]}) > 1:
            raise TypeError(f"the column {name} has cells of several types: {', '.join(sorted(kinds))}")


def _kind(cell: object) -> str:
    plain = cell.item() if isinstance(cell, np.generic) else cell
    zone = getattr(plain, "tzinfo", None)  # that of the first moment would be given to all
    return "number" if type(plain) in (int, float) else f"{type(plain).__name__}{f' of {zone}' if zone else ''}"


def _without_views(kind: pa.DataType) -> pa.DataType:
    """The arrow type without views of texts: polars exports views, which few of arrow's functions take."""
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_views(kind.value_type), kind.ordered)
    return pa.string() if str(kind) == "string_view" else kind


def as_text(column: Any) -> Any:
    """The cells as a file would spell them. A number is written alike in columns of integers, floats and decimals, and
    a time in columns of seconds and nanoseconds: a gap or a fraction in one row decides how a frame stores a column,
    and must not change how the others are read.
    """
    if pa.types.is_duration(column.type):
        column = pc.cast(column, pa.duration("ns"))
    words = pc.cast(column, pa.string())
    if pa.types.is_decimal(column.type) or pa.types.is_temporal(column.type):
        # before an exponent, or a time zone
        without = pc.replace_substring_regex(words, r"(\.[0-9]*?)0+([^0-9].*|)$", r"\1\2")
        return pc.replace_substring_regex(without, r"\.([^0-9].*|)$", r"\1")
    if not pa.types.is_floating(column.type):
        return words
    values = pc.cast(column, pa.float64())
    integer = pc.and_(pc.is_finite(values), pc.equal(pc.round(values), values))
    if pc.any(pc.and_(integer, pc.greater_equal(pc.abs(values), EXACT))).as_py():
        raise DataError(
            "a column of numbers that are names is stored as floats, and some are beyond 2^53",
            why="floats have no digits for all of them, so two different ones may have become one",
            fix="give the column as texts or as integers with gaps, for example as Int64 in pandas",
            code="unsupported-column-type",
        )
    return pc.if_else(integer, pc.cast(pc.cast(pc.if_else(integer, values, 0.0), pa.int64()), pa.string()), words)
