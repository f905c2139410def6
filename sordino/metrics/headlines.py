"""Headline metrics: one for each kind of task, with its wording, its direction and its number format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

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
    """Description of the models that a score is of. `model`: the name of one of the server's models, where it is not
    the global one.
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
