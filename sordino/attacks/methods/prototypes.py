"""Prototype inversion: reconstruct images from means of features, by a ridge regression or a trained decoder.

The judge compares each reconstruction with the nearest of the client's images of the class; the control is the mean of
the attacker's own images of that class.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino import keys
from sordino.attacks.attack import Attack
from sordino.attacks.attacked_run import AttackedRun, MeanView
from sordino.attacks.reconstruction import MOST, Likeness, compared, psnr, ssim
from sordino.keys import Key
from sordino.results.findings import AttackFinding

NO_MEANS = "no client of this run sends means of its features"


class PrototypeInversion(Attack):
    """Base class of attacks that reconstruct an image from a mean of features."""

    sees = "server"

    @abstractmethod
    def draw(self, view: MeanView) -> Tensor:
        """A reconstructed image [c, h, w] between 0 and 1."""

    def unfit(self, run: AttackedRun) -> str:
        if run.by not in (None, "server"):
            return "only the server receives means of features"
        return run.without_images or ("" if run.setup.preparation and run.prepared.means else NO_MEANS)

    def play(self, run: AttackedRun) -> AttackFinding:
        told = run.means(bare=False)
        protected = any(phase.algorithm.read.offer() is not None for phase in run.setup.preparation)
        bare = run.means(bare=True) if protected else told
        if not told or not bare:
            return self.untried(run, NO_MEANS)
        seen = [nearest(self.draw(view), images) for view, images in told]
        blind = [nearest(guess(view), images) for view, images in told]
        free = [nearest(self.draw(view), images) for view, images in bare] if protected else seen
        names = "nearest original", "guess: the mean of the class"
        return compared(self.untried(run, ""), seen, blind, free, protected, *names)


def nearest(drawn: Tensor, images: Tensor) -> Likeness:
    """Likeness of a reconstructed image to the true image nearest to it."""
    drawn = torch.nan_to_num(drawn.detach().float(), 0.5).clamp(0, 1)
    every = drawn.expand_as(images)
    close = psnr(every, images).clamp_max(MOST)
    best = int(close.argmax())
    true = images[best : best + 1]
    return Likeness(float(close[best]), float(ssim(every[best : best + 1], true)), drawn[None], true)


def guess(view: MeanView) -> Tensor:
    """A guess without observation: the mean of the attacker's own images of the class, or of all if there are none."""
    same = view.elsewhere[view.labels == view.label]
    return (same if len(same) else view.elsewhere).mean(0)


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
