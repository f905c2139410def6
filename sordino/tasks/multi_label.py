"""Multi-label classification: each of several labels of a row is present or absent."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sordino.tasks.losses import bits
from sordino.tasks.supervised import Supervised
from sordino.types import Examples, Params


class MultiLabel(Supervised):
    """Several yes-or-no answers. The label of an example is a whole number, whose i-th bit is the i-th label."""

    metrics = ("label_accuracy", "loss")
    scores = ("auroc", "f1")
    always = scores

    def answers(self, outputs: Tensor) -> Tensor:
        return torch.sigmoid(outputs.double())

    def truth(self, y: Tensor) -> Tensor:
        found: Tensor = bits(y, self.labels)
        return found

    def score(self, params: Params, examples: Examples) -> Mapping[str, Tensor]:
        outputs = self.all_outputs(params, examples.x)
        right = (outputs > 0) == self.truth(examples.y).bool()
        return {"label_accuracy": right.double().mean(1), "loss": self._loss(outputs, examples.y).double()}

    def constant(self, y: Tensor) -> float:
        """The share of right answers when each label always gets its most frequent value."""
        held = self.truth(y).double().mean(0)
        return float(torch.maximum(held, 1 - held).mean())

    def _any_labels(self, many: int) -> Tensor:
        found: Tensor = torch.arange(many) % 2**self.labels
        return found
