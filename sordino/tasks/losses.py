"""Losses: one number for each example, from that example alone; and losses that compare features with each other: class
prototypes with prototypes, a model's features with other models', examples with examples of their class.

Gradients are clipped example by example, which bounds the influence of one example only if no other example enters its
loss. A user's own loss never sees two examples: it is called with a batch of one, and `vmap` calls it for all. The
library's losses have their gradients written out, so that a `Chain` of known layers needs no autograd graph.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch

from sordino import user_code
from sordino.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


LossFunction: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"


class Loss(ABC):
    """Base class of a user's own loss. A plain function of (output, label) works as well."""

    @abstractmethod
    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        """The losses [n] of outputs [n, classes] and labels [n]."""


def loss_named(table: Mapping[str, object], built: Callable[[type[Loss]], Loss]) -> LossFunction:
    """The loss named in [loss]; `built` constructs a class with the other settings of the table."""
    name = str(table.get("name"))
    made = user_code.load(name, "loss")
    if inspect.isfunction(made):
        return alone(made, name)
    return alone(built(user_code.of_kind(name, "loss", Loss)), name)  # type: ignore[type-abstract]


def alone(loss: LossFunction, name: str) -> LossFunction:
    """Wraps a loss so that it is called with one example at a time, and no other example can enter it."""

    def one(output: Tensor, label: Tensor) -> Tensor:
        found = loss(output[None], label[None])
        if not isinstance(found, torch.Tensor) or tuple(found.shape) != (1,):
            raise not_per_example(name, found)
        return found[0]

    def each(output: Tensor, label: Tensor) -> Tensor:
        return torch.vmap(one)(output, label)

    return each


def not_per_example(name: str, found: object) -> ConfigError:
    given = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
    return ConfigError(
        f"the loss {name!r} gives {given} for one example, and not one number for each",
        why="gradients are clipped example by example, so a mean or a sum over the batch hides what must be bounded",
        fix='return a tensor with one loss for each example: reduction="none"',
        code="loss-not-per-example",
    )


# losses of the library ------------------------------------------------------------------------------------------------


class WrittenLoss(Loss):
    """A loss whose gradient is written out by hand, so that it needs no autograd graph."""

    @abstractmethod
    def target(self, y: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
        """Labels in the form that `slope` takes: [n, outputs]."""

    @abstractmethod
    def slope(self, outputs: Tensor, target: Tensor) -> Tensor:
        """The gradient of the summed losses with respect to the outputs, in the dtype of the target. Callers may change
        it in place.
        """


class CrossEntropy(WrittenLoss):
    """Cross-entropy: minus the log-probability of the true class."""

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(output, label, reduction="none")

    def target(self, y: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(len(y), outputs, dtype=dtype).scatter(1, y[:, None], 1.0)

    def slope(self, outputs: Tensor, target: Tensor) -> Tensor:
        return torch.softmax(outputs, 1, dtype=target.dtype).sub_(target)  # predicted probability minus label


class WeightedCrossEntropy(CrossEntropy):
    """Cross-entropy times the declared weight of the true class."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = torch.tensor(weights, dtype=torch.float64)

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        return super().__call__(output, label) * self._weights.to(output.dtype)[label]

    def target(self, y: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
        return super().target(y, outputs, dtype) * self._weights.to(dtype)

    def slope(self, outputs: Tensor, target: Tensor) -> Tensor:
        return torch.softmax(outputs, 1, dtype=target.dtype) * target.sum(1, keepdim=True) - target


class Squared(WrittenLoss):
    """Half the squared distance to a label scaled from its declared range to [-1, 1]."""

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
    """Squared loss near the label, linear where the distance is larger than `bend` (of the scaled label)."""

    def __init__(self, low: float, high: float, bend: float) -> None:
        super().__init__(low, high)
        self._bend = bend

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        wanted = self._scaled(label, output.dtype)
        return torch.nn.functional.huber_loss(output, wanted, reduction="none", delta=self._bend).sum(1)

    def slope(self, outputs: Tensor, target: Tensor) -> Tensor:
        return super().slope(outputs, target).clamp(-self._bend, self._bend)


class PoissonLoss(WrittenLoss):
    """Minus the log-likelihood of a count under a rate of exp(output), without its constant term.

    For rates beyond the declared maximum the loss continues as a straight line, so that no gradient is infinite.
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
        """The expected count that an output stands for: its exponential, up to a limit."""
        return output.clamp_max(self._bend).exp()


class BinaryCrossEntropy(WrittenLoss):
    """Mean binary cross-entropy over labels; the i-th label is the i-th bit of a whole number."""

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        wanted = self.target(label, output.shape[1], output.dtype)
        return torch.nn.functional.binary_cross_entropy_with_logits(output, wanted, reduction="none").mean(1)

    def target(self, y: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
        return bits(y, outputs).to(dtype)

    def slope(self, outputs: Tensor, target: Tensor) -> Tensor:
        return (torch.sigmoid(outputs.to(target.dtype)) - target) / outputs.shape[1]


def bits(y: Tensor, many: int) -> Tensor:
    """The lowest bits of whole numbers [n] as zeros and ones [n, many], lowest bit first."""
    return (y[:, None] >> torch.arange(many)) & 1


def class_means(z: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean of the features `z` of each class, and the number of its examples. Differentiable; a class without
    examples has mean 0.
    """
    counts = torch.bincount(labels, minlength=classes).to(z.dtype)
    sums = z.new_zeros(classes, z.shape[1]).index_add(0, labels, z)
    return sums / counts.clamp_min(1)[:, None], counts


def separation(z: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor, temperature: float) -> Tensor:
    """The mean of -log softmax of the cosines of each row of z with all known prototypes, at its own prototype
    (SlaugFL, the separation loss). No gradient reaches the prototypes.

    Rows whose own prototype is unknown are left out of the mean; without any other row the loss is 0.
    """
    with_own = known[labels]
    if not bool(with_own.any()):
        return z.sum() * 0
    z, labels = z[with_own], labels[with_own]
    cosines = (
        torch.nn.functional.normalize(z, dim=1)
        @ torch.nn.functional.normalize(prototypes.detach().to(z.dtype), dim=1).T
    )
    logits = (cosines / temperature).masked_fill(~known, float("-inf"))
    return torch.nn.functional.cross_entropy(logits, labels)


def model_contrast(z: Tensor, shared: Tensor, before: Tensor, temperature: float) -> Tensor:
    """One loss per example: small if its features `z` are near those of the shared model and far from those of the
    client's last model, `before` (Li, He and Song, CVPR 2021).
    """
    near = torch.nn.functional.cosine_similarity(z, shared.detach(), dim=1) / temperature
    far = torch.nn.functional.cosine_similarity(z, before.detach(), dim=1) / temperature
    return torch.nn.functional.softplus(far - near)


def supervised_contrast(z: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss of features `z` (Khosla et al., NeurIPS 2020): for each anchor, -log softmax of its
    cosines, averaged over the other examples of its class; then the mean over anchors. An example that is alone in its
    class counts 0.
    """
    z = torch.nn.functional.normalize(z, dim=1)
    n = len(z)
    own = torch.eye(n, dtype=torch.bool, device=z.device)
    logits = (z @ z.T / temperature).masked_fill(own, float("-inf"))
    log_odds = logits.log_softmax(1).masked_fill(own, 0.0)
    same = ((labels[:, None] == labels[None]) & ~own).to(z.dtype)
    return -((log_odds * same).sum(1) / same.sum(1).clamp_min(1)).mean()
