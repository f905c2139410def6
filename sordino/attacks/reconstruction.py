"""Reconstruction: attacks that reconstruct the images behind an update, their judge, and the matching of gradients on
which most of them rest.

A gradient attacker's copy of the model is the public network, with dropout off. Labels are optimised together with the
images, or known.

The judge matches reconstructed images with the true ones and compares them by PSNR, in decibels, and by SSIM (Wang,
Bovik, Sheikh and Simoncelli, IEEE Transactions on Image Processing 2004), beside a guess without any knowledge of the
client: the mean of the images that the attacker has, or as many of these images at random, whichever is more similar.
Images are [n, c, h, w] between 0 and 1.
"""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import keys
from sordino.attacks.attack import Attack, judged
from sordino.attacks.attacked_run import AttackedRun, UpdateView, Victim
from sordino.keys import Key
from sordino.results.findings import AttackFinding, BesideGuess, PictureRow
from sordino.types import Params, Task

Mismatch = Callable[[list[Tensor]], Tensor]  # of a gradient, tensor by tensor, from the observed one


def gradient(task: Task, params: Params, x: Tensor, shares: Tensor) -> list[Tensor]:
    """Gradient of the mean loss for images with class probabilities `shares`, differentiable with respect to both."""
    leaves = [value.detach().requires_grad_() for value in params.values()]
    own = dict(zip(params, leaves, strict=True))
    log_probabilities = F.log_softmax(task.head(own, task.look(own, x)), 1)
    loss = -(shares * log_probabilities).sum(1).mean()
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
    probabilities = F.softmax(view.task.head(view.before, view.task.look(view.before, view.elsewhere)), 1).detach()
    own = torch.stack([probabilities[view.labels == label].mean(0) for label in range(classes)])  # nan: it has none
    own = torch.where(torch.isnan(own), probabilities.mean(0), own)
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
    """Total variation of images: the mean absolute difference of neighbouring pixels, summed over images."""
    down, across = (x[..., 1:, :] - x[..., :-1, :]).abs(), (x[..., 1:] - x[..., :-1]).abs()
    return down.flatten(1).mean(1).sum() + across.flatten(1).mean(1).sum()


MOST = 100.0  # decibels that are counted: more is exact
MARGIN = 3.0  # decibels above a guess that count as success
SHOWN = 8  # images of a picture
WINDOW, SPREAD = 11, 1.5  # of the Gaussian that SSIM looks through; smaller images get the largest odd window that fits
STEADY = (0.01**2, 0.03**2)
NOTHING = "this adversary sees nothing of the model"


class Likeness(NamedTuple):
    """Mean similarity over pairs of a true image and the reconstructed one matched with it."""

    psnr: float
    ssim: float
    matched: Tensor
    true: Tensor


class Reconstruction(Attack):
    """Base class of attacks that reconstruct the images behind an update."""

    sees = "server"

    @abstractmethod
    def draw(self, view: UpdateView) -> Tensor:
        """Reconstructed images [any number, c, h, w] between 0 and 1, the likeliest first."""

    def unfit(self, run: AttackedRun) -> str:
        return run.without_images

    def play(self, run: AttackedRun) -> AttackFinding:
        by = run.by or type(self).sees
        victims = run.victims(by)
        if not victims:
            return self.untried(run, NOTHING)
        drawn = [self._judged(victim, victim.view) for victim in victims]
        bare = [self._judged(victim, victim.bare) for victim in victims if victim.bare is not None]
        blind = [guessed(victim) for victim in victims]
        return compared(self.untried(run, ""), drawn, blind, bare, run.protected)

    def _judged(self, victim: Victim, view: UpdateView) -> Likeness:
        return likeness(self.draw(view)[: len(victim.images)], victim.images)


def likeness(drawn: Tensor, truth: Tensor) -> Likeness:
    """Likeness of reconstructed and true images, matched one to one so that the total error is least. True images
    without a reconstruction are compared with grey.
    """
    from scipy.optimize import linear_sum_assignment

    drawn = torch.nan_to_num(drawn.detach().float(), 0.5).clamp(0, 1)
    short = len(truth) - len(drawn)
    if short > 0:
        drawn = torch.cat([drawn, torch.full_like(truth[:1], 0.5).expand(short, -1, -1, -1)])
    far = torch.cdist(truth.double().flatten(1), drawn.double().flatten(1)) ** 2
    _, chosen = linear_sum_assignment(far.numpy())
    matched = drawn[torch.from_numpy(chosen)]
    return Likeness(
        float(psnr(matched, truth).clamp_max(MOST).mean()), float(ssim(matched, truth).mean()), matched, truth
    )


