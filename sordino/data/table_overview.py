"""Overview of a table for its owner, column by column, with remarks to read before a training. It is computed from the
rows, and does not enter a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sordino.data.cells import TableSource, gaps, is_text, numbers_in, texts
from sordino.data.label_kinds import LabelKind
from sordino.data.schema import TableSchema
from sordino.data.table_files import GivenDialect, TableRows
from sordino.data.table_names import stem_of

LISTED = 6  # words of a column
RARE = 0.01  # of all rows: a class that an accuracy hardly shows
SMALL = 3  # rows of a client, or fewer
MANY_CLASSES = 20


class ColumnFacts(NamedTuple):
    name: str
    kind: str  # as declared, else as read
    can_be: str  # by the schema
    holds: str
    empty: int
    outside: int  # cells that are clipped to the range, or are none of the levels


class TableFacts(NamedTuple):
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
    column, said = rows.column(name), None if schema is None else schema.columns.get(name)
    empty, present = int(gaps(column).sum()), column.drop_null()
    kind = roles.get(name) or ("levels" if is_text(column.type) else "number") if said is None else said.kind
    if kind == "number" or (said is not None and said.kind == "label" and not said.words):
        values = _values(present)
        values = values[np.isfinite(values)]
        holds = f"{values.min():g} to {values.max():g}" if len(values) else "nothing"
        beyond = 0 if said is None else int(((values < said.low) | (values > said.high)).sum())
        can_be = "" if said is None else f"{said.low:g} to {said.high:g}"
        return ColumnFacts(name, kind, can_be, holds, empty, beyond)
    if kind in ("key", "ignored", "text"):
        return ColumnFacts(name, kind, "", "", 0 if kind == "ignored" else empty, 0)
    counts = _counts(present)
    unknown = sum(n for word, n in counts.items() if word not in said.words) if said is not None and said.words else 0
    can_be = "" if said is None else _listed(said.words)
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
    """Count of each word, most frequent first."""
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
    told = _listed([f"{name} ({size})" for name, size in small.items()])
    return [f"clients with {SMALL} rows or fewer can hardly learn or be tested: {told}"]
