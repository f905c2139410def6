"""Regression and counts: a number for each row of a table, such as a length of stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from sordino.tasks.losses import LossFunction
from sordino.tasks.network import InputSettings
from sordino.tasks.supervised import Supervised
from sordino.types import Examples, Params


class Regression(Supervised):
    """A number in a declared range."""

    metrics = ("mean_absolute_error", "loss")
    scores = always = ("rmse", "r2")

    def __init__(
        self,
        net: nn.Module,
        inputs: InputSettings,
        loss: LossFunction,
        range: tuple[float, float],
        value: Callable[[Tensor], Tensor],
    ) -> None:
        """`value`: turns an output of the network into the unit of the label."""
        super().__init__(net, inputs, loss)
        self._range, self._value = range, value

    def answers(self, outputs: Tensor) -> Tensor:
        return self._value(outputs.double())[:, 0].clamp(*self._range)

    def score(self, params: Params, examples: Examples) -> Mapping[str, Tensor]:
        outputs = self.all_outputs(params, examples.x)
        distance = (self.answers(outputs) - examples.y.double()).abs()
        return {"mean_absolute_error": distance, "loss": self._loss(outputs, examples.y).double()}

    def constant(self, y: Tensor) -> float:
        """The mean absolute error of always answering the mean."""
        return float((y.double() - y.double().mean()).abs().mean())

    def _any_labels(self, many: int) -> Tensor:
        return torch.linspace(*self._range, many).round()
