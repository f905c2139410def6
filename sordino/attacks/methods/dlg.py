"""Zhu, Liu and Han, NeurIPS 2019, Algorithm 1.

Deviations: pixels stay between 0 and 1 by a sigmoid; several starts, of which the one that matches best is kept; the
distance is in units of the observed gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino import keys
from sordino.attacks.attacked_run import UpdateView
from sordino.attacks.matching import Mismatch, gradient, squared, start
from sordino.attacks.reconstruction import Reconstruction

STEPS, STARTS = 60, 2
ENOUGH = 1e-6  # distance at which a search ends


@dataclass(frozen=True)
class DeepLeakage(Reconstruction, name="dlg"):
    """Moves images and labels until their gradient is the observed one (DLG)."""

    steps: int = STEPS
    starts: int = STARTS

    def draw(self, view: UpdateView) -> Tensor:
        off = squared(view.gradient)
        return best([self.once(view, off, keys.fold(view.key, "dlg", i), None) for i in range(self.starts)])

    def once(self, view: UpdateView, off: Mismatch, key: keys.Key, labels: Tensor | None) -> tuple[float, Tensor]:
        """One start, with known labels or sought ones: the remaining distance, and the images."""
        x = torch.logit(start(view, key)).requires_grad_()
        classes = view.task.classes
        if labels is None:
            drawn = keys.normal(keys.fold(key, "labels"), view.images * classes).float()
            free = drawn.reshape(view.images, classes).requires_grad_()
            leaves = [x, free]
        else:
            free = 30 * torch.nn.functional.one_hot(labels, classes).float()
            leaves = [x]
        search = torch.optim.LBFGS(leaves, lr=1.0, max_iter=20, history_size=50, line_search_fn="strong_wolfe")

        def step() -> Tensor:
            search.zero_grad()
            value = off(gradient(view.task, view.before, torch.sigmoid(x), torch.softmax(free, 1)))
            for leaf, slope in zip(leaves, torch.autograd.grad(value, leaves), strict=True):
                leaf.grad = slope
            return value.detach()

        last = float("inf")
        for _ in range(max(1, self.steps // 20)):
            last = float(search.step(step))  # type: ignore[no-untyped-call]
            if last < ENOUGH:
                break
        return last, torch.sigmoid(x).detach()


def best(found: list[tuple[float, Tensor]]) -> Tensor:
    """Images of the start that came nearest."""
    return min(found, key=lambda one: one[0] if one[0] == one[0] else float("inf"))[1]
