"""Attacks that draw pictures: the judge holds each against the true images, best match first, beside what somebody
draws who saw nothing.

PSNR in decibels says how far pixels are off, SSIM whether the structure is there. A guess is the mean of the images
that the attacker has, or as many of them at random: whichever comes nearer.
"""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sordino import keys
from sordino.attacks.attack import Attack, judged
from sordino.attacks.attacked_run import AttackedRun, UpdateView, Victim
from sordino.attacks.likeness import psnr, ssim
from sordino.results.attack_file import AttackFinding, BesideGuess, PictureRow

MOST = 100.0  # decibels that are counted: more is exact
MARGIN = 3.0  # decibels above a guess that count as having reached something
SHOWN = 8  # images of a picture
NOTHING = "nothing that tells of a model reaches this attacker"


class Likeness(NamedTuple):
    psnr: float  # mean over true images of their best matches
    ssim: float
    matched: Tensor  # the image that was drawn of each true one


class Reconstruction(Attack):
    """Draws the images behind an update."""

    sees = "server"

    @abstractmethod
    def draw(self, view: UpdateView) -> Tensor:
        """Images [any number, c, h, w] between 0 and 1, the likeliest first."""

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
        figures = [
            BesideGuess(name=name, unit=unit, value=of(drawn), baseline=of(blind), control=of(bare) if bare else None)
            for name, unit, of in (("PSNR", "dB", _psnr), ("SSIM", "", _ssim))
        ]
        headline = figures[0]
        verdict, why = judged(headline.value, headline.baseline, headline.control, MARGIN)
        shown = _shown(victims, drawn, bare, blind)
        return self.untried(run, why).beside(verdict=verdict, measured=tuple(figures), pictures=shown)

    def _judged(self, victim: Victim, view: UpdateView) -> Likeness:
        return likeness(self.draw(view)[: len(victim.images)], victim.images)


def likeness(drawn: Tensor, truth: Tensor) -> Likeness:
    """Each true image against the drawn one that it is matched with: one each, so that the errors are least together.
    Where fewer were drawn, the others count as grey.
    """
    from scipy.optimize import linear_sum_assignment

    drawn = torch.nan_to_num(drawn.detach().float(), 0.5).clamp(0, 1)
    short = len(truth) - len(drawn)
    if short > 0:
        drawn = torch.cat([drawn, torch.full_like(truth[:1], 0.5).expand(short, -1, -1, -1)])
    far = torch.cdist(truth.double().flatten(1), drawn.double().flatten(1)) ** 2
    _, chosen = linear_sum_assignment(far.numpy())
    matched = drawn[torch.from_numpy(chosen)]
    return Likeness(float(psnr(matched, truth).clamp_max(MOST).mean()), float(ssim(matched, truth).mean()), matched)


def guessed(victim: Victim) -> Likeness:
    """What somebody draws who saw nothing of this client."""
    view, truth = victim.view, victim.images
    mean = likeness(view.elsewhere.mean(0, keepdim=True).expand(len(truth), -1, -1, -1), truth)
    order = keys.permutation(keys.fold(view.key, "guess"), len(view.elsewhere))[: len(truth)]
    some = likeness(view.elsewhere[order], truth)
    best = max(mean, some, key=lambda one: one.psnr)
    return best._replace(ssim=max(mean.ssim, some.ssim))


def _psnr(found: Sequence[Likeness]) -> float:
    return sum(one.psnr for one in found) / len(found)


def _ssim(found: Sequence[Likeness]) -> float:
    return sum(one.ssim for one in found) / len(found)


def _shown(
    victims: Sequence[Victim], drawn: Sequence[Likeness], bare: Sequence[Likeness], blind: Sequence[Likeness]
) -> tuple[PictureRow, ...]:
    of: Callable[[Sequence[Likeness]], Tensor] = lambda found: torch.cat([one.matched for one in found])  # noqa: E731
    rows = [
        ("original", torch.cat([victim.images for victim in victims])),
        ("reconstruction", of(drawn)),
        *([("without protection", of(bare))] if bare else []),
        ("guess", of(blind)),
    ]
    return tuple(row(told, images[:SHOWN]) for told, images in rows)


def row(told: str, images: Tensor) -> PictureRow:
    """Images [n, c, h, w] between 0 and 1 as bytes."""
    bytes_ = (255 * images).round().to(torch.uint8).movedim(1, -1).contiguous()
    n, height, width, channels = bytes_.shape
    return PictureRow(
        told=told, shape=(n, height, width, channels), pixels=base64.b64encode(bytes_.numpy().tobytes()).decode()
    )
