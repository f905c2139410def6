"""Tasks, the learning problems: networks, losses and kinds of labels.

Prediction problems, as [task] of an experiment declares them. Everything that shapes a loss is declared there: none
of it is learned from rows, because no budget would pay for that.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from sordino.data.label_kinds import LabelKind, NextTokens, Numbers, SeveralLabels
from sordino.errors import COUNT, ConfigError, Range

if TYPE_CHECKING:
    from torch import nn

    from sordino.tasks.language import LanguageModel
    from sordino.tasks.losses import LossFunction
    from sordino.tasks.network import InputSettings
    from sordino.tasks.supervised import Classification, MultiLabel, Regression, Supervised

MOST_LABELS = 62  # a label is a bit of a whole number


class Problem(ABC):
    """Kind of prediction, with its labels, outputs and loss."""

    @property
    @abstractmethod
    def needs_task_loss(self) -> str:
        """Reason why a method with its own losses cannot train this problem; "" where it can."""

    @property
    def outcome(self) -> LabelKind | None:
        """The kind of label; None for classes."""
        return None

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the label columns, none where there is no label; None if data.label names the column."""
        return None

    @abstractmethod
    def outputs(self, classes: int) -> int:
        """Number of network outputs for an example, with a single head."""

    @abstractmethod
    def built(
        self, net: nn.Module, inputs: InputSettings, loss: LossFunction | None, classes: Sequence[str]
    ) -> Supervised:
        """The network with its loss; `loss` is a user's own, which replaces the usual one."""


@dataclass(frozen=True)
class Classify(Problem):
    """Classification: one class of several."""

    class_weights: dict[str, float] | tuple[float, ...] | str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.class_weights, str):
            raise ConfigError(
                f"task.class_weights = {self.class_weights!r}",
                why="the clients' secret rows decide how often a class occurs, and no budget pays for counting it",
                fix="declare numbers: task.class_weights = {ill = 5.0, well = 1.0}, or a list in the order of the "
                "classes",
                code="weights-from-rows",
            )
        numbers = self.class_weights.values() if isinstance(self.class_weights, Mapping) else self.class_weights or ()
        if wrong := [weight for weight in numbers if not 0 < weight < math.inf]:
            raise ConfigError(
                f"task.class_weights has {wrong[0]!r}",
                why="a weight is a finite number above 0",
                fix="to ignore a class, leave it out of the data",
                code="bad-class-weight",
            )

    @property
    def needs_task_loss(self) -> str:
        return "" if self.class_weights is None else "class weights"

    def outputs(self, classes: int) -> int:
        return classes

    def built(
        self, net: nn.Module, inputs: InputSettings, loss: LossFunction | None, classes: Sequence[str]
    ) -> Classification:
        from sordino.tasks.losses import WeightedCrossEntropy
        from sordino.tasks.supervised import Classification

        if self.class_weights is not None:
            if loss is not None:
                raise ConfigError(
                    "task.class_weights beside a loss of your own",
                    why="weights multiply the cross-entropy of an example, which your loss replaces",
                    fix="weigh examples inside your loss, or leave one of them out",
                    code="weights-and-own-loss",
                )
            loss = WeightedCrossEntropy(self._weights(classes))
        return Classification(net, **inputs._asdict(), labels=len(classes), loss=loss)

    def _weights(self, classes: Sequence[str]) -> list[float]:
        """The weight of each class, in the order of `classes`."""
        given = self.class_weights
        if isinstance(given, Mapping) and given.keys() == set(classes):
            return [given[name] for name in classes]
        if isinstance(given, tuple) and len(given) == len(classes):
            return list(given)
        raise ConfigError(
            f"task.class_weights = {given!r}",
            why=f"each class needs one weight, and the classes are {', '.join(classes)}",
            fix="name all of them: " + ", ".join(f"{name} = 1.0" for name in classes),
            code="weights-do-not-fit",
        )


