"""Labels that are not classes: numbers, or several labels at once. They are declared, so that no row decides what a
model predicts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sordino.errors import DataError

if TYPE_CHECKING:
    from sordino.data.cells import WithoutGaps
    from sordino.data.dataset import Array
    from sordino.data.schema import Column


class LabelKind(ABC):
    """Base class for labels that are not classes."""

    @abstractmethod
    def read(self, held: WithoutGaps, labels: Sequence[str]) -> Array:
        """One label for each row, from the named columns."""

    @abstractmethod
    def taken(self, y: Array) -> Array | None:
        """Labels from an array in memory, one per row; None if it does not hold labels of this kind."""

    @property
    @abstractmethod
    def range(self) -> tuple[float, float]:
        """The range that a schema must declare for a column of these labels."""


@dataclass(frozen=True)
class Numbers(LabelKind):
    """Labels that are numbers in a declared range; a value outside is clipped to it."""

    low: float
    high: float
    whole: bool = False

    @property
    def range(self) -> tuple[float, float]:
        return self.low, self.high

    def read(self, held: WithoutGaps, labels: Sequence[str]) -> Array:
        (label,) = labels
        values = held.numbers_of(label)
        if self.whole and (wrong := values != np.round(values)).any():
            at = int(np.argmax(wrong))
            raise held.unfit(
                label, float(values[at]), at, "is not a whole number", "correct the row, or predict a number"
            )
        return self._within(values)

    def taken(self, y: Array) -> Array | None:
        sound = y.ndim == 1 and y.dtype.kind in "iufb" and np.isfinite(y).all()
        return self._within(y) if sound and not (self.whole and (y != np.round(y)).any()) else None

    def _within(self, values: Array) -> Array:
        return np.clip(values, self.low, self.high).astype(np.float32)


@dataclass(frozen=True)
class SeveralLabels(LabelKind):
    """Several labels, each present or absent: the i-th column is the i-th bit of a whole number."""

    many: int

    range = 0.0, 1.0

    def read(self, held: WithoutGaps, labels: Sequence[str]) -> Array:
        y = np.zeros(len(held.numbers), np.int64)
        for bit, label in enumerate(labels):
            values = held.numbers_of(label)
            if (wrong := (values != 0) & (values != 1)).any():
                at = int(np.argmax(wrong))
                raise held.unfit(
                    label, float(values[at]), at, "is neither 0 nor 1", "write 1 where a row has the label"
                )
            y |= values.astype(np.int64) << bit
        return y

    def taken(self, y: Array) -> Array | None:
        if y.ndim != 2 or y.shape[1] != self.many or not ((y == 0) | (y == 1)).all():
            return None
        found: Array = (y.astype(np.int64) << np.arange(self.many)).sum(1)
        return found


@dataclass(frozen=True)
class NextTokens(LabelKind):
    """Prediction of the next token: there are no labels, the text itself is what is predicted."""

    vocabulary: int

    range = 0.0, 0.0

    def read(self, held: WithoutGaps, labels: Sequence[str]) -> Array:
        return np.zeros(len(held.numbers), np.int64)

    def taken(self, y: Array) -> Array | None:
        return np.zeros(len(y), np.int64)

    def are_texts(self, x: Array) -> bool:
        """True if inputs are texts: token numbers from 1 on, padded with 0."""
        return x.ndim == 2 and bool(((x == np.floor(x)) & (x >= 0) & (x <= self.vocabulary)).all())

    def check_inputs(self, features: Mapping[str, Column]) -> None:
        """Refuses a table whose inputs are not one text of tokens from this vocabulary."""
        from sordino.data.schema import TokenColumn  # which no receipt needs

        texts = {name: one.vocabulary for name, one in features.items() if isinstance(one, TokenColumn)}
        if [*texts.values()] == [self.vocabulary] and len(features) == 1:
            return
        raise DataError(
            f"the next of {self.vocabulary} tokens cannot be predicted from {', '.join(features)}",
            why="this task reads one column of text with a tokenizer, and no other column"
            + "".join(f"; {name} has {known} different tokens" for name, known in texts.items()),
            fix="".join(
                f"set task.vocabulary = {known}, and declare other columns as ignored" for known in texts.values()
            )
            if len(texts) == 1
            else 'declare in data.schema one column as { kind = "text", tokenizer = "bytes", length = 64 }, and others '
            "as ignored",
            code="schema-disagrees",
        )


def check_outcome(outcome: LabelKind | None, labels: Mapping[str, Column]) -> None:
    """Refuses a schema that contradicts the task about a label."""
    for label, one in labels.items():
        values = f"classes {', '.join(one.words)}" if one.words else f"range [{one.low:g}, {one.high:g}]"
        if outcome is None and not one.words:
            raise DataError(
                f"the task predicts a class, but the schema says {values} of {label}",
                why="a label with a range is a number",
                fix=f'set task = {{name = "regression", range = [{one.low:g}, {one.high:g}]}}, or list its classes',
                code="schema-disagrees",
            )
        if outcome is not None and (one.words or (one.low, one.high) != outcome.range):
            low, high = outcome.range
            raise DataError(
                f"the task predicts a number in [{low:g}, {high:g}], but the schema says {values} of {label}",
                why="the schema and [task] must say the same of a label",
                fix=f'write in the schema: {label} = {{ kind = "label", range = [{low:g}, {high:g}] }}, or correct '
                "[task]",
                code="schema-disagrees",
            )
