"""Cells of a table: treatment of missing cells and of their rows, and errors for cells that do not fit.

`missing`: "refuse"; "drop" the row; "fill" with the value that the schema declares for the column. Each row is treated
according to its own cells and the declarations alone, so no row influences another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sordino.data.dataset import Array
from sordino.data.frames import as_text
from sordino.data.schema import Column, TableSchema
from sordino.data.table_files import AS_SEEN, GivenDialect, TableRows, read
from sordino.errors import DataError

if TYPE_CHECKING:
    from sordino.data.label_kinds import LabelKind

Missing = Literal["refuse", "drop", "fill"]
MAX_LEVELS = 64
NEVER = (
    "correct the file, or take these rows out of it before you hand it over: a label, a client or a key is never "
    'filled, and data.missing = "drop" is for simulations'
)
HINT = "correct or remove the row, or declare in the schema what the column can hold"


@dataclass(frozen=True)
class TableSource:
    """Settings for reading a table: files, columns with special roles, and what to do about missing cells."""

    path: str | Sequence[str] | pa.Table
    labels: tuple[str, ...]
    group: str | None = None
    key: str | None = None
    schema: TableSchema | None = None  # None: inferred from the rows
    missing: Missing = "refuse"
    written: GivenDialect = AS_SEEN
    outcome: LabelKind | None = None  # kind of label; None: a class

    @property
    def roles(self) -> list[str]:
        """Columns that are not features: labels, group (client) and key."""
        return [name for name in (*self.labels, self.group, self.key) if name is not None]

    @property
    def numbers(self) -> list[str]:
        """Columns that a schema declares to hold numbers, numeric labels among them."""
        return [
            name
            for name, one in self._declared.items()
            if one.kind == "number" or (self.outcome is not None and name in self.labels)
        ]

    @property
    def _declared(self) -> Mapping[str, Column]:
        return {} if self.schema is None else self.schema.columns

    def rows(self) -> TableRows:
        """The rows of all files. Declared columns are read as text; without a schema only the key column is."""
        text = tuple(self._declared) or (() if self.key is None else (self.key,))
        ignored = [name for name, one in self._declared.items() if one.kind == "ignored"]
        return read(self.path, text, self.written, self.numbers, ignored)


class WithoutGaps(NamedTuple):
    """Columns of the rows that are kept, without missing cells; `numbers` are the rows' numbers in the files."""

    rows: TableRows
    columns: Mapping[str, pa.Array]
    numbers: Array

    def unfit(self, name: str, value: object, at: int, what: str, fix: str = HINT) -> DataError:
        """The error for one cell that does not fit; `at` is its position among the kept rows."""
        file, row = self.rows.place(int(self.numbers[at]))
        return DataError(
            f"{file}: {name} = {value!r} {what} (row {row} after the header)",
            why="sordino does not guess values, and it never drops a row silently",
            fix=fix,
            code="row-does-not-fit",
        )

    def numbers_of(self, name: str) -> Array:
        """The numbers in a column: float64, finite."""
        column = self.columns[name]
        if is_text(column.type):
            column = pc.utf8_trim_whitespace(column)
        try:
            values: Array = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowException:
            words = [] if not is_text(column.type) else column.to_pylist()
            at = next((at for at, text in enumerate(words) if not is_number(text)), None)
            if at is None:
                raise DataError(
                    f"{self.rows.name}: column {name} has type {column.type}, but it is said to hold numbers",
                    why="only numbers, or texts that are numbers, can be read as numbers",
                    fix="convert the column, or declare it as ignored in the schema",
                    code="unsupported-column-type",
                ) from None
            comma = is_number(words[at].replace(",", "."))
            more = {"fix": 'say how the file is written: data.decimal = ",", or correct the cell'} if comma else {}
            raise self.unfit(name, words[at], at, "is not a number", **more) from None
        if not (finite := np.isfinite(values)).all():
            at = int(np.argmin(finite))
            raise self.unfit(name, texts(column)[at], at, "is not finite")
        return values


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def texts(column: pa.Array) -> list[str]:
    found: list[str] = as_text(column).to_pylist()
    return found


