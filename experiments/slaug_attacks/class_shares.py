"""Class shares of a device from its uploaded model: a model that has seen no image of a class hardly ever names it.

SlaugFL (IEEE Transactions on Mobile Computing, 2024) chooses devices by the classes that they hold.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sordino.attacks.methods.properties import shares


class Inferred(NamedTuple):
    """Accuracy of guessed class shares, device by device."""

    total_variation: Tensor  # between the shares of classes as guessed and as they are
    of_uniform: Tensor  # the same, for whoever guesses that all classes are equally frequent
    spearman: Tensor  # of guessed and true shares; 0 where one side is the same for all classes


def inferred(recall: Tensor, counts: Tensor) -> Inferred:
    """A guess of every device's class shares from `recall` of its model on every class [devices, classes], against
    its number of examples of each.
    """
    guessed, true = shares(recall), shares(counts)
    away = [(side - true).abs().sum(1) / 2 for side in (guessed, torch.full_like(true, 1 / true.shape[1]))]
    return Inferred(away[0], away[1], spearman(guessed, true))


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Correlation of ranks, row by row; ties share their mean rank."""
    from scipy.stats import rankdata

    x, y = (torch.from_numpy(rankdata(side.double().numpy(), axis=1)) for side in (a, b))
    x, y = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    size = torch.sqrt((x**2).sum(1) * (y**2).sum(1))
    return torch.where(size > 0, (x * y).sum(1) / size.clamp_min(1e-300), 0.0)
