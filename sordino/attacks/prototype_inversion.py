"""Attacks that draw what a mean of features was made of: the judge holds each picture against the nearest of the
client's images of the class, beside the mean of the attacker's own images of that class.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from sordino.attacks.attack import Attack, judged
from sordino.attacks.attacked_run import AttackedRun, MeanView
from sordino.attacks.likeness import psnr, ssim
from sordino.attacks.reconstruction import MARGIN, MOST, SHOWN, row
from sordino.results.attack_file import AttackFinding, BesideGuess, PictureRow

NO_MEANS = "no client of this run tells means of its features"


class PrototypeInversion(Attack):
    """Draws the images behind a mean of features."""

    sees = "server"

    @abstractmethod
    def draw(self, view: MeanView) -> Tensor:
        """One image [c, h, w] between 0 and 1."""

    def unfit(self, run: AttackedRun) -> str:
        if run.by not in (None, "server"):
            return "means of features are told to the server alone"
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
        figures = [
            BesideGuess(name=name, unit=unit, value=of(seen), baseline=of(blind), control=of(free))
            for name, unit, of in (("PSNR", "dB", _psnr), ("SSIM", "", _ssim))
        ]
        first = figures[0]
        verdict, why = judged(first.value, first.baseline, first.control, MARGIN)
        rows = [_shown("nearest original", [one.true for one in seen])]
        rows.append(_shown("reconstruction", [one.drawn for one in seen]))
        rows += [_shown("without protection", [one.drawn for one in free])] if protected else []
        rows.append(_shown("guess: the mean of the class", [one.drawn for one in blind]))
        return self.untried(run, why).beside(verdict=verdict, measured=tuple(figures), pictures=tuple(rows))


class Nearest(NamedTuple):
    psnr: float
    ssim: float
    true: Tensor  # the image that was come nearest to
    drawn: Tensor


def _shown(told: str, images: list[Tensor]) -> PictureRow:
    return row(told, torch.stack(images[:SHOWN]))


def nearest(drawn: Tensor, images: Tensor) -> Nearest:
    """The true image that a drawn one comes nearest to."""
    drawn = torch.nan_to_num(drawn.detach().float(), 0.5).clamp(0, 1)
    every = drawn.expand_as(images)
    close = psnr(every, images).clamp_max(MOST)
    best = int(close.argmax())
    alike = float(ssim(every[best : best + 1], images[best : best + 1]))
    return Nearest(float(close[best]), alike, images[best], drawn)


def guess(view: MeanView) -> Tensor:
    """The mean of the attacker's own images of the class, or of all where it has none."""
    same = view.elsewhere[view.labels == view.label]
    return (same if len(same) else view.elsewhere).mean(0)


def _psnr(found: list[Nearest]) -> float:
    return sum(one.psnr for one in found) / len(found)


def _ssim(found: list[Nearest]) -> float:
    return sum(one.ssim for one in found) / len(found)