def guessed(victim: Victim) -> Likeness:
    """Similarity to the true images of two guesses that use no knowledge of this client: the better of both."""
    view, truth = victim.view, victim.images
    mean = likeness(view.elsewhere.mean(0, keepdim=True).expand(len(truth), -1, -1, -1), truth)
    order = keys.permutation(keys.fold(view.key, "guess"), len(view.elsewhere))[: len(truth)]
    some = likeness(view.elsewhere[order], truth)
    best = max(mean, some, key=lambda one: one.psnr)
    return best._replace(ssim=max(mean.ssim, some.ssim))


def compared(
    finding: AttackFinding,
    drawn: Sequence[Likeness],
    guess: Sequence[Likeness],
    bare: Sequence[Likeness],
    protected: bool,
    original: str = "original",
    guessing: str = "guess",
) -> AttackFinding:
    """The finding of an attack that reconstructs images: PSNR and SSIM beside those of a guess and of the run without
    protection, the verdict by PSNR, and the pictures. `bare` is empty where the run has no such control. `original` and
    `guessing` name rows of pictures.
    """
    figures = tuple(
        BesideGuess(name=name, unit=unit, value=of(drawn), baseline=of(guess), control=of(bare) if bare else None)
        for name, unit, of in (("PSNR", "dB", _psnr), ("SSIM", "", _ssim))
    )
    first = figures[0]
    verdict, why = judged(first.value, first.baseline, first.control, MARGIN)
    rows = [
        (original, [one.true for one in drawn]),
        ("reconstruction", [one.matched for one in drawn]),
        *([("without protection", [one.matched for one in bare])] if bare and protected else []),
        (guessing, [one.matched for one in guess]),
    ]
    pictures = tuple(row(caption, torch.cat(images)[:SHOWN]) for caption, images in rows)
    return finding.beside(verdict=verdict, why=why, measured=figures, pictures=pictures)


def _psnr(found: Sequence[Likeness]) -> float:
    return sum(one.psnr for one in found) / len(found)


def _ssim(found: Sequence[Likeness]) -> float:
    return sum(one.ssim for one in found) / len(found)


def row(caption: str, images: Tensor) -> PictureRow:
    """One row of a picture, with a caption: images [n, c, h, w] between 0 and 1, side by side."""
    bytes_ = (255 * images).round().to(torch.uint8).movedim(1, -1).contiguous()
    n, height, width, channels = bytes_.shape
    return PictureRow(
        caption=caption, shape=(n, height, width, channels), pixels=base64.b64encode(bytes_.numpy().tobytes()).decode()
    )


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each image in decibels; infinite for equal images."""
    return -10 * torch.log10(((a.double() - b.double()) ** 2).flatten(1).mean(1))


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity of each image: the mean over its channels and all places where the window fits; 1 for equal
    images.
    """
    count = len(a)
    a, b = a.double().flatten(0, 1)[:, None], b.double().flatten(0, 1)[:, None]  # each channel is compared as one image
    side = min(WINDOW, *(s - (s + 1) % 2 for s in a.shape[-2:]))
    bell = torch.exp(-((torch.arange(side).double() - side // 2) ** 2) / (2 * SPREAD**2))
    window = torch.outer(bell, bell)[None, None] / bell.sum() ** 2
    means = [F.conv2d(x, window) for x in (a, b)]
    (aa, bb, ab) = (F.conv2d(x * y, window) for x, y in ((a, a), (b, b), (a, b)))
    (light, contrast), (ma, mb) = STEADY, means
    top = (2 * ma * mb + light) * (2 * (ab - ma * mb) + contrast)
    bottom = (ma**2 + mb**2 + light) * (aa - ma**2 + bb - mb**2 + contrast)
    return (top / bottom).reshape(count, -1).mean(1)
