"""Columns of a table as numbers. Each row is converted by itself according to the schema, so no row influences another.
Without a schema one is inferred from all rows.

A value that the schema does not know (a number beyond its range, an undeclared level) is clipped to the range or
becomes zeros, and is reported to the owner of the rows alone. Many such values at one site mean that its column is not
written as declared, and training is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from sordino.data.cells import TableSource, WithoutGaps, texts, without_gaps
from sordino.data.dataset import Array, check_spellings
from sordino.data.inferred_columns import inferred
from sordino.data.label_kinds import NextTokens, check_outcome
from sordino.data.schema import BOOLEANS, FEATURES, Column, KeyColumn, TableSchema, TextColumn, TokenColumn
from sordino.data.table_files import TableRows
from sordino.errors import DataError

MOST = 0.2  # largest share of a column's values at one site that may be unknown
FEW = 10  # unknown values of one site below which their share means nothing
NAMED = 4  # most sites that a sentence names
WORD = re.compile(r"\w+")
NOTHING = 0  # padding token after the last word of a short text
UNKNOWN = 1  # token of a word that is not in the list


class Feature(NamedTuple):
    """One column of a table, converted to inputs of a model."""

    values: Array  # float32 [n, width]
    middle: float = 0.0
    half: float = 1.0  # values are used as (value - middle) / half
    numbers: bool = False  # numbers may be scaled by their mean and deviation
    unknown: Array | None = None  # bool [n]: values that the schema does not know


class Unknown(NamedTuple):
    """Values in one column of a table that its schema does not allow."""

    column: str
    where: Array  # bool, by row
    cells: Array  # as they are read
    lies: str  # text after their number: what is wrong with them
    becomes: str
    expected: bool = False  # such values are declared, by outside = "move"


class Columns(NamedTuple):
    """Rows of a table as numbers: features, labels and clients of the rows that are kept."""

    features: list[Feature]
    y: Array
    classes: tuple[str, ...]
    group: Array | None
    groups: tuple[str, ...]  # names of the groups
    groups_declared: bool  # False: read off the rows
    keys: list[str] | None  # names of the rows
    kept: Array  # numbers of the rows in the files
    declared: Mapping[str, Column]  # feature columns of the schema
    unknown: tuple[Unknown, ...] = ()


def columns_of(source: TableSource) -> tuple[TableRows, Columns]:
    """The rows of a table, and their columns as numbers."""
    schema, outcome, labels, group, key = source.schema, source.outcome, source.labels, source.group, source.key
    held, columns = inferred(source) if schema is None else _declared(source, schema)
    known = {name: column for name, column in columns.items() if column.kind in FEATURES}
    if isinstance(outcome, NextTokens):
        outcome.check_inputs(known)
    features = {name: as_declared(held, name, one) for name, one in known.items()}
    classes = () if outcome is not None else columns[labels[0]].words
    y = _places(held, labels[0], classes, "class") if outcome is None else outcome.read(held, labels)
    names = () if group is None else columns[group].words or tuple(sorted(set(texts(held.columns[group]))))
    numbers = () if schema is None or outcome is None else labels
    keys = None if key is None else texts(held.columns[key])
    if keys is not None:
        check_spellings(held.rows.name, f"value of {key}", sorted(set(keys)))
    if schema is not None and key is not None:
        _check_rows_per_key(held, key, columns[key])
    return held.rows, Columns(
        list(features.values()),
        y,
        classes,
        None if group is None else _places(held, group, names, "group"),
        names,
        schema is not None and group is not None and bool(columns[group].words),
        keys,
        held.numbers,
        known,
        tuple(unknown_values(held, columns, features, numbers)),
    )


def _declared(source: TableSource, schema: TableSchema) -> tuple[WithoutGaps, Mapping[str, Column]]:
    """The cells of the used columns, and the schema's entries for all columns."""
    labels, columns = source.labels, schema.columns
    _check_roles(schema, {source.key: "key", source.group: "group", **dict.fromkeys(labels, "label")})
    check_outcome(source.outcome, {name: columns[name] for name in labels})
    rows = source.rows()
    _check_names(rows, schema)
    used = [name for name, one in columns.items() if one.kind in FEATURES or name in source.roles]
    fill = {name: one.missing for name, one in columns.items() if one.missing is not None}
    return without_gaps(rows, used, source.missing, fill, source.numbers, never=source.roles), columns


