"""The columns of a table as its schema says, applied to each row by itself: no row has a say in it. Without a schema
one is inferred from all rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

import numpy as np
import pyarrow as pa

from sordino.data.cells import Columns, Feature, Missing, WithoutGaps, texts, without_gaps
from sordino.data.dataset import Array
from sordino.data.inferred_columns import learned
from sordino.data.outcome import LabelKind, check_outcome
from sordino.data.outside import Unknown
from sordino.data.schema import BOOLEANS, FEATURES, Column, KeyColumn, TableSchema, TextColumn
from sordino.data.table_files import TableRows, Written, read
from sordino.data.words import tokens
from sordino.errors import DataError


def columns_of(
    path: str | Sequence[str] | pa.Table,
    schema: TableSchema | None,
    label: Sequence[str],
    group: str | None,
    key: str | None,
    missing: Missing,
    written: Written,
    outcome: LabelKind | None,
) -> tuple[TableRows, Columns]:
    said: Mapping[str, Column]
    if schema is None:
        held, said = learned(path, label, group, key, missing, written, outcome is None)
    else:
        held, said = _declared(path, schema, label, group, key, missing, written, outcome)
    known = {name: column for name, column in said.items() if column.kind in FEATURES}
    features = {name: as_declared(held, name, one) for name, one in known.items()}
    classes = () if outcome is not None else said[label[0]].words
    y = _places(held, label[0], classes, "class") if outcome is None else outcome.read(held, label)
    names = () if group is None else said[group].words or tuple(sorted(set(texts(held.columns[group]))))
    numbers = () if schema is None or outcome is None else label
    if schema is not None and key is not None:
        _check_rows_per_key(held, key, said[key])
    return held.rows, Columns(
        list(features.values()),
        y,
        classes,
        None if group is None else _places(held, group, names, "group"),
        names,
        schema is not None and group is not None and bool(said[group].words),
        None if key is None else texts(held.columns[key]),
        held.numbers,
        known,
        tuple(unknown_values(held, said, features, numbers)),
    )


def _declared(
    path: str | Sequence[str] | pa.Table,
    schema: TableSchema,
    label: Sequence[str],
    group: str | None,
    key: str | None,
    missing: Missing,
    written: Written,
    outcome: LabelKind | None,
) -> tuple[WithoutGaps, Mapping[str, Column]]:
    _check_agreement(schema, {key: "key", group: "group", **dict.fromkeys(label, "label")})
    said = schema.columns
    check_outcome(outcome, {name: said[name] for name in label})
    numbers = [name for name, column in said.items() if column.kind == "number" or (outcome and name in label)]
    ignored = [name for name, column in said.items() if column.kind == "ignored"]
    rows = read(path, tuple(said), written, numbers, ignored)
    _check_columns(rows, schema)
    used = [name for name, one in said.items() if one.kind in FEATURES or name in (*label, group, key)]
    fill = {name: one.missing for name, one in said.items() if one.missing is not None}
    return without_gaps(rows, used, missing, fill, numbers, never=(*label, group, key)), said


def unknown_values(
    held: WithoutGaps, said: Mapping[str, Column], features: Mapping[str, Feature], labels: Sequence[str]
) -> Iterator[Unknown]:
    """`labels`: those that are numbers."""
    ends = {name: f"lie outside [{one.low:g}, {one.high:g}]" for name, one in said.items()}
    for name, feature in features.items():
        if feature.unknown is None or not feature.unknown.any():
            continue
        if said[name].kind == "number":
            values = held.numbers_of(name)
            yield Unknown(name, feature.unknown, values, ends[name], "moved to the nearer end", said[name].moved)
        else:
            words, level = np.array(texts(held.columns[name])), "are no level that the schema declares"
            yield Unknown(name, feature.unknown, words, level, "none of them: all zeros")
    for name in labels:
        values = held.numbers_of(name)
        beyond = (values < said[name].low) | (values > said[name].high)
        yield Unknown(name, beyond, values, ends[name], "moved to the nearer end")


def _check_agreement(schema: TableSchema, roles: Mapping[str | None, str]) -> None:
    """The experiment names the columns, the schema says what they are; a group that only the schema names is unused."""
    for name, role in roles.items():
        if name is None:
            continue
        said = schema.columns[name].kind if name in schema.columns else None
        if said != role:
            raise DataError(
                f"data.{role} = {name!r}, but the schema "
                + ("does not list this column" if said is None else f"says that this column is of kind {said!r}"),
                why=f"the {role} of the schema is {schema.named(role) or 'not declared'}",
                fix=f"write in the schema: {name} = {{ kind = {role!r}, ... }}, or choose another data.{role}",
                code="schema-disagrees",
            )


def _check_rows_per_key(held: WithoutGaps, name: str, said: Column) -> None:
    """Refuses more rows of one person than the promise about a person counts."""
    if isinstance(said, KeyColumn):
        cells = texts(held.columns[name])
        value, rows = max(Counter(cells).items(), key=itemgetter(1), default=("", 0))
        if rows > said.rows:
            what = f"stands in {rows} rows, and the schema allows {said.rows}"
            raise held.unfit(name, value, cells.index(value), what, f"leave rows out, or declare rows = {rows}")


def _check_columns(rows: TableRows, schema: TableSchema) -> None:
    present, dialect = rows.table.column_names, rows.files[0].dialect
    if missing := [name for name in schema.columns if name not in present]:
        raise DataError(
            f"{rows.name} lacks {', '.join(missing)}, which the schema declares",
            why=f"its columns are: {', '.join(present)}",
            fix="add the column, or remove it from the schema"
            + (f"; or say how the file is written, which was read with {dialect}: data.separator" if dialect else ""),
            code="missing-declared-column",
        )
    if unnamed := [name for name in present if name not in schema.columns]:
        raise DataError(
            f"{rows.name} has {', '.join(unnamed)}, which the schema does not list",
            why="a schema must say of every column what it holds, so that no column is used by mistake",
            fix=f'add to [columns]: {unnamed[0]} = {{ kind = "ignored" }}, or another kind',
            code="undeclared-column",
        )


def as_declared(held: WithoutGaps, name: str, said: Column) -> Feature:
    if said.kind == "number":
        values = held.numbers_of(name)
        beyond = (values < said.low) | (values > said.high)
        if said.strict and beyond.any():
            at = int(np.argmax(beyond))
            raise held.unfit(name, float(values[at]), at, f"is not in the declared range [{said.low:g}, {said.high:g}]")
        values = np.clip(values, said.low, said.high).astype(np.float32)
        return Feature(values[:, None], *said.scale, numbers=True, unknown=beyond)
    words = texts(held.columns[name])
    if isinstance(said, TextColumn):
        return Feature(tokens(words, said))
    if said.kind == "boolean":
        truths = [BOOLEANS.get(text.strip().lower()) for text in words]
        if None in truths:
            raise held.unfit(name, words[at := truths.index(None)], at, "is neither true, false, 1 nor 0")
        return Feature(np.array(truths, np.float32)[:, None], *said.scale, numbers=True)
    place = {level: at for at, level in enumerate(said.words)}
    nothing = len(said.words) if said.other is None else place[said.other]
    rows = np.eye(len(said.words) + 1, len(said.words), dtype=np.float32)  # the last one is empty
    found = np.array([place.get(text, nothing) for text in words])
    return Feature(rows[found], unknown=found == len(said.words))


def _places(held: WithoutGaps, name: str, words: tuple[str, ...], what: str) -> Array:
    """The place of each cell among the declared words; 1.0 is the word 1, if 1.0 is none."""
    place = {word: at for at, word in enumerate(words)}
    for word, at in [*place.items()]:
        if word.lstrip("-").isdecimal():
            place.setdefault(f"{word}.0", at)
    cells = texts(held.columns[name])
    found = [place.get(text) for text in cells]
    if None in found:
        at = found.index(None)
        raise held.unfit(name, cells[at], at, f"is no {what} that the schema declares: {', '.join(words)}")
    return np.array(found, np.int64)
