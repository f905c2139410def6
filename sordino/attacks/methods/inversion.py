"""Inversion: reconstruct the images behind one update from its gradient, or from means of features (prototypes) by a
ridge regression or a trained decoder. One class for each paper.

Of prototypes the judge compares each reconstruction with the nearest of the client's images of the class; the control
is the mean of the attacker's own images of that class.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import keys
from sordino.attacks.attack import Attack
from sordino.attacks.attacked_run import AttackedRun, MeanView, UpdateView
from sordino.attacks.reconstruction import (
    MOST,
    Likeness,
    Mismatch,
    Reconstruction,
    compared,
    gradient,
    label_counts,
    labels_of,
    psnr,
    squared,
    ssim,
    start,
    turned,
    variation,
)
from sordino.keys import Key
from sordino.results.findings import AttackFinding
from sordino.types import Params

ALIKE = 1e-3  # mean square distance of two drawn images, at least
REACTS = 1e-6  # share of the largest slope below which a unit saw nothing
SAME = 1e-6  # mean square distance below which two units saw the same


@dataclass(frozen=True)
class Analytic(Reconstruction, name="analytic"):
    """Reads images off the gradient of a linear layer that sees pixels: the weights' gradient over the bias's.

    Phong, Aono, Hayashi, Wang and Moriai, IEEE TIFS 2018, section 3; Geiping et al., NeurIPS 2020, proposition 3.1.

    Deviations: with several images each unit of the layer gives a mixture of those that activate it. A mixture that
    several units share is a single image; these are returned first, then the most plausible mixtures, without
    duplicates.
    """

    def unfit(self, run: AttackedRun) -> str:
        return super().unfit(run) or (
            ""
            if first_linear(run.seen.before, run.setup.public.shape)
            else "the first layer of the model is not linear in all pixels"
        )

    def draw(self, view: UpdateView) -> Tensor:
        channels, height, width = view.elsewhere.shape[1:]
        found = first_linear(view.before, (height, width, channels))
        assert found is not None
        weight, bias = (view.gradient[name].double() for name in found)
        alive = bias.abs() > REACTS * bias.abs().max()
        mixtures = view.task.image(inputs(weight[alive], bias[alive]).reshape(-1, channels, height, width).float())
        return chosen(mixtures, bias[alive].abs().float(), view.images)


def first_linear(params: Params, shape: tuple[int, ...]) -> tuple[str, str] | None:
    """Names of weights and biases of the first layer, if it is linear with one input for every value of an image."""
    name = next(iter(params))
    bias = f"{name.removesuffix('weight')}bias"
    sees = name.endswith("weight") and params[name].dim() == 2 and params[name].shape[1] == math.prod(shape)
    return (name, bias) if sees and bias in params else None


def inputs(weight: Tensor, bias: Tensor) -> Tensor:
    """The input of each unit: exact if one image activated it, since dL/dW = dL/db x and dL/db is a number."""
    return weight / bias[:, None]


def chosen(mixtures: Tensor, strength: Tensor, many: int) -> Tensor:
    """The `many` likeliest images among `mixtures`, without duplicates: first those on which units agree; then smooth
    ones, with values in the range of pixels, from a unit with a strong gradient (`strength`).
    """
    flat = mixtures.flatten(1)
    agree = (torch.cdist(flat, flat) ** 2 / flat.shape[1] < SAME).sum(1)
    outside = ((mixtures - mixtures.clamp(0, 1)) ** 2).flatten(1).mean(1)
    rough = torch.stack([variation(one[None].clamp(0, 1)) for one in mixtures])
    worth = outside + 0.01 * rough + 0.05 * (1 - strength / strength.max().clamp_min(1e-30))
    found: list[Tensor] = []
    worth = worth - 1e3 * (agree - 1).clamp_max(3)
    for i in torch.argsort(worth).tolist():
        image = mixtures[i].clamp(0, 1)
        if all(float(((image - other) ** 2).mean()) > ALIKE for other in found):
            found.append(image)
        if len(found) == many:
            break
    return torch.stack(found) if found else mixtures[:0]  # no unit saw anything


STEPS, STARTS = 60, 2
ENOUGH = 1e-6  # distance at which a search ends


@dataclass(frozen=True)
class DeepLeakage(Reconstruction, name="dlg"):
    """Optimises images and labels until their gradient is the observed one (DLG).

    Zhu, Liu and Han, NeurIPS 2019, Algorithm 1.

    Deviations: pixels stay between 0 and 1 by a sigmoid; several starts, of which the one that matches best is
    kept; the distance is in units of the observed gradient.
    """

    steps: int = STEPS
    starts: int = STARTS

    def draw(self, view: UpdateView) -> Tensor:
        off = squared(view.gradient)
        return best([self.once(view, off, keys.fold(view.key, "dlg", i), None) for i in range(self.starts)])

    def once(self, view: UpdateView, off: Mismatch, key: keys.Key, labels: Tensor | None) -> tuple[float, Tensor]:
        """One search from one random start for images whose gradient has the smallest distance `off` to the observed
        one; labels are known, or (None) optimised too. Returns the remaining distance and the images.
        """
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
    """The images found by the search that ended with the smallest distance."""
    return min(found, key=lambda one: one[0] if one[0] == one[0] else float("inf"))[1]


@dataclass(frozen=True)
class ImprovedLeakage(DeepLeakage, name="idlg"):
    """Reads the labels off the last layer's gradient, then optimises the images alone (iDLG).

    Zhao, Mopuri and Bilen, 2020 (arXiv 2001.02610).

    Deviations: several images, whose labels are read off the last layer's biases together; the search is DLG's.
    """

    def draw(self, view: UpdateView) -> Tensor:
        labels, off = labels_of(label_counts(view), view.images), squared(view.gradient)
        return best([self.once(view, off, keys.fold(view.key, "idlg", i), labels) for i in range(self.starts)])


@dataclass(frozen=True)
class InvertingGradients(Reconstruction, name="inverting_gradients"):
    """Optimises smooth images until their gradient points in the direction of the observed one.

    Geiping, Bauermeister, Dröge and Moeller, NeurIPS 2020.

    Deviations: fewer steps; images start from noise around the mean of the attacker's own; labels are read off the
    last layer's biases.
    """

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
        views = run.means(bare=False)
        protected = any(phase.algorithm.read.offer() is not None for phase in run.setup.preparation)
        bare = run.means(bare=True) if protected else views
        if not views or not bare:
            return self.untried(run, NO_MEANS)
        seen = [nearest(self.draw(view), images) for view, images in views]
        blind = [nearest(guess(view), images) for view, images in views]
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
