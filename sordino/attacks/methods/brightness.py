"""Property inference: Melis, Song, De Cristofaro and Shmatikov, S&P 2019.

Deviations: the property is how bright a client's images are; a linear discriminant on gradients of groups of the
attacker's own images takes the place of a random forest on updates of shadow models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import keys, tree
from sordino.accounting.claims import Adversary
from sordino.attacks.attack import Attack
from sordino.attacks.attacked_run import AttackedRun, UpdateView
from sordino.attacks.member_inference import MemberScores, by_area
from sordino.attacks.reconstruction import NOTHING, gradient
from sordino.keys import Key
from sordino.results.findings import AttackFinding

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
            if len(truth) < UPLOADS and (told := run.sided(bare, replay, self.much)):
                scores.append(torch.nan_to_num(self.score([view for view, _ in told]).double(), 0.0))
                truth += [coin for _, coin in told]
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
