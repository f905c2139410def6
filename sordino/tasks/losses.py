"""Losses whose way back is written out, so that a chain of known layers needs no graph. Each is one number for each
example, from the outputs for that example alone, so a clip bounds what the example can do, whatever the loss.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.tasks.own_loss import Loss


class WrittenLoss(Loss):
    """A loss, and its slope."""

    @abstractmethod
    def target(self, y: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
        """Labels as `slope` takes them: [n, outputs]."""

    @abstractmethod
    def slope(self, outputs: Tensor, target: Tensor) -> Tensor:
        """The gradient of the sum of the losses at the outputs, in the dtype of the target. It may be changed by
        whoever gets it."""


class CrossEntropy(WrittenLoss):
    """How improbable the true class is to the model."""

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(output, label, reduction="none")

    def target(self, y: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(len(y), outputs, dtype=dtype).scatter(1, y[:, None], 1.0)

    def slope(self, outputs: Tensor, target: Tensor) -> Tensor:
        return torch.softmax(outputs, 1, dtype=target.dtype).sub_(target)  # what was expected minus what is


class WeightedCrossEntropy(CrossEntropy):
    """The same, times the declared weight of the true class."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = torch.tensor(weights, dtype=torch.float64)

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        return super().__call__(output, label) * self._weights.to(output.dtype)[label]

    def target(self, y: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
        return super().target(y, outputs, dtype) * self._weights.to(dtype)

    def slope(self, outputs: Tensor, target: Tensor) -> Tensor:
        return torch.softmax(outputs, 1, dtype=target.dtype) * target.sum(1, keepdim=True) - target
