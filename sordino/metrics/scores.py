"""Scores beside accuracy and loss, the library's and a user's own: ranking, detection and calibration of classes.

Each is computed on all test examples together, by the evaluator alone. A score that is not a mean over examples does
not follow from scores of single clients, so clients are not asked for any, and none is sent.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from sordino import user_code
from sordino.errors import ConfigError, OwnCodeError
from sordino.metrics import SCORED
from sordino.types import Examples, Params, Task

if TYPE_CHECKING:
    from torch import Tensor

Probabilities: TypeAlias = NDArray[np.floating[Any]]  # [n, classes]
Labels: TypeAlias = NDArray[np.int64]
Score = Literal["auroc", "f1", "calibration_error", "confusion", "rmse", "r2"]
BINS = 15  # of calibration


def auroc(p: Probabilities, y: Labels) -> float | None:
    """Area under the ROC curve. With two classes that of the second; with more, each class against all others, averaged
    over classes that some test examples have and some lack; None if there is no such class. With several labels per
    example, each label by itself, averaged alike.
    """
    columns = [1] if y.ndim == 1 and p.shape[1] == 2 else range(p.shape[1])
    true, _ = _marks(p, y)
    areas = [area for c in columns if (area := _area(p[:, c], true[:, c])) is not None]
    return float(np.mean(areas)) if areas else None


def _marks(p: Probabilities, y: Labels) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The classes or labels [n, classes] that examples have, and those that are predicted for them."""
    if y.ndim == 2:
        return y == 1, p > 0.5
    classes = np.arange(p.shape[1])
    return y[:, None] == classes, p.argmax(1)[:, None] == classes


def _area(score: NDArray[np.floating[Any]], true: NDArray[np.bool_]) -> float | None:
    """Probability that an example of the class scores higher than one of another class; equal scores count half."""
    many, others = int(true.sum()), int((~true).sum())
    if not many or not others:
        return None
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]  # from 1 on; equal scores share the mean of their ranks
    return float((ranks[true].sum() - many * (many + 1) / 2) / (many * others))


def confusion(p: Probabilities, y: Labels) -> tuple[tuple[int, ...], ...]:
    """Examples by true class (rows) and predicted class (columns)."""
    classes = p.shape[1]
    counts = np.bincount(y * classes + p.argmax(1), minlength=classes**2).reshape(classes, classes)
    return tuple(tuple(row) for row in counts.tolist())


def f1(p: Probabilities, y: Labels) -> float | None:
    """Mean over classes of 2 TP / (2 TP + FP + FN), without classes that no example has and no prediction names."""
    true, predicted = _marks(p, y)
    both, right = predicted.sum(0) + true.sum(0), (predicted & true).sum(0)
    return float(np.mean(2 * right[both > 0] / both[both > 0])) if both.any() else None


def calibration_error(p: Probabilities, y: Labels) -> float | None:
    """Expected calibration error: mean distance between confidence (the probability of the predicted class) and
    accuracy, over 15 bins of equal width.
    """
    if not len(y):
        return None
    sure, right = p.max(1), p.argmax(1) == y
    bins = np.clip(np.ceil(sure * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.bincount(bins, right - sure, BINS)
    return float(np.abs(gaps).sum() / len(y))


def rmse(values: Probabilities, y: Labels) -> float | None:
    """The root of the mean squared error of predicted numbers."""
    return float(np.sqrt(np.mean((values - y) ** 2))) if len(y) else None


def r2(values: Probabilities, y: Labels) -> float | None:
    """The share of the labels' variance that is explained; None where all labels are equal."""
    spread = float(((y - y.mean()) ** 2).sum()) if len(y) else 0.0
    return 1 - float(((values - y) ** 2).sum()) / spread if spread else None


SCORES: Mapping[str, Callable[[Probabilities, Labels], Any]] = {
    "auroc": auroc,
    "f1": f1,
    "calibration_error": calibration_error,
    "confusion": confusion,
    "rmse": rmse,
    "r2": r2,
}


def scored(asked: Sequence[str], p: Probabilities, y: Labels) -> dict[str, Any]:
    """Scores by name, for the names asked for."""
    return {name: SCORES[name](p, y) for name in asked}


# a user's own ---------------------------------------------------------------------------------------------------------


MetricFunction: TypeAlias = "Callable[[Tensor, Tensor], float]"
AT_ONCE = 1024  # rows


class OwnMetric(ABC):
    """A user's own metric on all test examples. A plain function of (logits, labels) will do as well."""

    @abstractmethod
    def __call__(self, logits: Tensor, labels: Tensor) -> float:
        """The metric as one number, from logits [n, classes] and labels [n]."""


def metrics_named(names: Sequence[str]) -> dict[str, MetricFunction]:
    """The user's own metrics that an experiment names, by their function or class names."""
    found: dict[str, MetricFunction] = {}
    for path in names:
        if not user_code.is_own(path):
            known = path.lower() in (*SCORED, "confusion")
            raise ConfigError(
                f"evaluation.metrics names {path!r}",
                why="evaluation.metrics lists your own functions",
                fix=f'set evaluation.scores = ["{path.lower()}"]'
                if known
                else "give module:function; accuracy and loss are always measured, and evaluation.scores takes "
                f"{', '.join((*SCORED, 'confusion'))}, as far as the task has them",
                code="unknown-metric",
            )
        made = user_code.load(path, "metric")
        called = path.partition(":")[2]
        found[called] = (
            made if inspect.isfunction(made) else user_code.of_kind(path, "metric", OwnMetric)()  # type: ignore[type-abstract]
        )
    return found


def own_scores(metrics: Mapping[str, MetricFunction], task: Task, params: Params, test: Examples) -> dict[str, float]:
    """Values of a user's own metrics for a model."""
    if not metrics:
        return {}
    logits = torch.cat([task.predict(params, part) for part in torch.split(test.x, AT_ONCE)])[:, : task.labels]
    return {name: number_of(name, metric(logits.clone(), test.y.clone())) for name, metric in metrics.items()}


def number_of(name: str, found: object) -> float:
    value = found.item() if isinstance(found, torch.Tensor) and found.numel() == 1 else found
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise OwnCodeError(
            f"the metric {name} gives {type(found).__name__ if not isinstance(value, int | float) else value}",
            why="a metric is one finite number for all test examples",
            fix="return a float",
            code="metric-no-number",
        )
    return float(value)
