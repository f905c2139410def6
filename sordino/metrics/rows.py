"""Rows of metrics.jsonl and preparation.jsonl: one for each round.

None means not measured, or not visible to this reader: of a hidden cohort not even how many took part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import ValidationInfo, model_validator

from sordino.accounting.facts import Fact, Number
from sordino.metrics.headlines import HEADLINES, MEASURED, SCORED, Headline, Metric, Way, measured


class Spread(Fact):
    """The scores of single clients: how they spread and, where listed, each of them."""

    metric: Metric
    mean: float
    std: float
    worst_tenth: float
    each: tuple[float | None, ...] | None = None  # None: there are too many to list, or they stand elsewhere


class Scores(Fact):
    """Scores of models. Accuracy and loss are always written together."""

    accuracy: float | None = None
    loss: float | None = None
    label_accuracy: float | None = None  # of several labels: the share of right answers
    mean_absolute_error: float | None = None  # of numbers, in the unit of the label
    accuracy_of_all_outputs: float | None = None  # of a network with several outputs for each class
    majority: float | None = None  # the share of the most frequent class of the test examples: what a constant reaches
    baseline: float | None = None  # of other tasks: what a constant answer reaches in the headline
    rmse: float | None = None  # of numbers: the root of the mean squared error
    r2: float | None = None  # of numbers: the share of the variance that is explained; always the mean: 0
    # these three, and counts of test examples by true class (rows) and predicted class, where they are asked for
    auroc: float | None = None
    f1: float | None = None
    calibration_error: float | None = None
    confusion: tuple[tuple[int, ...], ...] | None = None
    clients: Spread | None = None
    way: Way = "global"  # how clients made the model their own before it was scored
    model: str = ""  # which of the server's models it is, where it is not the global one
    own: Mapping[str, float] = {}  # metrics of a user's own
    also: Mapping[str, Scores] = {}  # of further models, or of further ways to make one a client's own

    @model_validator(mode="after")
    def _together(self, info: ValidationInfo) -> Self:
        if info.mode == "json" and self.loss is None and not (self.accuracy is None and self.clients is None):
            raise ValueError("it has scores without a loss")
        return self

    @property
    def scores(self) -> list[tuple[str, float]]:
        """Requested scores beside accuracy and loss, each with its wording; then a user's own metrics."""
        known = [(words, value) for name, words in SCORED.items() if (value := getattr(self, name)) is not None]
        return [*known, *self.own.items()]

    @property
    def headline(self) -> tuple[Headline, float] | None:
        """The headline metric and its value; None where nothing was scored."""
        found = ((one, getattr(self, name)) for name, one in HEADLINES.items())
        return next(((one, value) for one, value in found if value is not None), None)

    @property
    def judged(self) -> Scores:
        """The same scores, reduced to the headline metrics and the loss."""
        return Scores(**{name: getattr(self, name) for name in HEADLINES})

    @property
    def constant(self) -> float | None:
        """The headline metric of the best constant prediction."""
        return self.baseline if self.majority is None else self.majority

    @property
    def in_words(self) -> str:
        """The headline in a few words, with the model that it is of unless that is the global one; "" where nothing was
        scored.
        """
        whose = "" if self.measured == MEASURED["global"] else f" ({self.measured})"
        return "" if (found := self.headline) is None else found[0].in_words(found[1]) + whose

    @property
    def measured(self) -> str:
        """Description of the models that were scored."""
        return measured(self.way, self.model)


class Secure(Fact):
    """The cost of an encrypted or masked sum."""

    mode: Literal["full", "probe"]
    saturated: int | None = None  # values cut to the range
    aborted: str = ""  # why nothing was opened
    cpu_seconds: Mapping[str, Number] | None = None


class Played(Fact):
    """A round of any phase: participation and traffic."""

    phase: str = ""  # of a preparation
    round: int
    active: int | None = None
    answered: int | None = None
    bytes_down: int | None = None
    bytes_up: int | None = None
    payload: int | None = None  # bytes of one upload that are numbers
    lost: bool = False
    secure: Secure | None = None
    device_flops: Number | None = None

    @property
    def bytes(self) -> int:
        """Bytes of downloads and uploads together."""
        return (self.bytes_down or 0) + (self.bytes_up or 0)


class PreparedRow(Played):
    """A line of preparation.jsonl."""

    phase: str
    bytes_down: int
    bytes_up: int
    payload: int


class RoundRow(Scores, Played):
    """A line of metrics.jsonl; a round 0 stands for what was sent and computed before the first round."""

    model_norm: float | None = None
    seconds: float | None = None  # by the clock

    def with_more(self, more: Fact) -> RoundRow:
        """This round, with the fields that another file adds."""
        return self.beside(**{name: value for name, value in more if name in more.model_fields_set})


class RoundCost(Fact):
    """A line of costs.jsonl: seconds, kept apart from results because no two runs take the same time."""

    round: int
    seconds: float | None = None
    cpu_seconds: Mapping[str, Number] | None = None
