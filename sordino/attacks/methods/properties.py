"""Property inference from uploads: how bright a client's images are, and its shares of labels. One class for each
paper.

Brightness: Melis, Song, De Cristofaro and Shmatikov, S&P 2019. Deviations: the property is how bright a client's images
are; a linear discriminant on gradients of groups of the attacker's own images takes the place of a random forest on
updates of shadow models.

Labels: Wainakh et al., PoPETs 2022; Zhao, Mopuri and Bilen, 2020 (arXiv 2001.02610). Deviations: shares of all classes
are the solution of one linear system, built from the model's predictions on the attacker's own images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import keys, tree
from sordino.accounting.claims import Adversary
from sordino.attacks.attack import Attack, judged
from sordino.attacks.attacked_run import AttackedRun, UpdateView
from sordino.attacks.methods.members import MemberScores, by_area
from sordino.attacks.reconstruction import NOTHING, gradient, label_counts
from sordino.keys import Key
from sordino.results.findings import AttackFinding, BesideGuess

MARGIN = 0.05  # of the overlap above a guess, at least
DEVIATIONS = 3  # standard deviations of the guess, where few labels are found by luck


@dataclass(frozen=True)
class LabelShares(Attack, name="label_shares"):
    """Counts the labels of a client from the gradient of the last layer's biases.

    Judged by the overlap of inferred and true counts. The baseline to beat, a guess without the update, is the label
    distribution of the attacker's own images.
    """

    sees = "server"

    def unfit(self, run: AttackedRun) -> str:
        return run.without_images  # the attacker looks at images of its own

    def play(self, run: AttackedRun) -> AttackFinding:
        victims = run.victims(run.by or type(self).sees)
        if not victims:
            return self.untried(run, NOTHING)
        true = torch.stack([torch.bincount(one.labels, minlength=run.setup.public.classes) for one in victims])
        seen = overlap([label_counts(one.view) for one in victims], true)
        known = torch.bincount(victims[0].view.labels, minlength=run.setup.public.classes)
        blind = overlap([known] * len(victims), true)
        views = [one.bare for one in victims if one.bare is not None]
        control = overlap([label_counts(view) for view in views], true) if views else None
        luck = DEVIATIONS * math.sqrt(blind * (1 - blind) / max(1, int(true.sum())))
        verdict, why = judged(seen, blind, control, max(MARGIN, luck))
        figure = BesideGuess(name="labels found", value=seen, baseline=blind, control=control)
        return self.untried(run, why).beside(verdict=verdict, measured=(figure,))


def overlap(counts: Sequence[Tensor], true: Tensor) -> float:
    """Mean share of labels on which both counts agree: 1 minus the total variation distance between them."""
    found = torch.nan_to_num(torch.stack([count.double() for count in counts]), 0.0).clamp_min(0)
    return float(torch.minimum(shares(found), shares(true)).sum(1).mean())


def shares(table: Tensor) -> Tensor:
    """Rows [devices, classes] scaled to sum to one; a row of zeros becomes equal shares."""
    table, classes = table.double(), table.shape[1]
    total = table.sum(1, keepdim=True)
    return torch.where(total > 0, table / total.clamp_min(1e-300), 1 / classes)


UPLOADS = 100  # uploads that are scored, at least
REPLAYS = 20  # replays, at most
GROUPS = 40  # of the attacker's own images, of either kind


@dataclass(frozen=True)
class Brightness(Attack, name="brightness"):
    """Tells clients with bright images from clients with dark ones by their uploads.

    The model was not meant to learn this. Every client trains on the half of its images that is brighter, or on the
    other half. The judge compares scores of uploads from both kinds of clients.
    """

    sees: ClassVar[Adversary] = "server"
    costly: ClassVar[bool] = True

    def unfit(self, run: AttackedRun) -> str:
        if run.without_images:
            return run.without_images
        return "" if run.seen.each and (run.by or "server") == "server" else NOTHING

    def play(self, run: AttackedRun) -> AttackFinding:
        seen, control = run.beside_control(lambda bare: self._sides(run, bare))
        if not min(map(len, seen)):
            return self.untried(run, NOTHING)
        return by_area(self.untried(run, ""), seen, control, "clients with the property")

    def _sides(self, run: AttackedRun, bare: bool) -> MemberScores:
        scores, truth = [torch.empty(0, dtype=torch.float64)], list[bool]()
        for replay in range(REPLAYS):
            if len(truth) < UPLOADS and (sides := run.sided(bare, replay, self.much)):
                scores.append(torch.nan_to_num(self.score([view for view, _ in sides]).double(), 0.0))
                truth += [coin for _, coin in sides]
        every, has = torch.cat(scores), torch.tensor(truth, dtype=torch.bool)
        return MemberScores(every[has], every[~has])

    def much(self, images: Tensor) -> Tensor:
        """Brightness of each of these images [n, c, h, w]."""
        return images.flatten(1).mean(1)

    def score(self, views: list[UpdateView]) -> Tensor:
        """One score for each upload of a round, larger if its images seem to be brighter."""
        uploads = torch.stack([tree.flat(one.gradient).float() for one in views])
        order = self.much(views[0].elsewhere).argsort()
        dark, bright = order.tensor_split(2)
        many = min(round(sum(one.images for one in views) / len(views)), len(dark))
        groups = [
            _groups(views[0], rows, many, keys.fold(views[0].key, side)) for side, rows in enumerate((dark, bright))
        ]
        middle, away = (groups[0].mean(0) + groups[1].mean(0)) / 2, groups[1].mean(0) - groups[0].mean(0)
        spread = (groups[0].var(0) + groups[1].var(0)) / 2
        return (uploads - middle) @ (away / (spread + spread.mean().clamp_min(1e-30)))


def _groups(view: UpdateView, rows: Tensor, many: int, key: Key) -> Tensor:
    """Gradients at the broadcast model, each of a group of `many` of the attacker's own images."""
    found = []
    for i in range(GROUPS):
        few = rows[keys.permutation(keys.fold(key, i), len(rows))[:many]]
        shares = F.one_hot(view.labels[few].long(), view.task.labels).float()
        found.append(
            torch.cat([g.detach().flatten() for g in gradient(view.task, view.before, view.elsewhere[few], shares)])
        )
    return torch.stack(found)
