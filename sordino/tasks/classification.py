"""Classification: one class of several for each image, or each row of a table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor, nn

from sordino.tasks.losses import CrossEntropy, LossFunction
from sordino.tasks.nets import bounded
from sordino.tasks.network import InputSettings
from sordino.tasks.supervised import Supervised
from sordino.types import Examples, Params


class Classification(Supervised):
    """Classification by softmax cross-entropy."""

    scores = ("auroc", "f1", "calibration_error", "confusion")

    def __init__(
        self,
        net: nn.Module,
        *,
        name: str,
        shape: tuple[int, ...],
        mean: tuple[float, ...],
        std: tuple[float, ...],
        image: bool,
        precision: torch.dtype = torch.float32,
        augment: str = "none",
        labels: int | None = None,
        loss: LossFunction | None = None,
        keeps: bool = False,
    ) -> None:
        """`labels`: how many classes there are, where the network has outputs beyond them; `loss`: of each example, in
        place of cross-entropy; `keeps`: training starts from the network's own values, and not from drawn ones."""
        inputs = InputSettings(name, shape, mean, std, image, precision, augment, keeps)
        super().__init__(net, inputs, CrossEntropy() if loss is None else loss)
        self._labels = labels
        self.feature_radius = bounded(net) if loss is None else None  # it speaks of cross-entropy

    def _any_labels(self, many: int) -> Tensor:
        return torch.arange(many) % self.classes

    @cached_property
    def labels(self) -> int:
        return self.classes if self._labels is None else self._labels

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The names of the values that `score` gives, the headline first."""
        return ("accuracy", "loss", *(("accuracy_of_all_outputs",) if self.classes > self.labels else ()))

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs[:, : self.labels].double().softmax(1)

    def constant(self, y: Tensor) -> float:
        """The share of the most frequent class: accuracy of a constant answer."""
        return int(torch.bincount(y).max()) / len(y)

    def score(self, params: Params, examples: Examples) -> Mapping[str, Tensor]:
        every = self.all_outputs(params, examples.x)
        logits = every[:, : self.labels]
        found = {
            "accuracy": (logits.argmax(1) == examples.y).double(),
            "loss": self._loss(logits, examples.y).double(),
        }
        if self.classes > self.labels:
            found["accuracy_of_all_outputs"] = (every.argmax(1) % self.labels == examples.y).double()
        return found
