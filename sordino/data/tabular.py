"""Tables, CSV or parquet: numbers as float32, strings one-hot, a label, and perhaps a client and a key of each row; and
an overview for the owner.

With a `schema` the shape of a row, its scale and the classes are declared and depend on no row: a number outside its
range is clipped to it, an unknown level becomes `other` or zeros, an undeclared class or group is refused.
Without a schema all of this is inferred from all rows.

Where there are several files and no group column, each file is one client, named as the file.

x stays raw. mean and std are for the task to apply: the middle and half the width of a declared range, which gives [-1,
1], or those of the training rows; one-hot features keep mean 0 and std 1, since standardising would blow up rare
levels. Which rows are held back for tests depends on their positions or keys alone.

The overview goes column by column, with remarks to read before a training. It is computed from the rows, and does not
enter a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sordino.data import stem_of
from sordino.data.cells import Missing, TableSource, gaps, is_text, numbers_in, texts
from sordino.data.columns import Columns, Owners, columns_of, misfit, remarks
from sordino.data.dataset import PLACES, Array, Dataset, Split, apart, check_split
from sordino.data.label_kinds import LabelKind
from sordino.data.schema import TableSchema, check_roles
from sordino.data.table_files import GivenDialect, TableRows
from sordino.errors import DataError

DROPPED = "the rows left out for a missing value are treated as public"


def load(
    path: str | Path | Sequence[str] | pa.Table,
    label: str | Sequence[str],
    group: str | None = None,
    key: str | None = None,
    schema: TableSchema | None = None,
    standardise: Literal["fixed", "channel"] | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    missing: Missing = "refuse",
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    outcome: LabelKind | None = None,
) -> Dataset:
    """A table of numbers and categories. `label`, `group` and `key` are not features. `outcome`: the kind of label,
    where it is not a class. Rows with the same key are all for training, or all for testing.

    `standardise`: "fixed" by the declared ranges, "channel" by mean and deviation of the training rows; None: fixed
    where there is a schema.
    """
    labels = (label,) if isinstance(label, str) else tuple(label)
    for name in labels:
        check_roles({"label": name, "group": group, "key": key})
    where = path if isinstance(path, list | tuple | pa.Table) else str(path)
    written = GivenDialect(separator, decimal, encoding)
    rows, found = columns_of(TableSource(where, labels, group, key, schema, missing, written, outcome))
    if group is None and not rows.alone:
        found = _by_file(rows, found)
    x = np.hstack([feature.values for feature in found.features])
    train, test = map(Split(x, found.y, found.group).at, _apart(rows, found, test_fraction, seed))
    widths = [feature.values.shape[1] for feature in found.features]
    mean = np.repeat([feature.middle for feature in found.features], widths)
    std = np.repeat([feature.half for feature in found.features], widths)
    if schema is None or standardise == "channel":
        numbers = np.repeat([feature.numbers for feature in found.features], widths)
        mean = np.where(numbers, train.x.mean(0, dtype=np.float64), mean)
        std = np.where(numbers, train.x.std(0, dtype=np.float64), std)
        std[std == 0] = 1.0
    owners = _owners(rows, found)
    return Dataset(
        stem_of(rows.files[0].path) if rows.alone else rows.files[0].path.parent.name or "tables",
        "table",
        len(found.classes),
        train,
        test,
        tuple(mean.tolist()),
        tuple(std.tolist()),
        names=found.classes,
        taken_as_public=(*([DROPPED] if missing == "drop" else []), *([PLACES] if found.keys is None else [])),
        declared=("" if schema is None else schema.digest) + ("" if outcome is None else repr(outcome)),
        groups=found.groups,
        groups_declared=found.groups_declared,
        columns=found.declared,
        remarks=(*_several(found, key if key != group else None, schema), *remarks(found.unknown, owners)),
        misfit=misfit(found.unknown, owners),
    )


def _several(found: Columns, key: str | None, schema: TableSchema | None) -> tuple[str, ...]:
    """A remark that several rows share a key (such as a person), unless the schema declares how many may."""
    rows = Counter(found.keys or ())
    declared = schema is not None and schema.rows_per_key(key) > 1
    if key is None or declared or (most := max(rows.values(), default=1)) < 2:
        return ()
    many = sum(count > 1 for count in rows.values())
    return (
        f"{key}: {many:,} of {len(rows):,} values stand in several rows, at most in {most}: a promise about one "
        f"example protects one of these rows, and no person as a whole. With rows = {most} beside this key in the "
        f"schema the table of guarantees has a row for all of them; with data.group = {key!r}, too, each is a client, "
        "which a method for clients protects",
    )


def _owners(rows: TableRows, found: Columns) -> Owners:
    """Clients to which rows belong; files, if there is a single client."""
    if found.group is not None:
        return Owners(found.group, found.groups, found.groups_declared)
    return Owners(np.zeros(len(found.kept), np.int64), (rows.files[0].path.name,), True)


def _by_file(rows: TableRows, found: Columns) -> Columns:
    """The columns with each file as one client."""
    names = tuple(stem_of(file.path) for file in rows.files)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(
            f"two files are called {twice!r}",
            why="each file is one client, named after the file",
            fix="rename one of them, or name the column of the clients in data.group",
            code="two-clients-one-name",
        )
    owner = np.searchsorted(rows.starts, found.kept, side="right") - 1
    return found._replace(group=owner.astype(np.int64), groups=names, groups_declared=True)


def _apart(rows: TableRows, found: Columns, test_fraction: float, seed: int) -> tuple[Array, Array]:
    """Splits the kept rows into training and test rows (their positions). Dropping one row does not move another one to
    the other side.
    """
    if found.keys is not None:
        return apart([len(found.y)], found.keys, test_fraction, seed)
    places = apart([file.rows for file in rows.files], None, test_fraction, seed)
    if len(found.kept) == rows.table.num_rows:
        return places
    train, test = (np.flatnonzero(np.isin(found.kept, part, assume_unique=True)) for part in places)
    check_split(len(train), len(test), test_fraction)
    return train, test


LISTED = 6  # words of a column
RARE = 0.01  # share of all rows below which accuracy hardly shows a class
SMALL = 3  # most rows of a client that is reported as small
MANY_CLASSES = 20


class ColumnFacts(NamedTuple):
    """Facts about one column, for `sordino data list EXPERIMENT`."""

    name: str
    kind: str  # as declared, else as read
    can_be: str  # by the schema
    holds: str
    empty: int
    outside: int  # cells that are clipped to the range, or are none of the levels


class TableFacts(NamedTuple):
    """Facts about a table, for `sordino data list EXPERIMENT`."""

    files: list[dict[str, Any]]
    columns: list[ColumnFacts]
    remarks: list[str]


def overview(
    path: str | Sequence[str],
    label: str | Sequence[str],
    group: str | None = None,
    key: str | None = None,
    schema: TableSchema | None = None,
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    outcome: LabelKind | None = None,
    **_: object,
) -> TableFacts:
    """Facts about each column of a table's files, read as a run with these settings would read them."""
    labels = (label,) if isinstance(label, str) else tuple(label)
    written = GivenDialect(separator, decimal, encoding)
    rows = TableSource(path, labels, group, key, schema, written=written, outcome=outcome).rows()
    roles = {name: role for role, name in (("group", group), ("key", key)) if name is not None}
    roles |= dict.fromkeys(labels, "label")
    columns = [_facts(rows, name, roles, schema) for name in rows.table.column_names]
    files = [
        {"name": str(file.path), "rows": file.rows, "written": "" if file.dialect is None else str(file.dialect)}
        for file in rows.files
    ]
    return TableFacts(
        files, columns, [*(_of_classes(rows, labels[0]) if outcome is None else ()), *_of_clients(rows, group)]
    )


