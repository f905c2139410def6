"""Melis, Song, De Cristofaro and Shmatikov, S&P 2019: property inference.

Deviations: the property is how bright a client's images are; a linear discriminant on gradients of groups of the
attacker's own images takes the place of a random forest on updates of shadow models.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import keys, tree
from sordino.attacks.attacked_run import UpdateView
from sordino.attacks.matching import gradient
from sordino.attacks.properties import PropertyInference
from sordino.keys import Key

GROUPS = 40  # of the attacker's own images, of either kind


@dataclass(frozen=True)
class Brightness(PropertyInference, name="brightness"):
    """Tells clients with bright images from clients with dark ones by their uploads."""

    def much(self, images: Tensor) -> Tensor:
        return images.flatten(1).mean(1)

    def score(self, views: list[UpdateView]) -> Tensor:
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
    """Gradients at the model that went down, of groups of so many of the attacker's images."""
    found = []
    for i in range(GROUPS):
        few = rows[keys.permutation(keys.fold(key, i), len(rows))[:many]]
        shares = F.one_hot(view.labels[few].long(), view.task.labels).float()
        found.append(
            torch.cat([g.detach().flatten() for g in gradient(view.task, view.before, view.elsewhere[few], shares)])
        )
    return torch.stack(found)
