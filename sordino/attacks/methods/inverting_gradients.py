"""Geiping, Bauermeister, Dröge and Moeller, NeurIPS 2020.

Deviations: fewer steps; images start from noise around the mean of the attacker's own; labels are read off the last
layer's biases.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import keys
from sordino.attacks.attacked_run import UpdateView
from sordino.attacks.matching import gradient, label_counts, labels_of, start, turned, variation
from sordino.attacks.reconstruction import Reconstruction


@dataclass(frozen=True)
class InvertingGradients(Reconstruction, name="inverting_gradients"):
    """Moves smooth images until their gradient points in the direction of the observed one."""

    steps: int = 300
    lr: float = 0.05
    smooth: float = 1e-3

    def draw(self, view: UpdateView) -> Tensor:
        labels = labels_of(label_counts(view), view.images)
        shares, off = F.one_hot(labels, view.task.classes).float(), turned(view.gradient)
        x = start(view, keys.fold(view.key, "inverting")).requires_grad_()
        adam = torch.optim.Adam([x], self.lr)
        falls = [self.steps * part // 8 for part in (3, 5, 7)]
        plan = torch.optim.lr_scheduler.MultiStepLR(adam, falls, 0.1)
        for _ in range(self.steps):
            value = off(gradient(view.task, view.before, x, shares)) + self.smooth * variation(x)
            (slope,) = torch.autograd.grad(value, [x])
            x.grad = slope.sign()
            adam.step()
            plan.step()
            with torch.no_grad():
                x.clamp_(0, 1)
        return x.detach()
