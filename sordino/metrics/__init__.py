"""Metrics: accuracy, loss and traffic.

Lines of metrics.jsonl and preparation.jsonl, one per round; and the headline metric for each kind of task, with its
wording, direction and number format.

None means not measured, or not visible to whoever reads the file: in a hidden cohort that includes how many clients
took part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, Self, TypeAlias

from pydantic import Field, ValidationInfo, model_validator

from sordino.accounting.facts import Fact, Number

Count = Annotated[int, Field(ge=0, lt=2**63)]
Amount = Annotated[Number, Field(ge=0, lt=1e100)]  # sums of all rounds fit a float


class ScoreSpread(Fact):
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
    clients: ScoreSpread | None = None
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
        """A copy with the headline metrics and the loss only."""
        return Scores(**{name: getattr(self, name) for name in HEADLINES})

    @property
    def constant(self) -> float | None:
        """The headline metric of the best constant prediction."""
        return self.baseline if self.majority is None else self.majority

    @property
    def in_words(self) -> str:
        """The headline metric in a few words, with the name of the model unless it is the global one; "" where nothing
        was scored."""
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
    cpu_seconds: Mapping[str, Amount] | None = None


class RoundLine(Fact):
    """Base of the lines of metrics.jsonl and preparation.jsonl: one round, its participation and traffic."""

    phase: str = ""  # of a preparation
    round: Count
    active: Count | None = None
    answered: Count | None = None
    bytes_down: Count | None = None
    bytes_up: Count | None = None
    payload: Count | None = None  # bytes of one upload that are numbers
    lost: bool = False
    secure: Secure | None = None
    device_flops: Amount | None = None

    @property
    def bytes(self) -> int:
        """Bytes of downloads and uploads together."""
        return (self.bytes_down or 0) + (self.bytes_up or 0)


class PreparedRow(RoundLine):
    """A line of preparation.jsonl: one round of a phase before the training."""

    phase: str
    bytes_down: Count
    bytes_up: Count
    payload: Count


class RoundRow(Scores, RoundLine):
    """A line of metrics.jsonl. Round 0 stands for all that was sent and computed before the first round."""

    model_norm: float | None = None
    seconds: float | None = None  # by the clock

    def with_more(self, more: Fact) -> RoundRow:
        """Copy of this round with the fields of another record added."""
        return self.beside(**{name: value for name, value in more if name in more.model_fields_set})


class RoundCost(Fact):
    """A line of costs.jsonl: seconds, in a file of their own, since they differ from run to run and results do not."""

    round: int
    seconds: float | None = None
    cpu_seconds: Mapping[str, Amount] | None = None


Metric: TypeAlias = Literal["accuracy", "label_accuracy", "mean_absolute_error", "loss"]


Way: TypeAlias = Literal["global", "plain", "own", "finetune", "proto"]
MEASURED: dict[Way, str] = {  # the models that a score is of
    "global": "global model",
    "plain": "global model, client by client",
    "own": "clients' own models",
    "finetune": "clients' own models (finetune)",
    "proto": "clients' own models (proto)",
}


def measured(way: Way, model: str = "") -> str:
    """Description of the model that was scored: global, or the clients' own and how they were personalised (`way`).
    `model`: the name of one of the server's models, where it is not the global one.
    """
    words = MEASURED[way]
    if not model:
        return words
    return words.replace("global", model) if "global" in words else f"{words}, from the {model} model"


class Headline(NamedTuple):
    """A headline metric: name, wording, direction and number format. Its mean over examples is shown."""

    name: Metric
    words: str
    higher: bool  # higher is better
    percent: bool  # a share of 1
    constant: str = ""  # the best constant answer, in words

    @property
    def better(self) -> str:
        return "higher is better" if self.higher else "lower is better"

    @property
    def full(self) -> str:
        """The metric's wording, with its direction unless it is accuracy or loss."""
        return self.words if self.name in ("accuracy", "loss") else f"{self.words} ({self.better})"

    @property
    def scale(self) -> int:
        """The factor of a value on a plot: 100 for a metric in per cent."""
        return 100 if self.percent else 1

    @property
    def axis(self) -> str:
        return f"test {self.words}" + (" (%)" if self.percent else f" ({self.better})" if self.constant else "")

    def bare(self, value: float) -> str:
        """A value without unit or wording, for a table whose caption names the metric."""
        return f"{100 * value:.2f}" if self.percent else f"{value:.4g}"

    def reaches(self, value: float, target: float) -> bool:
        """True if the value is at least as good as the target."""
        return value >= target if self.higher else value <= target

    def shown(self, value: float) -> str:
        return f"{value:.2%}" if self.percent else f"{value:.4f}" if self.name == "loss" else f"{value:.4g}"

    def in_words(self, value: float) -> str:
        return f"{self.words} {self.shown(value)}"


HEADLINES: dict[str, Headline] = {
    found.name: found
    for found in (
        Headline("accuracy", "accuracy", True, True, "always the most frequent class"),
        Headline("label_accuracy", "accuracy of labels", True, True, "always each label's most frequent answer"),
        Headline("mean_absolute_error", "mean absolute error", False, False, "always the mean"),
        Headline("loss", "loss", False, False),
    )
}
SHARES = {"accuracy_of_all_outputs", *(name for name, one in HEADLINES.items() if one.percent)}


def can_be(name: str, value: float) -> bool:
    """True for a value that a metric of somebody else's examples may have: a share, or a number whose means and squares
    stay finite."""
    return 0 <= value <= 1 if name in SHARES else abs(value) <= 1e30


# scores that may be shown beside the headline, in words
SCORED = {
    "auroc": "AUROC",
    "f1": "F1, macro",
    "calibration_error": "calibration error",
    "rmse": "root mean squared error",
    "r2": "R², 0 for always the mean",
}


def bytes_text(count: float) -> str:
    return scaled(count, ("B", "kB", "MB", "GB"))


def scaled(value: float, units: Sequence[str]) -> str:
    """A value as text in the largest of `units` of which it holds at least one; each unit is a thousand times the one
    before.
    """
    power = 0
    while value >= 1000 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.1f} {units[power]}" if power else f"{value:.0f} {units[0]}"
