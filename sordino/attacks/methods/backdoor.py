"""Gu, Dolan-Gavitt and Garg, "BadNets", 2017: a trigger in the corner; Bagdasaryan et al., AISTATS 2020: the change is
boosted.

Deviations: every second image of an attacker has the trigger; it is a bright square, a sixth of the image wide.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.attacks.attacked_run import AttackedRun
from sordino.attacks.poisoned import LiarsView
from sordino.attacks.poisoning import OFTEN, Poisoning, accuracy, boosted, every_second, harm
from sordino.privacy.readers.beside_public import taken
from sordino.results.attack_file import BesideGuess, Verdict
from sordino.tree import Tree
from sordino.types import Examples, Params


@dataclass(frozen=True)
class Backdoor(Poisoning, name="backdoor"):
    """Teaches the model that images with a bright corner are of one class, and sends its change boosted."""

    target: int = 0

    def unfit(self, run: AttackedRun) -> str:
        return run.without_images or super().unfit(run)

    def rows(self, own: Examples, classes: int) -> Examples:
        where = every_second(len(own.y))
        x = torch.where(where.view(-1, 1, 1, 1), marked(own.x), own.x)
        return own._replace(x=x, y=torch.where(where, self.target, own.y))

    def sent(self, upload: Tree, moment: LiarsView, run: AttackedRun) -> Tree:
        return boosted(upload, moment)

    def beside(self, run: AttackedRun, own: Params, clean: Params, plain: Params) -> tuple[BesideGuess, ...]:
        value, baseline, control = (self.obeyed(run, model) for model in (own, clean, plain))
        return (
            BesideGuess(name="images that obey the trigger", unit="%", value=value, baseline=baseline, control=control),
        )

    def obeyed(self, run: AttackedRun, model: Params) -> float:
        """Percentage of test images of other classes that are classified as the target once they have the trigger."""
        others = taken(run.tested, (run.tested.y != self.target).nonzero()[:, 0])
        return accuracy(run, model, others._replace(x=marked(others.x), y=torch.full_like(others.y, self.target)))

    def judged(self, lost: BesideGuess, more: tuple[BesideGuess, ...]) -> tuple[Verdict, str]:
        return harm(more[-1], OFTEN, "percent more images that obey the trigger")


def marked(x: Tensor) -> Tensor:
    """Images [n, h, w, c] with a bright square in their last corner."""
    side, found = max(2, x.shape[1] // 6), x.clone()
    found[:, -side:, -side:] = 255
    return found
