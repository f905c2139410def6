"""Columns inferred from a table's rows: as the draft of a schema, for a person to confirm or correct; or for a run
without a schema, which then has no guarantee about a row.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tomli_w

from sordino.data.cells import (
    MAX_LEVELS,
    TableSource,
    WithoutGaps,
    gaps,
    is_text,
    numbers_in,
    numbers_with_commas,
    texts,
    whole,
    without_gaps,
)
from sordino.data.dataset import Array
from sordino.data.schema import BOOLEANS, FEATURES, LISTS, Column, KeyColumn, check_roles
from sordino.data.table_files import AS_SEEN, GivenDialect, TableRows, read
from sordino.errors import DataError

AN_ACCIDENT = 10  # so many different numbers in a column of texts are not its levels
HEAD = """\
# A draft of a schema for {name}, to be confirmed by a person who knows what its columns can hold.
# Looked at: {rows:,} rows of {columns} columns{files}. Levels, classes and ranges were read off the rows.
# But what follows from the rows tells of the rows: a level that one row alone has would be a feature of every model.
# So write here what a column CAN hold, as the form or the device knows it that fills the column; then delete the line
# `draft = true`. Until then real noise (privacy.noise = "system") does not start.
draft = true

[columns]
"""


def draft(
    paths: str | Sequence[str],
    label: str,
    group: str | None = None,
    key: str | None = None,
    written: GivenDialect = AS_SEEN,
) -> str:
    """A draft of a TOML schema, one line for each column."""
    roles = {"label": label, "group": group, "key": key}
    check_roles(roles)
    rows = read(paths, written=written)
    for name in roles.values():
        if name is not None:
            find(rows, name)
    role_of = {key: "key", group: "person" if group == key else "group", label: "label"}
    columns = {name: rows.column(name) for name in rows.table.column_names}
    found = {name: suggested(column, role_of.get(name)) for name, column in columns.items()}
    if not any(column.kind in FEATURES for column, _ in found.values()):
        raise no_features(rows)
    many = len(rows.files)
    files = "" if many == 1 else f" in {many} files"
    own = rows.name if files else rows.files[0].path.name
    lines = [HEAD.format(name=own, rows=rows.table.num_rows, columns=len(columns), files=files)]
    for name, (column, confirm) in found.items():
        empty = int(gaps(columns[name]).sum())
        more = f"; {empty:,} rows have no value" * (empty > 0)
        lines.append(f"{_key(name)} = {{ {_written(column, columns[name].type)} }}  # {confirm}{more}\n")
    return "".join(lines)


def inferred(source: TableSource) -> tuple[WithoutGaps, dict[str, Column]]:
    """The cells of a table without a schema, and the schema that its rows suggest. Ranges of numbers stay open, and
    columns that a person would have to decide on are refused.
    """
    if source.missing == "fill":
        raise DataError(
            'data.missing = "fill" for a table without a schema',
            why="the value for a gap must be declared: a mean or a most frequent value would be learned from rows",
            fix='write a schema (`sordino data schema` drafts it) with missing = VALUE in its columns, or set "drop"',
            code="fill-without-schema",
        )
    rows = source.rows()
    for name in source.roles:
        find(rows, name)
    held = without_gaps(rows, rows.table.column_names, source.missing, {}, never=source.roles)
    roles = {source.labels[0]: "label"} if source.outcome is None else {}
    roles |= {} if source.group is None else {source.group: "group"}
    role_columns = {name: _role(held, name, role) for name, role in roles.items()}
    features = {name: _feature(held, name) for name in held.columns if name not in source.roles}
    if not features:
        raise no_features(rows)
    return held, features | role_columns


def no_features(rows: TableRows) -> DataError:
    return DataError(
        f"{rows.name}: no column is left as a feature",
        fix="give a table with at least one more column",
        why="a model needs at least one column to learn from, beside the label, group and key",
        code="no-features",
    )


def find(rows: TableRows, wanted: str) -> None:
    """Refuses a column name that the table does not have."""
    names = rows.table.column_names
    if wanted in names:
        return
    near = difflib.get_close_matches(wanted, names, n=1)
    dialect = rows.files[0].dialect
    raise DataError(
        f"{rows.name} has no column {wanted!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
        why=f"its columns are: {', '.join(names)}",
        fix="name one of these columns"
        + (f"; or set data.separator: the file was read with {dialect}" if dialect else ""),
        code="unknown-column",
    )


def suggested(column: pa.Array, role: str | None) -> tuple[Column, str]:
    """A schema entry for a column, inferred from its rows, and a note on what a person must confirm."""
    if role == "key":
        most = max(pc.value_counts(column).field("counts").to_pylist(), default=1)
        if most > 1:
            return KeyColumn("key", rows=most), "confirm: the most rows that one person can have; not a feature"
        return Column("key"), "names the row; not a feature"
    if role == "person":
        return Column("group"), "each is a client; not a feature"
    present = (whole(column) if role else column).drop_null()
    words = _words(present) if role or is_text(column.type) else ()
    if role == "label":
        if len(words) > MAX_LEVELS and not is_text(column.type):
            return _number(
                "label", present
            ), 'confirm: the lowest and highest label, for task = {name = "regression", range = ...}'
        return Column("label", words=words), "confirm: are these all the classes that can be?"
    if role == "group":
        return Column("group", words=words), "confirm: all clients, in the order in which they are numbered"
    if is_text(column.type):
        fits = numbers_in(present)
        if len(words) > AN_ACCIDENT and 2 * fits.sum() >= len(fits):
            bad, odd = present[int(np.argmin(fits))].as_py(), int((~fits).sum())
            numbers = pc.utf8_trim_whitespace(present.filter(pa.array(fits)))
            return _number("number", numbers), f"but {odd:,} cells are not numbers, such as {bad!r}"
        if len(words) > MAX_LEVELS:
            confirm = f'more than {MAX_LEVELS} different words: is it an identifier? Free text is kind = "text"'
            return Column("ignored"), confirm
        return Column("levels", words=words), "confirm: all levels that can be; other = one of them takes the rest"
    if pa.types.is_boolean(column.type):
        return Column("boolean"), "true or false"
    if not _numeric(column.type) or not len(values := _finite(present)):
        return Column("ignored"), f"of type {column.type}: neither number nor word"
    if set(values.tolist()) <= set(BOOLEANS.values()):
        return Column("boolean"), "confirm: only 0 and 1"
    return _number("number", present), "confirm: the lowest and the highest value that can be"


def _words(column: pa.Array) -> tuple[str, ...]:
    """The different values in sorted order, as a file spells them."""
    different = pc.unique(column)
    return tuple(word for _, word in sorted(zip(different.to_pylist(), texts(different), strict=True)))


def _numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _number(kind: str, column: pa.Array) -> Column:
    values = _finite(column)
    low, high = outwards(values.min(), values.max())
    return Column(kind, low, high)


def _finite(column: pa.Array) -> Array:
    values: Array = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values[np.isfinite(values)]


def outwards(low: float, high: float) -> Iterator[float]:
    """The two ends of a range, rounded outwards to a step as coarse as their distance allows."""
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
        low, high = low - 1, high + 1
    ends = Decimal(repr(float(low))), Decimal(repr(float(high)))
    step = Decimal(1).scaleb((ends[1] - ends[0]).adjusted())
    for end, how in zip(ends, (ROUND_FLOOR, ROUND_CEILING), strict=True):
        around = (end / step).to_integral_value(how) * step
        yield int(around) if around == int(around) else float(around)


def _written(column: Column, kind: pa.DataType) -> str:
    """A schema entry as TOML; numbers and truth values are written without quotes."""
    declared = f'kind = "{column.kind}"'
    if column.words:
        words = (
            word if not is_text(kind) and re.fullmatch(r"true|false|-?[0-9]+", word) else _toml(word)
            for word in column.words
        )
        return f"{declared}, {LISTS[column.kind][0]} = [{', '.join(words)}]"
    if isinstance(column, KeyColumn):
        return f"{declared}, rows = {column.rows}"
    return declared if column.low == column.high else f"{declared}, range = [{column.low!r}, {column.high!r}]"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: str) -> str:
    return tomli_w.dumps({"v": value}).removeprefix("v = ").strip()


# a run that learns its columns ----------------------------------------------------------------------------------------


def _role(held: WithoutGaps, name: str, role: str) -> Column:
    """The schema entry of a label (with its classes) or of the clients' column (with their names)."""
    column = whole(held.columns[name])
    kind = column.type
    number = pa.types.is_integer(kind)
    regression = 'to predict the number, set task = {name = "regression", range = [LOWEST, HIGHEST]}; or '
    if not (is_text(kind) or number or pa.types.is_boolean(kind)):
        numbers = role == "label" and pa.types.is_floating(kind)
        raise DataError(
            f"{held.rows.name}: {role} column {name} has type {kind}",
            why=f"a {role} must be whole numbers, strings or booleans"
            + ("; this one holds numbers" if numbers else ""),
            fix=regression + "put the numbers into classes (for example low, middle, high), or choose another column"
            if numbers
            else "convert the column, or choose another one",
            code=f"bad-{role}-type",
        )
    words = _words(column)
    if role == "label" and len(words) > MAX_LEVELS:
        raise DataError(
            f"{held.rows.name}: the label {name} has {len(words):,} different values, more than {MAX_LEVELS}",
            why="each of them would be a class",
            fix=regression * number
            + "put them into fewer classes, choose another column, or declare all classes in a schema",
            code="too-many-classes",
        )
    if role == "label" and len(words) < 2:
        raise DataError(
            f"{held.rows.name}: every row has the same {name}",
            fix="choose another column as data.label",
            why="a classifier needs at least two classes",
            code="one-class",
        )
    return Column(role, words=words)


