"""Losses whose way back is written out, so that a chain of known layers needs no graph. Each is one number for each
example, from the outputs for that example alone, so a clip bounds what the example can do, whatever the loss.
"""

from __future__ import annotations

import math
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


class Squared(WrittenLoss):
    """Half the squared distance, of a label that is scaled from its declared range to [-1, 1]."""

    def __init__(self, low: float, high: float) -> None:
        self.middle, self.half = (low + high) / 2, (high - low) / 2

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        return (output - self._scaled(label, output.dtype)).square().sum(1) / 2

    def target(self, y: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
        return self._scaled(y, dtype)

    def slope(self, outputs: Tensor, target: Tensor) -> Tensor:
        return outputs.to(target.dtype) - target

    def _scaled(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return ((y.to(dtype) - self.middle) / self.half)[:, None]


class Huber(Squared):
    """The same near the label, and linear where the distance is larger than `bend` (of the scaled label)."""

    def __init__(self, low: float, high: float, bend: float) -> None:
        super().__init__(low, high)
        self._bend = bend

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        wanted = self._scaled(label, output.dtype)
        return F.huber_loss(output, wanted, reduction="none", delta=self._bend).sum(1)

    def slope(self, outputs: Tensor, target: Tensor) -> Tensor:
        return super().slope(outputs, target).clamp(-self._bend, self._bend)


class PoissonLoss(WrittenLoss):
    """Minus the log-likelihood of a count under a rate of exp(output), but for what no output changes.

    Beyond the declared most it goes on as a straight line, so no step meets an infinite number.
    """

    def __init__(self, most: float) -> None:
        self._most, self._bend = most, math.log(most)

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        beyond = (output - self._bend).clamp_min(0)
        return (self.rate(output) + self._most * beyond - label.to(output.dtype)[:, None] * output).sum(1)

    def target(self, y: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
        return y.to(dtype)[:, None]

    def slope(self, outputs: Tensor, target: Tensor) -> Tensor:
        return self.rate(outputs.to(target.dtype)) - target

    def rate(self, output: Tensor) -> Tensor:
        """How many are expected."""
        return output.clamp_max(self._bend).exp()


class BinaryCrossEntropy(WrittenLoss):
    """The mean over labels, which an example has or has not: the i-th is the i-th bit of a whole number."""

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        wanted = self.target(label, output.shape[1], output.dtype)
        return F.binary_cross_entropy_with_logits(output, wanted, reduction="none").mean(1)

    def target(self, y: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
        return bits(y, outputs).to(dtype)

    def slope(self, outputs: Tensor, target: Tensor) -> Tensor:
        return (torch.sigmoid(outputs.to(target.dtype)) - target) / outputs.shape[1]


def bits(y: Tensor, many: int) -> Tensor:
    """The last bits of whole numbers [n] as zeros and ones [n, many], the lowest first."""
    found: Tensor = (y[:, None] >> torch.arange(many)) & 1
    return found