def _check_roles(schema: TableSchema, roles: Mapping[str | None, str]) -> None:
    """Refuses a column whose kind in the schema differs from its role in the experiment. A group that only the schema
    names is unused.
    """
    for name, role in roles.items():
        if name is None:
            continue
        kind = schema.columns[name].kind if name in schema.columns else None
        if kind != role:
            raise DataError(
                f"data.{role} = {name!r}, but the schema "
                + ("does not list this column" if kind is None else f"says that this column is of kind {kind!r}"),
                why=f"the {role} of the schema is {schema.named(role) or 'not declared'}",
                fix=f"write in the schema: {name} = {{ kind = {role!r}, ... }}, or choose another data.{role}",
                code="schema-disagrees",
            )


def _check_rows_per_key(held: WithoutGaps, name: str, column: Column) -> None:
    """Refuses a key with more rows than the schema declares for one person, which a guarantee for persons relies on."""
    if isinstance(column, KeyColumn):
        cells = texts(held.columns[name])
        value, rows = max(Counter(cells).items(), key=itemgetter(1), default=("", 0))
        if rows > column.rows:
            what = f"is in {rows} rows, and the schema allows {column.rows}"
            raise held.unfit(name, value, cells.index(value), what, f"leave rows out, or declare rows = {rows}")


def _check_names(rows: TableRows, schema: TableSchema) -> None:
    present, dialect = rows.table.column_names, rows.files[0].dialect
    if missing := [name for name in schema.columns if name not in present]:
        raise DataError(
            f"{rows.name} lacks {', '.join(missing)}, which the schema declares",
            why=f"its columns are: {', '.join(present)}",
            fix="add the column, or remove it from the schema"
            + (f"; or set data.separator: the file was read with {dialect}" if dialect else ""),
            code="missing-declared-column",
        )
    if unnamed := [name for name in present if name not in schema.columns]:
        raise DataError(
            f"{rows.name} has {', '.join(unnamed)}, which the schema does not list",
            why="a schema must describe every column, so that no column is used by mistake",
            fix=f'add to [columns]: {unnamed[0]} = {{ kind = "ignored" }}, or another kind',
            code="undeclared-column",
        )


def as_declared(held: WithoutGaps, name: str, column: Column) -> Feature:
    """One column converted row by row as its schema entry declares."""
    if column.kind == "number":
        values = held.numbers_of(name)
        beyond = (values < column.low) | (values > column.high)
        if column.strict and beyond.any():
            at = int(np.argmax(beyond))
            raise held.unfit(
                name, float(values[at]), at, f"is not in the declared range [{column.low:g}, {column.high:g}]"
            )
        values = np.clip(values, column.low, column.high).astype(np.float32)
        return Feature(values[:, None], *column.scale, numbers=True, unknown=beyond)
    words = texts(held.columns[name])
    if isinstance(column, TextColumn):
        return Feature(tokens(words, column))
    if column.kind == "boolean":
        truths = [BOOLEANS.get(text.strip().lower()) for text in words]
        if None in truths:
            raise held.unfit(name, words[at := truths.index(None)], at, "is neither true, false, 1 nor 0")
        return Feature(np.array(truths, np.float32)[:, None], *column.scale, numbers=True)
    place = _spelled(column.words)
    nothing = len(column.words) if column.other is None else place[column.other]
    rows = np.eye(len(column.words) + 1, len(column.words), dtype=np.float32)  # the last row is zeros
    found = np.array([place.get(text, nothing) for text in words])
    return Feature(rows[found], unknown=found == len(column.words))


def tokens(texts: Sequence[str], column: TextColumn) -> Array:
    """The first words or tokens of each text as numbers, float32 [n, length]: 0 behind the last one."""
    numbers = _numbering(column)
    found = np.full((len(texts), column.length), NOTHING, np.float32)
    for row, text in enumerate(texts):
        first = numbers(text)[: column.length]
        found[row, : len(first)] = first
    return found


def _numbering(column: TextColumn) -> Callable[[str], Sequence[int]]:
    """The function that numbers the words of a text: tokens, positions in the declared list, or hash buckets."""
    if isinstance(column, TokenColumn):
        return lambda text: [1 + token for token in column.ids(text)[: column.length]]
    places = {word.lower(): place for place, word in enumerate(column.words, start=2)}
    if places:
        return lambda text: [places.get(word, UNKNOWN) for word in WORD.findall(text.lower())]
    return lambda text: [1 + _bucket(word, column.buckets) for word in WORD.findall(text.lower())]