def _feature(held: WithoutGaps, name: str) -> Column:
    column = held.columns[name]
    if _numeric(column.type):
        return Column("number", -math.inf, math.inf)
    guess, _ = suggested(column, None)
    if is_text(column.type) and not 0 < len(guess.words) <= AN_ACCIDENT:
        _check_are_words(held, name, column)
    if guess.kind == "ignored" and is_text(column.type):
        raise DataError(
            f"{held.rows.name}: column {name} has {len(_words(column))} different strings, more than {MAX_LEVELS}",
            why="each of these strings would become a feature",
            fix=f"set data.key = {name!r} if it names the row or its person; else write a schema (`sordino data "
            "schema TABLE --label LABEL` drafts one), in which the number of a case, or a date, is "
            '{ kind = "ignored" } and free text { kind = "text", buckets = 4096, length = 32 }; or merge values',
            code="too-many-levels",
        )
    if guess.kind == "ignored":
        raise DataError(
            f"{held.rows.name}: column {name} has type {column.type}, neither number nor string",
            why="a feature must be a number or a string",
            fix="convert or remove the column",
            code="unsupported-column-type",
        )
    return guess


def _check_are_words(held: WithoutGaps, name: str, column: pa.Array) -> None:
    """Refuses a column of numbers in which a few cells are texts, and which would therefore become a column of
    texts.
    """
    dialect = held.rows.files[0].dialect
    own = "." if dialect is None else dialect.decimal
    for decimal in (own, "," if own == "." else "."):
        fits = numbers_in(column) if decimal == "." else numbers_with_commas(column)
        if 2 * fits.sum() < len(fits):
            continue
        at = int(np.argmin(fits)) if decimal == own else 0
        what, fix = "is not a number, as most cells of its column are", "correct the cell; or empty it and set "
        fix += 'data.missing = "drop"; or declare in a schema that the column has levels'
        if decimal != own:
            what, fix = "is not a number with the decimal mark of this file", f'set data.decimal = "{decimal}"'
        raise held.unfit(name, column[at].as_py(), at, what, fix)
