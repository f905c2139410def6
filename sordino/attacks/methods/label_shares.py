"""Wainakh et al., PoPETs 2022; Zhao, Mopuri and Bilen, 2020 (arXiv 2001.02610).

Deviations: shares of all classes come from one linear system in what the model says of the attacker's own images.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sordino.attacks.attacked_run import UpdateView
from sordino.attacks.matching import label_counts
from sordino.attacks.shares import LabelCounting


@dataclass(frozen=True)
class LabelShares(LabelCounting, name="label_shares"):
    """Counts the labels of a client from the gradient of the last layer's biases."""

    def count(self, view: UpdateView) -> Tensor:
        return label_counts(view)
