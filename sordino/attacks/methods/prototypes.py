"""Prototype inversion: reconstruct images from means of features, by a ridge regression or a trained decoder."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino import keys
from sordino.attacks.attacked_run import MeanView
from sordino.attacks.prototype_inversion import PrototypeInversion
from sordino.keys import Key


@dataclass(frozen=True)
class LinearMap(PrototypeInversion, name="linear_map"):
    """Maps a mean of features to an image by a linear map that was fitted on the attacker's images.

    Ridge regression from features to images, fitted on the attacker's images.

    Deviations: none; it is the plainest learned inverse.
    """

    def draw(self, view: MeanView) -> Tensor:
        with torch.no_grad():
            features = view.looks(view.elsewhere)
        return fitted(features, view.elsewhere, view.mean[None])[0]


def fitted(features: Tensor, images: Tensor, prototypes: Tensor, ridge: float = 1e-3) -> Tensor:
    """Images from features by ridge regression on the attacker's own sample; `ridge` is relative to the mean variance
    of a feature.
    """
    z, x, centre = features.double(), images.double().flatten(1), features.double().mean(0)
    seen = (z - centre).T @ (z - centre) / len(z)
    weight = ridge * seen.diagonal().mean() * torch.eye(len(seen), dtype=seen.dtype)
    turned: Tensor = torch.linalg.solve(seen + weight, (z - centre).T @ (x - x.mean(0)) / len(z))
    made = x.mean(0) + (prototypes.double() - centre) @ turned
    return made.clamp(0, 1).float().reshape(len(prototypes), *images.shape[1:])


@dataclass(frozen=True)
class Decoder(PrototypeInversion, name="decoder"):
    """Maps a mean of features to an image by a network that was trained on the attacker's images.

    Mahendran and Vedaldi, CVPR 2015; Dosovitskiy and Brox, CVPR 2016: a network that was trained to invert
    features.

    Deviations: one hidden layer, trained for a few hundred steps on the attacker's own images.
    """

    steps: int = 300
    hidden: int = 256
    lr: float = 2e-3

    def draw(self, view: MeanView) -> Tensor:
        with torch.no_grad():
            features = view.looks(view.elsewhere).float()
        made = decoded(features, view.elsewhere, view.mean[None], view.key, self.steps, self.hidden, self.lr)
        return made[0]


def decoded(features: Tensor, images: Tensor, asked: Tensor, key: Key, steps: int, hidden: int, lr: float) -> Tensor:
    """Images from features `asked`, by a network that was trained on other images."""
    mean, spread = features.mean(0), features.std(0).clamp_min(1e-6)
    x, y = (features - mean) / spread, images.flatten(1).float()
    wide = [(x.shape[1], hidden), (hidden, y.shape[1])]
    draw = keys.generator(key)
    weights = [torch.randn(size, generator=draw).mul_(math.sqrt(2 / size[0])).requires_grad_() for size in wide]
    biases = [torch.zeros(size[1]).requires_grad_() for size in wide]

    def image(z: Tensor) -> Tensor:
        return torch.sigmoid(torch.relu(z @ weights[0] + biases[0]) @ weights[1] + biases[1])

    leaves = [*weights, *biases]
    adam = torch.optim.Adam(leaves, lr)
    for _ in range(steps):
        slopes = torch.autograd.grad(((image(x) - y) ** 2).mean(), leaves)
        for leaf, slope in zip(leaves, slopes, strict=True):
            leaf.grad = slope
        adam.step()
    return image((asked.float() - mean) / spread).detach().reshape(len(asked), *images.shape[1:])