@dataclass(frozen=True)
class Regress(Problem):
    """Regression: a number in a declared range."""

    range: tuple[float, float]
    loss: Literal["squared", "huber"] = "squared"
    bend: float | None = None

    needs_task_loss = "regression"

    def __post_init__(self) -> None:
        low, high = self.range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(
                f"task.range = {list(self.range)}",
                why="the label is scaled by its declared range, and a number outside it is clipped to it",
                fix="set [lowest, highest], two numbers of which the first is smaller",
                code="bad-label-range",
            )
        if (self.loss == "huber") != (self.bend is not None) or not (self.bend is None or 0 < self.bend < math.inf):
            raise ConfigError(
                f"task.bend = {self.bend} with task.loss = {self.loss!r}",
                why="it is the distance, in the unit of the label, beyond which the Huber loss is linear",
                fix='set a number above 0 with task.loss = "huber", and none with "squared"',
                code="bad-huber-bend",
            )

    @property
    def outcome(self) -> LabelKind:
        return Numbers(*self.range)

    def outputs(self, classes: int) -> int:
        return 1

    def built(
        self, net: nn.Module, inputs: InputSettings, loss: LossFunction | None, classes: Sequence[str]
    ) -> Regression:
        from sordino.tasks.losses import Huber, Squared
        from sordino.tasks.supervised import Regression

        low, high = self.range
        usual = Squared(low, high) if self.bend is None else Huber(low, high, self.bend / ((high - low) / 2))
        return Regression(net, inputs, loss or usual, self.range, lambda z: z * usual.half + usual.middle)


@dataclass(frozen=True)
class Count(Problem):
    """Count regression: a whole number of events, from 0 to a declared maximum."""

    most: Annotated[int, COUNT]  # larger counts are clipped to it, and the rate never exceeds it

    needs_task_loss = "counts"

    @property
    def outcome(self) -> LabelKind:
        return Numbers(0.0, float(self.most), whole=True)

    def outputs(self, classes: int) -> int:
        return 1

    def built(
        self, net: nn.Module, inputs: InputSettings, loss: LossFunction | None, classes: Sequence[str]
    ) -> Regression:
        from sordino.tasks.losses import PoissonLoss
        from sordino.tasks.supervised import Regression

        usual = PoissonLoss(self.most)
        return Regression(net, inputs, loss or usual, (0.0, float(self.most)), usual.rate)


@dataclass(frozen=True)
class MultiLabelProblem(Problem):
    """Multi-label classification; each label is a column of 0 and 1."""

    labels: tuple[str, ...]

    needs_task_loss = "several labels"

    def __post_init__(self) -> None:
        if not 2 <= len(set(self.labels)) == len(self.labels) <= MOST_LABELS:
            raise ConfigError(
                f"task.labels = {list(self.labels)}",
                why=f"they are the columns of the labels: from 2 to {MOST_LABELS} different ones",
                fix='name them, such as task.labels = ["flu", "cold"]; for a single one, set data.label',
                code="bad-labels",
            )

    @property
    def outcome(self) -> LabelKind:
        return SeveralLabels(len(self.labels))

    @property
    def columns(self) -> tuple[str, ...]:
        return self.labels

    def outputs(self, classes: int) -> int:
        return len(self.labels)

    def built(
        self, net: nn.Module, inputs: InputSettings, loss: LossFunction | None, classes: Sequence[str]
    ) -> MultiLabel:
        from sordino.tasks.losses import BinaryCrossEntropy
        from sordino.tasks.supervised import MultiLabel

        return MultiLabel(net, inputs, loss or BinaryCrossEntropy())


@dataclass(frozen=True)
class NextToken(Problem):
    """Language modelling: each token of a text, predicted from those before it."""

    vocabulary: Annotated[int, Range(least=2)] = 256

    needs_task_loss = "next tokens"
    columns = ()

    @property
    def outcome(self) -> LabelKind:
        return NextTokens(self.vocabulary)

    def outputs(self, classes: int) -> int:
        return self.vocabulary

    def built(
        self, net: nn.Module, inputs: InputSettings, loss: LossFunction | None, classes: Sequence[str]
    ) -> LanguageModel:
        from sordino.tasks.language import LanguageModel, NextTokenLoss

        return LanguageModel(net, inputs, loss or NextTokenLoss(), self.vocabulary)


PROBLEMS: dict[str, type[Problem]] = {
    "classification": Classify,
    "regression": Regress,
    "counts": Count,
    "multi_label": MultiLabelProblem,
    "next_token": NextToken,
}