def _bucket(word: str, buckets: int) -> int:
    """The hash bucket of a word, the same on every machine; Python's own hash differs between processes."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little") % buckets


def _spelled(words: Sequence[str]) -> dict[str, int]:
    """The position of each declared word. A cell 1.0 matches the word "1", unless "1.0" is declared: where one row has
    a gap, many programs write all others with a point.
    """
    place = {word: at for at, word in enumerate(words)}
    for word, at in [*place.items()]:
        if word.lstrip("-").isdecimal():
            place.setdefault(f"{word}.0", at)
    return place


def _places(held: WithoutGaps, name: str, words: tuple[str, ...], what: str) -> Array:
    """The position of each cell among the declared words."""
    place = _spelled(words)
    cells = texts(held.columns[name])
    found = [place.get(text) for text in cells]
    if None in found:
        at = found.index(None)
        raise held.unfit(name, cells[at], at, f"is not a {what} that the schema declares: {', '.join(words)}")
    return np.array(found, np.int64)


# values that the schema does not know ---------------------------------------------------------------------------------


def unknown_values(
    held: WithoutGaps, columns: Mapping[str, Column], features: Mapping[str, Feature], labels: Sequence[str]
) -> Iterator[Unknown]:
    """Values of each column, and of numeric `labels`, that are not in the schema."""
    ends = {name: f"lie outside [{one.low:g}, {one.high:g}]" for name, one in columns.items()}
    for name, feature in features.items():
        if feature.unknown is None or not feature.unknown.any():
            continue
        if columns[name].kind == "number":
            values = held.numbers_of(name)
            yield Unknown(name, feature.unknown, values, ends[name], "clipped to the range", columns[name].moved)
        else:
            words, level = np.array(texts(held.columns[name])), "are not a level that the schema declares"
            yield Unknown(name, feature.unknown, words, level, "none of them: all zeros")
    for name in labels:
        values = held.numbers_of(name)
        beyond = (values < columns[name].low) | (values > columns[name].high)
        yield Unknown(name, beyond, values, ends[name], "clipped to the range")


class Owners(NamedTuple):
    """The client, or the file, to which each row of a table belongs."""

    codes: Array
    names: tuple[str, ...]
    named: bool  # False: names stay out of sentences, since an undeclared group may be a person

    @property
    def rows(self) -> Array:
        return np.bincount(self.codes, minlength=len(self.names))

    def counts(self, found: Unknown) -> Array:
        """Number of values, among those not allowed by the schema, in the rows of each client or file."""
        return np.bincount(self.codes[found.where], minlength=len(self.names))


def remarks(found: Sequence[Unknown], owners: Owners) -> tuple[str, ...]:
    """Sentences about values that the schema does not allow, column by column, for the owners of the rows."""
    rows, lines = owners.rows, []
    for one in found:
        counts = owners.counts(one)
        order = [k for k in np.argsort(-counts, kind="stable").tolist() if counts[k]]
        if not order:
            continue
        named = [f"{owners.names[k]} {counts[k]:,} of {rows[k]:,}" for k in order[:NAMED]] if owners.named else []
        at = f" ({', '.join(named)}{', ...' if len(order) > NAMED else ''})" if named else ""
        total = f"{counts.sum():,} of {rows.sum():,} values"
        lines.append(f"{one.column}: {total} {one.lies}{at}: each is {one.becomes}")
    return tuple(lines)


def misfit(found: Sequence[Unknown], owners: Owners) -> DataError | None:
    """The error that refuses training if most values of a column at one site are not in the schema; None otherwise."""
    rows = owners.rows
    for one in found:
        counts = owners.counts(one)
        worst = int(np.argmax(counts / np.maximum(rows, 1) * (counts >= FEW)))
        if one.expected or counts[worst] < FEW or counts[worst] <= MOST * rows[worst]:
            continue
        first = one.cells[int(np.argmax(one.where & (owners.codes == worst)))]
        return DataError(
            f"{owners.names[worst]}: {counts[worst]:,} of {rows[worst]:,} values of {one.column} {one.lies}, such as "
            f"{first.item()!r}",
            why=f"each would silently be {one.becomes}; so many suggest another unit or another spelling, and training "
            "would spend its budget on them",
            fix="write the column as the schema declares it, or correct the schema: a wider range, these levels; a "
            'column that may hold such values says so, with outside = "move" (a number) or other = LEVEL',
            code="values-outside-schema",
        )
    return None