def gaps(column: pa.Array) -> Array:
    """A mask that is True for cells that are empty or NaN."""
    empty = column.is_null(nan_is_null=pa.types.is_floating(column.type))
    return np.asarray(empty.to_numpy(zero_copy_only=False), bool)


def whole(column: pa.Array) -> pa.Array:
    """Floats as integers if all are whole: a column with gaps is often written as 0.0 and 1.0."""
    if pa.types.is_floating(column.type):
        try:
            return pc.cast(column, pa.int64())
        except pa.ArrowException:
            return column
    return column


def is_number(text: str) -> bool:
    try:
        pc.cast(pa.scalar(text), pa.float64())
    except pa.ArrowException:
        return False
    return True


def numbers_in(column: pa.Array) -> Array:
    """A mask that is True for texts that are numbers."""
    words, codes = np.unique(column.to_numpy(zero_copy_only=False).astype(str), return_inverse=True)
    return np.array([is_number(word.strip()) for word in words.tolist()], bool)[codes]


def numbers_with_commas(column: pa.Array) -> Array:
    """A mask that is True for texts that are numbers with a decimal comma; a text with a point is not one of them."""
    dotted = np.asarray(pc.match_substring(column, ".").to_numpy(zero_copy_only=False), bool)
    fits: Array = np.logical_and(numbers_in(pc.replace_substring(column, ",", ".")), ~dotted)
    return fits


def without_gaps(
    rows: TableRows,
    names: Sequence[str],
    missing: Missing,
    fill: Mapping[str, str],
    numbers: Sequence[str] = (),
    fix: str = "",
    never: Sequence[str] = (),
) -> WithoutGaps:
    """The named columns without missing cells. `fill`: declared values for missing cells, by column; `numbers`: columns
    of numbers; `fix`: the remedy named in errors, if the data are not an experiment's; `never`: labels, clients and
    keys, whose missing cells are never filled.
    """
    columns = {name: rows.column(name) for name in names}
    holes = {name: hole for name, column in columns.items() if (hole := gaps(column)).any()}
    everybody = np.arange(rows.table.num_rows)
    if missing == "drop" and holes:
        kept = ~np.logical_or.reduce(list(holes.values()))
        if not kept.any():
            raise DataError(
                f"{rows.name}: no row has a value in every column",
                why='data.missing = "drop" leaves out each row that lacks one',
                fix="ignore the columns that are mostly empty: leave them out of the table, or declare them as "
                '{ kind = "ignored" } in the schema',
                code="every-row-dropped",
            )
        return WithoutGaps(
            rows, {name: column.filter(pa.array(kept)) for name, column in columns.items()}, everybody[kept]
        )
    for name, hole in holes.items():
        if missing == "refuse" or name not in fill:
            raise _gap(rows, name, hole, missing, NEVER if name in never and not fix else fix)
        columns[name] = _filled(columns[name], hole, fill[name], name in numbers)
    return WithoutGaps(rows, columns, everybody)


def _filled(column: pa.Array, hole: Array, value: str, number: bool) -> pa.Array:
    if number and not is_text(column.type):
        return pc.if_else(pa.array(hole), float(value), pc.cast(column, pa.float64()))
    return pc.if_else(pa.array(hole), value, as_text(column))


def _gap(rows: TableRows, name: str, hole: Array, missing: Missing, fix: str) -> DataError:
    file, row = rows.place(int(np.argmax(hole)))
    several = f"; so it is in {int(hole.sum()):,} rows" if hole.sum() > 1 else ""
    return DataError(
        f"{file}: column {name} has no value (row {row} after the header){several}",
        why="sordino does not guess values"
        if missing == "refuse" or fix
        else "the schema declares no value for gaps in this column, and none is learned from other rows",
        fix=fix
        or 'correct the file; or set data.missing = "drop" to leave out such rows, or "fill" to put in what the '
        f"schema declares: {name} = {{ ..., missing = VALUE }}",
        code="missing-values",
    )
