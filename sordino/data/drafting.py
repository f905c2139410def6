"""The draft of a schema: what a table's rows suggest, for a person to confirm or correct. It says so itself."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tomli_w

from sordino.data.tabular import BOOLEANS, MAX_LEVELS, check_roles, find, is_text, read
from sordino.errors import DataError

HEAD = """\
# A draft of a schema for {name}, for somebody to confirm who knows what its columns can hold.
# Looked at: {rows:,} rows of {columns} columns. Levels and classes were read off the rows, ranges rounded outwards.
# But what follows from the rows tells of the rows: a level that one row alone has would be a feature of every model.
# So write here what a column CAN hold, as the form or the device knows it that fills the column; then delete the line
# `draft = true`. Until then real noise (privacy.noise = "system") does not start.
draft = true

[columns]
"""


def draft(path: str | Path, label: str, group: str | None = None, key: str | None = None) -> str:
    """The text of a TOML schema, line by line as the columns come."""
    file = Path(path).expanduser()
    roles = {"label": label, "group": group, "key": key}
    check_roles(file, roles)
    table = read(file)
    columns = {name: _decoded(table.column(name).combine_chunks()) for name in table.column_names}
    for name in roles.values():
        if name is not None:
            find(file, columns, name)
    said = {name: role for role, name in roles.items()}
    lines = [(_key(name), *_suggested(column, said.get(name))) for name, column in columns.items()]
    if not any(kind in told for _, told, _ in lines for kind in ('"number"', '"levels"', '"boolean"')):
        raise DataError(
            f"{file}: no column is left as a feature",
            fix="give a table with at least one more column",
            why="a model needs at least one column to learn from, beside the label, group and key",
            code="no-features",
        )
    head = HEAD.format(name=file.name, rows=table.num_rows, columns=len(columns))
    return head + "".join(f"{name} = {{ {told} }}  # {confirm}\n" for name, told, confirm in lines)


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _suggested(column: pa.Array, role: str | None) -> tuple[str, str]:
    """What is said of a column, and what to confirm."""
    if role == "key":
        return 'kind = "key"', "names the row, and is no feature"
    present = column.drop_null()
    words = _words(present) if role or is_text(column.type) else []
    if role == "label":
        return f'kind = "label", classes = {_toml(words)}', "confirm: are these all the classes that can be?"
    if role == "group":
        return (
            f'kind = "group", names = {_toml(words)}',
            "confirm: all clients, in the order in which they are numbered",
        )
    if is_text(column.type):
        if len(words) > MAX_LEVELS:
            return 'kind = "ignored"', f"more than {MAX_LEVELS} different words: is it an identifier?"
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
    return (
        f'kind = "number", range = {_toml(outwards(values.min(), values.max()))}',
        "confirm: the lowest and the highest value that can be",
    )


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
