"""Values that the schema does not know: a number beyond its range is moved, an unknown level becomes nothing. Told to
whoever holds the rows, and to nobody else; no training begins where they are so many that a site writes the column in
its own way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sordino.data.dataset import Array
from sordino.errors import DataError

MOST = 0.2  # of a column's values at one site
FEW = 10  # values at one site: a share of so few says nothing
NAMED = 4  # sites in a sentence


class Unknown(NamedTuple):
    """One column."""

    column: str
    where: Array  # of each row: is its value unknown?
    cells: Array  # as they are read
    lies: str  # what is the matter with such a value, behind a number of them
    becomes: str
    expected: bool = False  # does the schema say that there are such values?


class Owners(NamedTuple):
    """Names of those who hold the rows, as far as they are known."""

    codes: Array
    names: tuple[str, ...]
    told: bool  # may names be said? A group that nobody declared may be a person

    @property
    def rows(self) -> Array:
        return np.bincount(self.codes, minlength=len(self.names))

    def counts(self, found: Unknown) -> Array:
        """Unknown values of each."""
        return np.bincount(self.codes[found.where], minlength=len(self.names))


def remarks(found: Sequence[Unknown], owners: Owners) -> tuple[str, ...]:
    """Sentences on unknown values, column by column."""
    rows, said = owners.rows, []
    for one in found:
        counts = owners.counts(one)
        order = [k for k in np.argsort(-counts, kind="stable").tolist() if counts[k]]
        if not order:
            continue
        named = [f"{owners.names[k]} {counts[k]:,} of {rows[k]:,}" for k in order[:NAMED]] if owners.told else []
        at = f" ({', '.join(named)}{', ...' if len(order) > NAMED else ''})" if named else ""
        total = f"{counts.sum():,} of {rows.sum():,} values"
        said.append(f"{one.column}: {total} {one.lies}{at}: each is {one.becomes}")
    return tuple(said)


def misfit(found: Sequence[Unknown], owners: Owners) -> DataError | None:
    """Why no training may begin: a site has a column whose values the schema mostly does not know."""
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
            why=f"each would silently be {one.becomes}; so many are another unit, or another way to write the same, "
            "and a training would spend its budget on them",
            fix="write the column as the schema declares it, or declare what it holds: a wider range, these levels; a "
            'column that may hold such values says it, with outside = "move" (a number) or other = LEVEL',
            code="values-outside-schema",
        )
    return None
