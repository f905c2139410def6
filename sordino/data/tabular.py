"""One CSV or parquet table: numbers as float32, strings one-hot, a label, maybe a client, maybe a name of the row.

With a `schema` the shape of a row, its scale and the classes are what was declared, and no row has a say in them: a
number beyond its range is moved to the nearer end, an unknown level is `other` or nothing, a class or a group that
nobody declared is refused. Without one all of this is learned from all rows.

x stays raw. mean and std are for the task to apply: the middle and half the width of a declared range, which gives
[-1, 1], or those of the training rows; one-hot features keep mean 0 and std 1, since standardising would blow up rare
levels. Rows are held back for tests by their place or key alone.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from sordino.data.dataset import Array, Dataset, Split, apart
from sordino.data.schema import Column, TableSchema
from sordino.errors import DataError

MAX_LEVELS = 64
BOOLEANS = {"true": 1.0, "1": 1.0, "false": 0.0, "0": 0.0}


def _read_csv(file: Path, as_text: Sequence[str] = ()) -> pa.Table:
    # an empty string is a missing value, not a level of its own
    options = csv.ConvertOptions(strings_can_be_null=True, column_types=dict.fromkeys(as_text, pa.string()))
    return csv.read_csv(file, convert_options=options)


def _read_parquet(file: Path, as_text: Sequence[str] = ()) -> pa.Table:
    return pq.read_table(file)  # which says itself what its columns are


READERS: Mapping[str, Callable[[Path, Sequence[str]], pa.Table]] = {".csv": _read_csv, ".parquet": _read_parquet}


class Feature(NamedTuple):
    """What one column gives the model."""

    values: Array  # float32 [n, width]
    middle: float = 0.0
    half: float = 1.0  # values are used as (value - middle) / half
    numbers: bool = False  # may they be scaled by their mean and deviation?


class Columns(NamedTuple):
    features: list[Feature]
    y: Array
    classes: tuple[str, ...]
    group: Array | None
    keys: list[str] | None  # the names of the rows
    said: Mapping[str, Column]  # what the columns of the features hold


def load(
    path: str | Path,
    label: str,
    group: str | None = None,
    key: str | None = None,
    schema: TableSchema | None = None,
    standardise: Literal["fixed", "channel"] | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """A table of numbers and categories. label, group and key are no features. Rows with the same key stay together:
    all train, or all test.

    `standardise`: "fixed" by the declared ranges, "channel" by mean and deviation of the training rows; None: fixed
    where there is a schema.
    """
    file = Path(path).expanduser()
    check_roles(file, {"label": label, "group": group, "key": key})
    if schema is None:
        found = _learned(file, label, group, key)
    else:
        found = _declared(file, schema, label, group, key)
    x = np.hstack([feature.values for feature in found.features])
    train, test = (
        Split(x[rows], found.y[rows], None if found.group is None else found.group[rows])
        for rows in apart(len(x), found.keys, test_fraction, seed)
    )
    widths = [feature.values.shape[1] for feature in found.features]
    mean = np.repeat([feature.middle for feature in found.features], widths)
    std = np.repeat([feature.half for feature in found.features], widths)
    if schema is None or standardise == "channel":
        numbers = np.repeat([feature.numbers for feature in found.features], widths)
        mean = np.where(numbers, train.x.mean(0, dtype=np.float64), mean)
        std = np.where(numbers, train.x.std(0, dtype=np.float64), std)
        std[std == 0] = 1.0
    scale = tuple(mean.tolist()), tuple(std.tolist())
    declared = "" if schema is None else schema.digest
    about = {"names": found.classes, "declared": declared, "columns": found.said}
    return Dataset(file.stem, "table", len(found.classes), train, test, *scale, **about)  # type: ignore[arg-type]


def check_roles(file: Path, roles: Mapping[str, str | None]) -> None:
    given = {role: name for role, name in roles.items() if name is not None}
    for role, name in given.items():
        if others := [other for other in given if other != role and given[other] == name]:
            raise DataError(
                f"{file}: column {name} is both the {role} and the {others[0]}",
                why="a column has one role: what is predicted (label), who holds the row (group), or what names the "
                "row (key)",
                fix=f"choose another column as data.{role} or data.{others[0]}, or leave data.{others[-1]} out",
                code="one-column-two-roles",
            )


# what the rows themselves say -----------------------------------------------------------------------------------------


def _learned(file: Path, label: str, group: str | None, key: str | None) -> Columns:
    table = read(file, () if key is None else (key,))
    columns = {name: _column(file, table, name) for name in table.column_names}
    keys = None if key is None else texts_of(find(file, columns, key))
    classes, y = _codes(file, label, find(file, columns, label), "label")
    clients = None if group is None else _codes(file, group, find(file, columns, group), "group")[1]
    if len(classes) < 2:
        raise DataError(
            f"{file}: every row has the same {label}",
            fix="choose another column as data.label",
            why="with one class there is nothing to tell apart",
            code="one-class",
        )
    features = {
        name: _feature(file, name, column) for name, column in columns.items() if name not in (label, group, key)
    }
    if not features:
        raise DataError(
            f"{file}: no column is left as a feature",
            fix="give a table with at least one more column",
            why="a model needs at least one column to learn from, beside the label, group and key",
            code="no-features",
        )
    said = {name: what for name, (_, what) in features.items()}
    return Columns([feature for feature, _ in features.values()], y, classes, clients, keys, said)


def read(file: Path, as_text: Sequence[str] = ()) -> pa.Table:
    """The table in a file. A CSV file does not say what its columns are, so these columns are read as they are
    written.
    """
    if file.suffix not in READERS:
        raise DataError(
            f"{file}: sordino does not read {file.suffix or 'files without a suffix'}",
            fix=f"use a file that ends in {' or '.join(READERS)}",
            code="unknown-table-format",
        )
    if not file.is_file():
        raise DataError(f"there is no file {file}", fix="check the path", code="missing-file")
    try:
        table = READERS[file.suffix](file, as_text)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{file} cannot be read",
            why=str(error),
            fix="check that the file is complete and of the kind that its name says",
            code="corrupt-table",
        ) from error
    if not table.num_rows:
        raise DataError(
            f"{file} holds no rows",
            fix="check how the file was written",
            why="a data set needs at least one row",
            code="empty-table",
        )
    if len(set(table.column_names)) < table.num_columns:
        raise DataError(
            f"{file}: two columns have the same name",
            why="a column is found by its name",
            fix="rename one of them",
            code="repeated-column-name",
        )
    return table


def find(file: Path, columns: dict[str, pa.Array], wanted: str) -> pa.Array:
    if wanted not in columns:
        near = difflib.get_close_matches(wanted, columns, n=1)
        raise DataError(
            f"{file} has no column {wanted!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
            why=f"its columns are: {', '.join(columns)}",
            fix="name one of these columns",
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
            f"{file}: column {name} has no finite number in {missing} rows",
            why="values are missing, NaN or infinite there, and sordino does not guess values",
            fix="fill in these values, or remove the rows",
            code="missing-values",
        )
    return column


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _codes(file: Path, name: str, column: pa.Array, role: str) -> tuple[tuple[str, ...], Array]:
    """The values in sorted order, and 0..C-1 for each row."""
    kind = column.type
    if not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"{file}: {role} column {name} has type {kind}",
            why=f"a {role} must be whole numbers, strings or booleans",
            fix="convert the column, or choose another one",
            code=f"bad-{role}-type",
        )
    values, codes = np.unique(_numpy(column), return_inverse=True)
    return tuple(map(str, values.tolist())), codes.astype(np.int64)


def _feature(file: Path, name: str, column: pa.Array) -> tuple[Feature, Column]:
    """What a column gives the model, and what a schema that says so would say of it."""
    if is_text(column.type):
        levels, codes = np.unique(_numpy(column), return_inverse=True)
        if len(levels) > MAX_LEVELS:
            raise DataError(
                f"{file}: column {name} has {len(levels)} different strings, more than {MAX_LEVELS}",
                why="each of these strings would become a feature",
                fix="remove the column if it is an identifier, or merge some of its values",
                code="too-many-levels",
            )
        words = Column("levels", words=tuple(levels.tolist()))
        return Feature(np.eye(len(levels), dtype=np.float32)[codes]), words
    try:
        values = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False).astype(np.float32)
    except pa.ArrowException as error:
        raise DataError(
            f"{file}: column {name} has type {column.type}, neither number nor string",
            why="a feature must be a number or a string",
            fix="convert or remove the column",
            code="unsupported-column-type",
        ) from error
    said = Column("boolean") if pa.types.is_boolean(column.type) else Column("number", -math.inf, math.inf)
    return Feature(values[:, None], numbers=True), said


def _numpy(column: pa.Array) -> Any:
    values = column.to_numpy(zero_copy_only=False)
    return values.astype(str) if is_text(column.type) else values


def texts_of(column: pa.Array) -> list[str]:
    texts: list[str] = pc.cast(column, pa.string()).to_pylist()
    return texts


# what was declared ----------------------------------------------------------------------------------------------------


def _declared(file: Path, schema: TableSchema, label: str, group: str | None, key: str | None) -> Columns:
    _check_agreement(file, schema, {"label": label, "group": group, "key": key})
    table = read(file, tuple(schema.columns))
    _check_columns(file, schema, table.column_names)
    columns = {
        name: _column(file, table, name)
        for name, said in schema.columns.items()
        if said.kind != "ignored" and (said.kind not in ("group", "key") or name in (group, key))
    }
    classes = schema.columns[label].words
    return Columns(
        [as_declared(file, name, columns[name], said) for name, said in schema.features.items()],
        _places(file, label, texts_of(columns[label]), classes, "class"),
        classes,
        None if group is None else _groups(file, group, columns[group], schema.columns[group].words),
        None if key is None else texts_of(columns[key]),
        schema.features,
    )


def _check_agreement(file: Path, schema: TableSchema, roles: Mapping[str, str | None]) -> None:
    """The experiment names the columns, the schema says what they are; a group that only the schema names is unused."""
    for role, name in roles.items():
        if name is None:
            continue
        said = schema.columns[name].kind if name in schema.columns else None
        if said != role:
            raise DataError(
                f"{file}: data.{role} = {name!r}, but the schema "
                + ("does not list this column" if said is None else f"says that this column is of kind {said!r}"),
                why=f"the {role} of the schema is {schema.named(role) or 'not declared'}",
                fix=f"write in the schema: {name} = {{ kind = {role!r}, ... }}, or choose another data.{role}",
                code="schema-disagrees",
            )


def _check_columns(file: Path, schema: TableSchema, present: Sequence[str]) -> None:
    if missing := [name for name in schema.columns if name not in present]:
        raise DataError(
            f"{file} lacks {', '.join(missing)}, which the schema declares",
            why=f"its columns are: {', '.join(present)}",
            fix="add the column, or remove it from the schema",
            code="missing-declared-column",
        )
    if unnamed := [name for name in present if name not in schema.columns]:
        raise DataError(
            f"{file} has {', '.join(unnamed)}, which the schema does not list",
            why="a schema must say of every column what it holds, so that no column is used by mistake",
            fix=f'add to [columns]: {unnamed[0]} = {{ kind = "ignored" }}, or another kind',
            code="undeclared-column",
        )


def as_declared(file: Path, name: str, column: pa.Array, said: Column) -> Feature:
    if said.kind == "number":
        values = np.clip(_numbers(file, name, column), said.low, said.high).astype(np.float32)
        return Feature(values[:, None], (said.low + said.high) / 2, (said.high - said.low) / 2, numbers=True)
    texts = texts_of(column)
    if said.kind == "boolean":
        truths = [BOOLEANS.get(text.strip().lower()) for text in texts]
        if None in truths:
            raise unfit(file, name, texts, truths.index(None), "is neither true, false, 1 nor 0")
        return Feature(np.array(truths, np.float32)[:, None], 0.5, 0.5, numbers=True)
    place = {level: at for at, level in enumerate(said.words)}
    nothing = len(said.words) if said.other is None else place[said.other]
    rows = np.eye(len(said.words) + 1, len(said.words), dtype=np.float32)  # the last one is empty
    return Feature(rows[[place.get(text, nothing) for text in texts]])


def _numbers(file: Path, name: str, column: pa.Array) -> Array:
    """float64, finite."""
    if is_text(column.type):
        column = pc.utf8_trim_whitespace(column)
    try:
        values: Array = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException:
        texts = [] if not is_text(column.type) else column.to_pylist()
        at = next((at for at, text in enumerate(texts) if not _is_number(text)), None)
        if at is None:
            raise DataError(
                f"{file}: column {name} has type {column.type}, but the schema says that it holds numbers",
                why="only numbers, or texts that are numbers, can be read as numbers",
                fix="convert the column, or declare it as ignored in the schema",
                code="unsupported-column-type",
            ) from None
        raise unfit(file, name, texts, at, "is no number") from None
    if not (finite := np.isfinite(values)).all():
        raise unfit(file, name, texts_of(column), int(np.argmin(finite)), "is not finite")
    return values


def _is_number(text: str) -> bool:
    try:
        pc.cast(pa.scalar(text), pa.float64())
    except pa.ArrowException:
        return False
    return True


def _groups(file: Path, name: str, column: pa.Array, names: tuple[str, ...]) -> Array:
    """Codes in the order of the declared names, or, where none are declared, in that of their own."""
    texts = texts_of(column)
    return _places(file, name, texts, names or tuple(sorted(set(texts))), "group")


def _places(file: Path, name: str, texts: list[str], words: tuple[str, ...], what: str) -> Array:
    place = {word: at for at, word in enumerate(words)}
    found = [place.get(text) for text in texts]
    if None in found:
        raise unfit(file, name, texts, found.index(None), f"is no {what} that the schema declares: {', '.join(words)}")
    return np.array(found, np.int64)


def unfit(file: Path, name: str, texts: Sequence[str], at: int, what: str) -> DataError:
    return DataError(
        f"{file}: {name} = {texts[at]!r} {what} (row {at + 1} after the header)",
        why="sordino does not guess values, and it never drops a row silently",
        fix="correct or remove the row, or declare in the schema what the column can hold",
        code="row-does-not-fit",
    )
