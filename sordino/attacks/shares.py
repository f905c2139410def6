"""Attacks that count: how many of a client's images are of each class.

The judge says which share of the labels was found: the overlap of both counts. A guess is what is frequent among the
images that the attacker has.

SlaugFL (IEEE Transactions on Mobile Computing, 2024) chooses devices by the classes that they hold. They are inferred
from how well a model does on each class: one that has seen no image of a class hardly ever names it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sordino.attacks.attack import Attack, judged
from sordino.attacks.attacked_run import AttackedRun, UpdateView
from sordino.attacks.reconstruction import NOTHING
from sordino.results.attack_file import AttackFinding, BesideGuess

MARGIN = 0.05  # of the overlap above a guess, at least
DEVIATIONS = 3  # of the labels that a guess happens to find: so few labels are found by luck


class LabelCounting(Attack):
    """Counts the labels behind an update."""

    sees = "server"

    @abstractmethod
    def count(self, view: UpdateView) -> Tensor:
        """How many images of each class there are, or in which proportion."""

    def unfit(self, run: AttackedRun) -> str:
        return run.without_images  # the attacker looks at images of its own

    def play(self, run: AttackedRun) -> AttackFinding:
        victims = run.victims(run.by or type(self).sees)
        if not victims:
            return self.untried(run, NOTHING)
        true = torch.stack([torch.bincount(one.labels, minlength=run.setup.public.classes) for one in victims])
        seen = overlap([self.count(one.view) for one in victims], true)
        known = torch.bincount(victims[0].view.labels, minlength=run.setup.public.classes)
        blind = overlap([known] * len(victims), true)
        views = [one.bare for one in victims if one.bare is not None]
        control = overlap([self.count(view) for view in views], true) if views else None
        luck = DEVIATIONS * math.sqrt(blind * (1 - blind) / max(1, int(true.sum())))
        verdict, why = judged(seen, blind, control, max(MARGIN, luck))
        figure = BesideGuess(name="labels found", value=seen, baseline=blind, control=control)
        return self.untried(run, why).beside(verdict=verdict, measured=(figure,))


def overlap(counts: Sequence[Tensor], true: Tensor) -> float:
    """The mean share of labels that both counts agree on: 1 less the total variation between them."""
    found = torch.nan_to_num(torch.stack([count.double() for count in counts]), 0.0).clamp_min(0)
    return float(torch.minimum(shares(found), shares(true)).sum(1).mean())


class Inferred(NamedTuple):
    """Accuracy of guessed class shares, device by device."""

    total_variation: Tensor  # between the shares of classes as guessed and as they are
    of_uniform: Tensor  # the same, for whoever guesses that all classes are equally frequent
    spearman: Tensor  # of guessed and true shares; 0 where one side is the same for all classes


def shares(table: Tensor) -> Tensor:
    """The table's rows [devices, classes] as shares that add up to one; a row of zeros becomes equal shares."""
    table, classes = table.double(), table.shape[1]
    total = table.sum(1, keepdim=True)
    return torch.where(total > 0, table / total.clamp_min(1e-300), 1 / classes)


def inferred(recall: Tensor, counts: Tensor) -> Inferred:
    """A guess of every device's class shares from `recall` of its model on every class [devices, classes], against
    its number of examples of each.
    """
    guessed, true = shares(recall), shares(counts)
    away = [(side - true).abs().sum(1) / 2 for side in (guessed, torch.full_like(true, 1 / true.shape[1]))]
    return Inferred(away[0], away[1], spearman(guessed, true))


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Correlation of ranks, row by row; ties share their mean rank."""
    from scipy.stats import rankdata

    x, y = (torch.from_numpy(rankdata(side.double().numpy(), axis=1)) for side in (a, b))
    x, y = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    size = torch.sqrt((x**2).sum(1) * (y**2).sum(1))
    return torch.where(size > 0, (x * y).sum(1) / size.clamp_min(1e-300), 0.0)