def _facts(rows: TableRows, name: str, roles: Mapping[str, str], schema: TableSchema | None) -> ColumnFacts:
    column, declared = rows.column(name), None if schema is None else schema.columns.get(name)
    empty, present = int(gaps(column).sum()), column.drop_null()
    kind = roles.get(name) or ("levels" if is_text(column.type) else "number") if declared is None else declared.kind
    if kind == "number" or (declared is not None and declared.kind == "label" and not declared.words):
        values = _values(present)
        values = values[np.isfinite(values)]
        holds = f"{values.min():g} to {values.max():g}" if len(values) else "nothing"
        beyond = 0 if declared is None else int(((values < declared.low) | (values > declared.high)).sum())
        can_be = "" if declared is None else f"{declared.low:g} to {declared.high:g}"
        return ColumnFacts(name, kind, can_be, holds, empty, beyond)
    if kind in ("key", "ignored", "text"):
        return ColumnFacts(name, kind, "", "", 0 if kind == "ignored" else empty, 0)
    counts = _counts(present)
    known = () if declared is None else declared.words
    unknown = sum(n for word, n in counts.items() if word not in known) if known else 0
    can_be = _listed(known)
    return ColumnFacts(name, kind, can_be, _listed([f"{word}: {n:,}" for word, n in counts.items()]), empty, unknown)


def _values(column: pa.Array) -> Any:
    if is_text(column.type):
        column = pc.utf8_trim_whitespace(column)
        column = column.filter(pa.array(numbers_in(column))) if len(column) else column
    try:
        return pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException:
        return np.empty(0)


def _counts(column: pa.Array) -> dict[str, int]:
    """Number of cells with each value, as text, most frequent first."""
    try:
        words, counts = np.unique(np.array(texts(column), str), return_counts=True)
    except pa.ArrowException:  # neither words nor numbers
        return {}
    order = np.argsort(-counts, kind="stable")
    return {str(words[i]): int(counts[i]) for i in order}


def _listed(words: Sequence[str]) -> str:
    more = f" and {len(words) - LISTED:,} more" if len(words) > LISTED else ""
    return ", ".join(words[:LISTED]) + more


def _of_classes(rows: TableRows, label: str) -> list[str]:
    counts = _counts(rows.column(label).drop_null())
    everything, found = sum(counts.values()), []
    if len(counts) > MANY_CLASSES:
        return [
            f"{len(counts):,} classes: is it a number to be predicted (regression)? Each value is a class of its own"
        ]
    often = next(iter(counts), "")
    for name in (name for name, n in counts.items() if n < RARE * everything):
        found.append(
            f"class {name} has {counts[name]:,} of {everything:,} rows ({counts[name] / everything:.2%}): always to "
            f"answer {often} is right in {counts[often] / everything:.1%} of rows, so compare an accuracy with that"
        )
    several = [word for word in counts if any({*word.split(mark)} - {word} & counts.keys() for mark in "|;,+/")]
    if several:
        found.append(
            f"the label {several[0]} looks like several labels at once: it is a class of its own, beside each of them"
        )
    return found


def _of_clients(rows: TableRows, group: str | None) -> list[str]:
    if group is not None:
        sizes = _counts(rows.column(group).drop_null())
    else:
        sizes = {} if rows.alone else {stem_of(Path(file.path)): file.rows for file in rows.files}
    small = {name: size for name, size in sizes.items() if size <= SMALL}
    if not small:
        return []
    listed = _listed([f"{name} ({size})" for name, size in small.items()])
    return [f"clients with {SMALL} rows or fewer can hardly learn or be tested: {listed}"]
