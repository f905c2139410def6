"""What the rows themselves say of a table: types, levels, classes. Nothing may then be claimed about a row."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sordino.data.cells import (
    MAX_LEVELS,
    Columns,
    Feature,
    Missing,
    WithoutGaps,
    is_text,
    numbers_in,
    numbers_with_commas,
    texts,
    whole,
)
from sordino.data.cells import without_gaps as closed
from sordino.data.dataset import Array
from sordino.data.outcome import LabelKind
from sordino.data.schema import Column
from sordino.data.table_files import TableRows, Written, read
from sordino.errors import DataError

AN_ACCIDENT = 10  # so many different numbers in a column of texts are not its levels


def learned(
    path: str | Sequence[str] | pa.Table,
    label: Sequence[str],
    group: str | None,
    key: str | None,
    missing: Missing,
    written: Written,
    outcome: LabelKind | None,
) -> tuple[TableRows, Columns]:
    if missing == "fill":
        raise DataError(
            'data.missing = "fill" for a table without a schema',
            why="what is put into a gap must be declared: a mean or a most frequent value would be learned from rows",
            fix='write a schema (`sordino data schema` drafts it) with missing = VALUE in its columns, or set "drop"',
            code="fill-without-schema",
        )
    rows = read(path, () if key is None else (key,), written)
    for name in (*label, group, key):
        if name is not None:
            find(rows, name)
    held = closed(rows, rows.table.column_names, missing, {}, never=(*label, group, key))
    classes, y = _codes(held, label[0], "label") if outcome is None else ((), outcome.read(held, label))
    named: tuple[tuple[str, ...], Array | None] = ((), None) if group is None else _codes(held, group, "group")
    if outcome is None and len(classes) < 2:
        raise DataError(
            f"{rows.name}: every row has the same {label[0]}",
            fix="choose another column as data.label",
            why="with one class there is nothing to tell apart",
            code="one-class",
        )
    features = {name: _feature(held, name) for name in held.columns if name not in (*label, group, key)}
    if not features:
        raise no_features(rows)
    keys = None if key is None else texts(held.columns[key])
    said = {name: what for name, (_, what) in features.items()}
    values = [feature for feature, _ in features.values()]
    return rows, Columns(values, y, classes, named[1], named[0], False, keys, held.numbers, said)


def no_features(rows: TableRows) -> DataError:
    return DataError(
        f"{rows.name}: no column is left as a feature",
        fix="give a table with at least one more column",
        why="a model needs at least one column to learn from, beside the label, group and key",
        code="no-features",
    )


def find(rows: TableRows, wanted: str) -> None:
    names = rows.table.column_names
    if wanted in names:
        return
    near = difflib.get_close_matches(wanted, names, n=1)
    dialect = rows.files[0].dialect
    raise DataError(
        f"{rows.name} has no column {wanted!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
        why=f"its columns are: {', '.join(names)}",
        fix="name one of these columns"
        + (f"; or say how the file is written, which was read with {dialect}: data.separator" if dialect else ""),
        code="unknown-column",
    )


def _codes(held: WithoutGaps, name: str, role: str) -> tuple[tuple[str, ...], Array]:
    """The values in sorted order, and 0..C-1 for each row."""
    column = whole(held.columns[name])
    kind = column.type
    if not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        regression = role == "label" and pa.types.is_floating(kind)
        raise DataError(
            f"{held.rows.name}: {role} column {name} has type {kind}",
            why=f"a {role} must be whole numbers, strings or booleans"
            + ("; this one holds numbers" if regression else ""),
            fix='to predict the number, set task = {name = "regression", range = [LOWEST, HIGHEST]}; or put the '
            "numbers into classes (for example low, middle, high), or choose another column"
            if regression
            else "convert the column, or choose another one",
            code=f"bad-{role}-type",
        )
    plain = column.to_numpy(zero_copy_only=False)
    values, codes = np.unique(plain.astype(str) if is_text(kind) else plain, return_inverse=True)
    if role == "label" and len(values) > MAX_LEVELS:
        number = pa.types.is_integer(kind)
        raise DataError(
            f"{held.rows.name}: the label {name} has {len(values):,} different values, more than {MAX_LEVELS}",
            why="each of them would be a class",
            fix=(
                'to predict the number, set task = {name = "regression", range = [LOWEST, HIGHEST]}; or '
                if number
                else ""
            )
            + "put them into fewer classes, choose another column, or declare all classes in a schema",
            code="too-many-classes",
        )
    return tuple(map(str, values.tolist())), codes.astype(np.int64)


def _feature(held: WithoutGaps, name: str) -> tuple[Feature, Column]:
    """What a column gives the model, and what a schema that says so would say of it."""
    column = held.columns[name]
    if is_text(column.type):
        levels, codes = np.unique(column.to_numpy(zero_copy_only=False).astype(str), return_inverse=True)
        if len(levels) > AN_ACCIDENT:
            _check_are_words(held, name, column)
        if len(levels) > MAX_LEVELS:
            raise DataError(
                f"{held.rows.name}: column {name} has {len(levels)} different strings, more than {MAX_LEVELS}",
                why="each of these strings would become a feature",
                fix=f"set data.key = {name!r} if it names the row or its person; else write a schema (`sordino data "
                "schema TABLE --label LABEL` drafts one), in which the number of a case, or a date, is "
                '{ kind = "ignored" } and free text { kind = "text", buckets = 4096, length = 32 }; or merge values',
                code="too-many-levels",
            )
        words = Column("levels", words=tuple(levels.tolist()))
        return Feature(np.eye(len(levels), dtype=np.float32)[codes]), words
    try:
        values = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise DataError(
            f"{held.rows.name}: column {name} has type {column.type}, neither number nor string",
            why="a feature must be a number or a string",
            fix="convert or remove the column",
            code="unsupported-column-type",
        ) from error
    if not (finite := np.isfinite(values)).all():
        raise held.unfit(name, float(values[at := int(np.argmin(finite))]), at, "is not finite")
    said = Column("boolean") if pa.types.is_boolean(column.type) else Column("number", -math.inf, math.inf)
    return Feature(values.astype(np.float32)[:, None], numbers=True), said


def _check_are_words(held: WithoutGaps, name: str, column: pa.Array) -> None:
    """Refuses a column of numbers that a few cells make a column of texts."""
    dialect = held.rows.files[0].dialect
    own = "." if dialect is None else dialect.decimal
    for decimal in (own, "," if own == "." else "."):
        fits = numbers_in(column) if decimal == "." else numbers_with_commas(column)
        if 2 * fits.sum() < len(fits):
            continue
        at = int(np.argmin(fits)) if decimal == own else 0
        what, fix = "is no number, and most cells of its column are", "correct the cell; or empty it and set "
        fix += 'data.missing = "drop"; or declare in a schema that the column has levels'
        if decimal != own:
            what, fix = "is no number as this file is written", f'set data.decimal = "{decimal}"'
        raise held.unfit(name, column[at].as_py(), at, what, fix)
