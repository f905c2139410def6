"""Label inference: Wainakh et al., PoPETs 2022; Zhao, Mopuri and Bilen, 2020 (arXiv 2001.02610).

Deviations: shares of all classes are the solution of one linear system, built from the model's predictions on the
attacker's own images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.attacks.attack import Attack, judged
from sordino.attacks.attacked_run import AttackedRun
from sordino.attacks.reconstruction import NOTHING, label_counts
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
