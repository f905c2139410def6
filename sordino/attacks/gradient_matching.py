"""Gradient matching: images whose gradient is the observed one, and labels read off the last layer.

The attacker's copy of the model is the public network, with dropout off. Labels are optimised together with the images,
or known.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import keys
from sordino.attacks.attacked_run import UpdateView
from sordino.keys import Key
from sordino.types import Params, Task

Mismatch = Callable[[list[Tensor]], Tensor]  # of a gradient, tensor by tensor, from the observed one


def gradient(task: Task, params: Params, x: Tensor, shares: Tensor) -> list[Tensor]:
    """Gradient of the mean loss for images with class probabilities `shares`, differentiable with respect to both."""
    leaves = [value.detach().requires_grad_() for value in params.values()]
    own = dict(zip(params, leaves, strict=True))
    said = F.log_softmax(task.head(own, task.look(own, x)), 1)
    loss = -(shares * said).sum(1).mean()
    return list(torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True, materialize_grads=True))


def squared(seen: Params) -> Mismatch:
    """Loss for gradient matching: squared distance to the observed gradient, relative to its squared norm."""
    whole = sum((g.double() ** 2).sum() for g in seen.values())
    scale = 1 / max(float(whole), 1e-30)

    def off(found: list[Tensor]) -> Tensor:
        parts = [((a - b) ** 2).sum() for a, b in zip(found, seen.values(), strict=True)]
        return scale * torch.stack(parts).sum()

    return off


def turned(seen: Params) -> Mismatch:
    """Loss for gradient matching: cosine distance to the observed gradient, which ignores lengths."""
    length = torch.sqrt(torch.stack([(g**2).sum() for g in seen.values()]).sum()).clamp_min(1e-30)

    def off(found: list[Tensor]) -> Tensor:
        along = torch.stack([(a * b).sum() for a, b in zip(found, seen.values(), strict=True)]).sum()
        own = torch.sqrt(torch.stack([(a**2).sum() for a in found]).sum()).clamp_min(1e-30)
        return 1 - along / (own * length)

    return off


def start(view: UpdateView, key: Key) -> Tensor:
    """Initial images of a search: noise around the mean of the attacker's own images."""
    mean = view.elsewhere.mean(0)
    drawn = keys.normal(key, view.images * mean.numel()).float().reshape(view.images, *mean.shape)
    return (mean + 0.1 * drawn).clamp(0.01, 0.99)


def label_counts(view: UpdateView) -> Tensor:
    """Number of images of each class: the gradient of the last layer's biases is the mean predicted probability, less
    the shares of classes.

    Predictions for the client's images are taken to be those for the attacker's own, class by class.
    """
    name = [name for name, value in view.before.items() if name.endswith("bias") and value.dim() == 1][-1]
    classes = len(view.before[name])
    said = F.softmax(view.task.head(view.before, view.task.look(view.before, view.elsewhere)), 1).detach()
    own = torch.stack([said[view.labels == label].mean(0) for label in range(classes)])  # nan: a class it lacks
    own = torch.where(torch.isnan(own), said.mean(0), own)
    # shares solve: own^T s - s = g
    system = own.T - torch.eye(classes)
    ones = torch.ones(1, classes)
    wanted = torch.cat([view.gradient[name].float(), torch.ones(1)])
    found: Tensor = torch.linalg.lstsq(torch.cat([system, ones]).double(), wanted.double()[:, None]).solution[:, 0]
    return torch.nan_to_num(found, 0.0).clamp_min(0)[: view.task.labels] * view.images


def labels_of(counts: Tensor, many: int) -> Tensor:
    """A list of `many` labels with class frequencies nearest to `counts`."""
    left, found = counts.clone(), []
    for _ in range(many):
        label = int(left.argmax())
        found.append(label)
        left[label] -= 1
    return torch.tensor(found)


def variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, summed over images."""
    down, across = (x[..., 1:, :] - x[..., :-1, :]).abs(), (x[..., 1:] - x[..., :-1]).abs()
    return down.flatten(1).mean(1).sum() + across.flatten(1).mean(1).sum()
