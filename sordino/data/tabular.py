"""One CSV or parquet table: numbers as float32, strings one-hot, a label column, maybe a client column.

x stays raw. mean and std come from the train split and are for the task to apply; one-hot features keep
mean 0 and std 1, since standardising would blow up rare levels.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from sordino.data.dataset import Array, Dataset, Split, stratified
from sordino.errors import DataError

MAX_LEVELS = 64


def _read_csv(file: Path) -> pa.Table:
    # an empty string is a missing value, not a level of its own
    return csv.read_csv(file, convert_options=csv.ConvertOptions(strings_can_be_null=True))


READERS: Mapping[str, Callable[[Path], pa.Table]] = {".csv": _read_csv, ".parquet": pq.read_table}


class _Feature(NamedTuple):
    values: Array  # float32 [n, width]
    one_hot: bool


def load(path: str | Path, label: str, group: str | None = None, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """The test split takes test_fraction of every class; label and group are not features."""
    file = Path(path).expanduser()
    table = _read(file)
    columns = {name: _column(file, table, name) for name in table.column_names}
    y = _codes(file, label, _find(file, columns, label), "label")
    clients = None if group is None else _codes(file, group, _find(file, columns, group), "group")
    if not y.max():
        raise DataError(f"{file}: every row has the same {label}", code="one-class")
    features = [_feature(file, name, column) for name, column in columns.items() if name not in (label, group)]
    if not features:
        raise DataError(f"{file}: no column is left as a feature", code="no-features")
    x = np.hstack([feature.values for feature in features])
    one_hot = np.repeat([f.one_hot for f in features], [f.values.shape[1] for f in features])

    train, test = (
        Split(x[rows], y[rows], None if clients is None else clients[rows])
        for rows in stratified(y, test_fraction, seed)
    )
    mean = np.where(one_hot, 0.0, train.x.mean(0, dtype=np.float64))
    std = np.where(one_hot, 1.0, train.x.std(0, dtype=np.float64))
    std[std == 0] = 1.0
    return Dataset(file.stem, "table", int(y.max()) + 1, train, test, tuple(mean.tolist()), tuple(std.tolist()))


def _read(file: Path) -> pa.Table:
    if file.suffix not in READERS:
        raise DataError(
            f"{file}: cannot tell how to read a {file.suffix or 'nameless'} file",
            fix=f"use {' or '.join(READERS)}",
            code="unknown-table-format",
        )
    if not file.is_file():
        raise DataError(f"there is no file {file}", fix="check the path", code="missing-file")
    try:
        table = READERS[file.suffix](file)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file} cannot be read", why=str(error), code="corrupt-table") from error
    if not table.num_rows:
        raise DataError(f"{file} holds no rows", code="empty-table")
    if len(set(table.column_names)) < table.num_columns:
        raise DataError(f"{file}: two columns have the same name", fix="rename one", code="repeated-column-name")
    return table


def _find(file: Path, columns: dict[str, pa.Array], wanted: str) -> pa.Array:
    if wanted not in columns:
        near = difflib.get_close_matches(wanted, columns, n=1)
        raise DataError(
            f"{file} has no column {wanted!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
            why=f"its columns are: {', '.join(columns)}",
            code="unknown-column",
        )
    return columns[wanted]


def _column(file: Path, table: pa.Table, name: str) -> pa.Array:
    column = table.column(name).combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    missing = column.null_count
    if pa.types.is_floating(column.type) and not missing:
        missing = int((~np.isfinite(column.to_numpy(zero_copy_only=False))).sum())
    if missing:
        raise DataError(
            f"{file}: column {name} is missing, NaN or infinite in {missing} rows",
            fix="fill or drop these rows; sordino does not guess values",
            code="missing-values",
        )
    return column


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _codes(file: Path, name: str, column: pa.Array, role: str) -> Array:
    """0..C-1 in sorted order of the values."""
    kind = column.type
    if not (_is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"{file}: {role} column {name} has type {kind}",
            why=f"a {role} must be whole numbers, strings or booleans",
            code=f"bad-{role}-type",
        )
    return np.unique(_numpy(column), return_inverse=True)[1].astype(np.int64)


def _feature(file: Path, name: str, column: pa.Array) -> _Feature:
    if _is_text(column.type):
        levels, codes = np.unique(_numpy(column), return_inverse=True)
        if len(levels) > MAX_LEVELS:
            raise DataError(
                f"{file}: column {name} has {len(levels)} different strings, more than {MAX_LEVELS}",
                why="each would become a feature of its own",
                fix="drop the column (is it an identifier?) or merge its levels",
                code="too-many-levels",
            )
        return _Feature(np.eye(len(levels), dtype=np.float32)[codes], one_hot=True)
    try:
        values = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False).astype(np.float32)
    except pa.ArrowException as error:
        raise DataError(
            f"{file}: column {name} has type {column.type}, neither number nor string",
            fix="convert or drop it",
            code="unsupported-column-type",
        ) from error
    return _Feature(values[:, None], one_hot=False)


def _numpy(column: pa.Array) -> Any:
    values = column.to_numpy(zero_copy_only=False)
    return values.astype(str) if _is_text(column.type) else values
