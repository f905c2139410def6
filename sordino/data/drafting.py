"""The draft of a schema: what a table's rows suggest, for a person to confirm or correct. It says so itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import tomli_w

from sordino.data.cells import MAX_LEVELS, gaps, is_text, numbers_in, whole
from sordino.data.learned_columns import AN_ACCIDENT, find, no_features
from sordino.data.schema import BOOLEANS
from sordino.data.table_files import AS_SEEN, Written, read
from sordino.data.tabular import check_roles

HEAD = """\
# A draft of a schema for {name}, for somebody to confirm who knows what its columns can hold.
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
    written: Written = AS_SEEN,
) -> str:
    """The text of a TOML schema, line by line as the columns come."""
    roles = {"label": label, "group": group, "key": key}
    check_roles(roles)
    rows = read(paths, written=written)
    for name in roles.values():
        if name is not None:
            find(rows, name)
    said = {key: "key", group: "person" if group == key else "group", label: "label"}
    lines = []
    for name in rows.table.column_names:
        told, confirm = _suggested(column := rows.column(name), said.get(name))
        empty = int(gaps(column).sum())
        lines.append((_key(name), told, confirm + f"; {empty:,} rows have no value" * (empty > 0)))
    if not any(kind in told for _, told, _ in lines for kind in ('"number"', '"levels"', '"boolean"')):
        raise no_features(rows)
    many = len(rows.files)
    files = "" if many == 1 else f" in {many} files"
    columns = rows.table.num_columns
    head = HEAD.format(
        name=rows.name if files else rows.files[0].path.name, rows=rows.table.num_rows, columns=columns, files=files
    )
    return head + "".join(f"{name} = {{ {told} }}  # {confirm}\n" for name, told, confirm in lines)


def _suggested(column: pa.Array, role: str | None) -> tuple[str, str]:
    """What is said of a column, and what to confirm."""
    if role == "key":
        return 'kind = "key"', "names the row, and is no feature"
    if role == "person":
        return 'kind = "group"', "each is a client, and is no feature"
    present = (whole(column) if role else column).drop_null()
    words = _words(present) if role or is_text(column.type) else []
    if role == "label":
        if len(words) > MAX_LEVELS and not is_text(column.type):
            told, confirm = _numeric(np.array(present.to_pylist(), np.float64), "confirm: the lowest and highest label")
            return told.replace("number", "label"), f'{confirm}, for task = {{name = "regression", range = ...}}'
        return f'kind = "label", classes = {_toml(words)}', "confirm: are these all the classes that can be?"
    if role == "group":
        return (
            f'kind = "group", names = {_toml(words)}',
            "confirm: all clients, in the order in which they are numbered",
        )
    if is_text(column.type):
        fits = numbers_in(present)
        if len(words) > AN_ACCIDENT and 2 * fits.sum() >= len(fits):
            values = np.array([text for text, fit in zip(present.to_pylist(), fits, strict=True) if fit], np.float64)
            bad, odd = present[int(np.argmin(fits))].as_py(), int((~fits).sum())
            return _numeric(values, f"but {odd:,} cells are no numbers, {bad!r} is one")
        if len(words) > MAX_LEVELS:
            return (
                'kind = "ignored"',
                f'more than {MAX_LEVELS} different words: is it an identifier? Free text is kind = "text"',
            )
        return (
            f'kind = "levels", levels = {_toml(words)}',
            "confirm: all levels that can be; other = one of them takes the rest",
        )
    numeric = pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)
    if pa.types.is_boolean(column.type):
        return 'kind = "boolean"', "true or false"
    values = np.array(present.to_pylist(), np.float64) if numeric else np.empty(0)
    values = values[np.isfinite(values)]
    if not len(values):
        return 'kind = "ignored"', f"of type {column.type}: neither number nor word"
    if set(values.tolist()) <= set(BOOLEANS.values()):
        return 'kind = "boolean"', "confirm: only 0 and 1"
    return _numeric(values, "confirm: the lowest and the highest value that can be")


def _numeric(values: Any, confirm: str) -> tuple[str, str]:
    return f'kind = "number", range = {_toml(outwards(values.min(), values.max()))}', confirm


def _words(column: pa.Array) -> list[Any]:
    return sorted({value if isinstance(value, bool | int) else str(value) for value in column.to_pylist()})


def outwards(low: float, high: float) -> list[float]:
    """Round numbers around both ends, as coarse as their distance allows."""
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
        low, high = low - 1, high + 1
    ends = Decimal(repr(float(low))), Decimal(repr(float(high)))
    step = Decimal(1).scaleb((ends[1] - ends[0]).adjusted())
    around = [
        (end / step).to_integral_value(how) * step for end, how in zip(ends, (ROUND_FLOOR, ROUND_CEILING), strict=True)
    ]
    return [int(end) if end == int(end) else float(end) for end in around]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").strip()
