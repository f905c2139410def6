"""Losses that compare features with each other: class prototypes with prototypes, a model's features with other
models', examples with examples of their class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def class_means(z: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature and the number of examples of each class. Differentiable; a class without examples has
    mean 0.
    """
    counts = torch.bincount(labels, minlength=classes).to(z.dtype)
    sums = z.new_zeros(classes, z.shape[1]).index_add(0, labels, z)
    return sums / counts.clamp_min(1)[:, None], counts


def separation(z: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor, temperature: float) -> Tensor:
    """The mean of -log softmax of the cosines of each row of z with all known prototypes, at its own prototype
    (SlaugFL, the separation loss). No gradient reaches the prototypes.

    Rows whose own prototype is unknown are left out of the mean; without any other row the loss is 0.
    """
    with_own = known[labels]
    if not bool(with_own.any()):
        return z.sum() * 0
    z, labels = z[with_own], labels[with_own]
    cosines = (
        torch.nn.functional.normalize(z, dim=1)
        @ torch.nn.functional.normalize(prototypes.detach().to(z.dtype), dim=1).T
    )
    logits = (cosines / temperature).masked_fill(~known, float("-inf"))
    found: Tensor = torch.nn.functional.cross_entropy(logits, labels)
    return found


def model_contrast(z: Tensor, shared: Tensor, before: Tensor, temperature: float) -> Tensor:
    """One loss per example: small if its features are near those of the shared model and far from those of the client's
    last model (Li, He and Song, CVPR 2021).
    """
    near = torch.nn.functional.cosine_similarity(z, shared.detach(), dim=1) / temperature
    far = torch.nn.functional.cosine_similarity(z, before.detach(), dim=1) / temperature
    found: Tensor = torch.nn.functional.softplus(far - near)
    return found


def supervised_contrast(z: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss (Khosla et al., NeurIPS 2020): for each anchor, -log softmax of its cosines, averaged
    over the other examples of its class; then the mean over anchors. An example that is alone in its class counts 0.
    """
    z = torch.nn.functional.normalize(z, dim=1)
    n = len(z)
    own = torch.eye(n, dtype=torch.bool, device=z.device)
    logits = (z @ z.T / temperature).masked_fill(own, float("-inf"))
    log_odds = logits.log_softmax(1).masked_fill(own, 0.0)
    same = ((labels[:, None] == labels[None]) & ~own).to(z.dtype)
    found: Tensor = -((log_odds * same).sum(1) / same.sum(1).clamp_min(1)).mean()
    return found
