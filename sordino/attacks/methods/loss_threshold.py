"""Yeom, Giacomelli, Fredrikson and Jha, CSF 2018.

Deviations: none.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sordino.attacks.attacked_run import MemberView
from sordino.attacks.membership import MemberInference, losses


@dataclass(frozen=True)
class LossThreshold(MemberInference, name="loss_threshold"):
    """Takes an example for a member where the released model has a low loss on it."""

    def score(self, view: MemberView) -> Tensor:
        return -losses(view.task, view.model, view.asked)
