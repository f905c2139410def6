"""Language models: prediction of the next token, and its loss.

A text is its first tokens, as whole numbers from 1 on, and 0 behind the last one. These zeros are left out of the loss,
which is the mean over the tokens of one text: neither its padding nor another text enters it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino import keys
from sordino.errors import ConfigError
from sordino.tasks.losses import Loss, LossFunction
from sordino.tasks.network import InputSettings
from sordino.tasks.supervised import Supervised
from sordino.types import Examples, Params

OUTPUTS = 1 << 24  # most outputs of one pass in scoring


class NextTokenLoss(Loss):
    """Cross-entropy of each token given those before it, as the mean over the tokens of a text after its first."""

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        """The losses [n] of outputs [n, length, vocabulary] and texts [n, length]."""
        wanted, there = following(label)
        each = F.cross_entropy(output[:, :-1].movedim(2, 1), wanted, reduction="none")
        return mean_over(torch.where(there, each, 0.0), there)


def following(texts: Tensor) -> tuple[Tensor, Tensor]:
    """The token that follows each one in texts [n, length], counted from 0, and a mask that is true where there is
    one.
    """
    after = texts[:, 1:].long()
    return (after - 1).clamp_min(0), after > 0


def mean_over(values: Tensor, there: Tensor) -> Tensor:
    """The mean of the values of each text where the mask is true; 0 for a text of one token, or none."""
    return (values * there).sum(1) / there.sum(1).clamp_min(1)


class LanguageModel(Supervised):
    """A network that predicts each token of a text from those before it."""

    metrics = ("accuracy", "loss")
    scores = ()
    places = 1

    def __init__(self, net: nn.Module, inputs: InputSettings, loss: LossFunction, vocabulary: int) -> None:
        if any(inputs.mean) or any(std != 1 for std in inputs.std):
            raise ConfigError(
                "texts that are scaled",
                why="a token is a name, and no quantity",
                fix='leave data.standardise out, or set it to "none" for rows of a source of your own',
                code="no-such-scaling",
            )
        self._vocabulary = vocabulary
        super().__init__(net, inputs, loss)

    def targets(self, x: Tensor, y: Tensor) -> Tensor:
        return x

    @cached_property
    def classes(self) -> int:
        return self._vocabulary

    @cached_property
    def _sample(self) -> Tensor:
        drawn = keys.uniform(keys.root(1), 3 * self._shape[0]).reshape(3, -1)
        return (1 + drawn * self._vocabulary).floor().clamp_max(self._vocabulary).float()

    @property
    def _most(self) -> int:
        return self._vocabulary

    @cached_property
    def largest_token(self) -> int:
        return self._vocabulary

    def _any_labels(self, many: int) -> Tensor:
        return torch.zeros(many, dtype=torch.int64)

    def answers(self, outputs: Tensor) -> Tensor:
        """The probability of each token at each place."""
        return outputs.double().softmax(-1)

    def score(self, params: Params, examples: Examples) -> Mapping[str, Tensor]:
        found: dict[str, list[Tensor]] = {name: [] for name in self.metrics}
        for texts in torch.split(examples.x, max(1, OUTPUTS // (examples.x.shape[1] * self._vocabulary))):
            outputs = self.predict(params, texts)
            wanted, there = following(texts)
            found["accuracy"].append(mean_over((outputs[:, :-1].argmax(2) == wanted).double(), there))
            found["loss"].append(self._loss(outputs, texts).double())
        return {name: torch.cat(parts) for name, parts in found.items()}

    def constant(self, examples: Examples) -> float:
        """The accuracy of always predicting the token that is most frequent in these texts."""
        wanted, there = following(examples.x)
        most = torch.bincount(wanted[there], minlength=1).argmax()
        return float(mean_over((wanted == most).double(), there).mean())
