"""Numbers of a user's own beside accuracy and loss, seen by the evaluator only."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch

from sordino import user_code
from sordino.errors import ConfigError, OwnCodeError
from sordino.metrics.headlines import SCORED
from sordino.types import Examples, Params, Task

if TYPE_CHECKING:
    from torch import Tensor


MetricFunction: TypeAlias = "Callable[[Tensor, Tensor], float]"
AT_ONCE = 1024  # rows


class OwnMetric(ABC):
    """How good a model is on all test examples. A plain function of the same two arguments will do as well."""

    @abstractmethod
    def __call__(self, logits: Tensor, labels: Tensor) -> float:
        """One number, from logits [n, classes] and labels [n]."""


def metrics_named(names: Sequence[str]) -> dict[str, MetricFunction]:
    """The metrics that an experiment names, by their own names."""
    found: dict[str, MetricFunction] = {}
    for path in names:
        if not user_code.is_own(path):
            known = path.lower() in (*SCORED, "confusion")
            raise ConfigError(
                f"evaluation.metrics names {path!r}",
                why="these are functions of your own",
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


def measured(metrics: Mapping[str, MetricFunction], task: Task, params: Params, test: Examples) -> dict[str, float]:
    """Each of them for a model."""
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
