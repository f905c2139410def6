"""Prototype inversion: attacks that reconstruct the images behind a mean of features, and their judge.

The judge compares each reconstruction with the nearest of the client's images of the class; the control is the mean of
the attacker's own images of that class.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from sordino.attacks.attack import Attack
from sordino.attacks.attacked_run import AttackedRun, MeanView
from sordino.attacks.reconstruction import MOST, Likeness, compared, psnr, ssim
from sordino.results.attack_file import AttackFinding

NO_MEANS = "no client of this run sends means of its features"


class PrototypeInversion(Attack):
    """Reconstruction of the images behind a mean of features."""

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
