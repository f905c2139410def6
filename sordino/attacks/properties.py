"""Attacks that ask for a property of all of a client's images, which nobody meant to teach the model.

In this game every client holds the half of its images that has most of the property, or the other half. The judge holds
scores of the first kind of clients against scores of the second.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from sordino.accounting.claims import Adversary
from sordino.attacks.attack import Attack
from sordino.attacks.attacked_run import AttackedRun, UpdateView
from sordino.attacks.membership import TwoSides, by_area
from sordino.attacks.reconstruction import NOTHING
from sordino.results.attack_file import AttackFinding

UPLOADS = 100  # that are asked about, at least
REPLAYS = 20  # at most


class PropertyInference(Attack):
    """Scores uploads by how much of a property the images behind them seem to have."""

    sees: ClassVar[Adversary] = "server"
    costly: ClassVar[bool] = True

    @abstractmethod
    def much(self, images: Tensor) -> Tensor:
        """How much of the property each of these images [n, c, h, w] has. It is no secret what is asked for."""

    @abstractmethod
    def score(self, views: list[UpdateView]) -> Tensor:
        """One number for each upload of one round, larger where the images have more of it."""

    def unfit(self, run: AttackedRun) -> str:
        if run.without_images:
            return run.without_images
        return "" if run.seen.each and (run.by or "server") == "server" else NOTHING

    def play(self, run: AttackedRun) -> AttackFinding:
        seen = self._sides(run, bare=False)
        if not min(map(len, seen)):
            return self.untried(run, NOTHING)
        control = None if run.protected else seen
        if run.protected and run.has_control:
            control = self._sides(run, bare=True)
        return by_area(self.untried(run, ""), seen, control, "clients with the property")

    def _sides(self, run: AttackedRun, bare: bool) -> TwoSides:
        scores, truth = [torch.empty(0, dtype=torch.float64)], list[bool]()
        for replay in range(REPLAYS):
            if len(truth) < UPLOADS and (told := run.sided(bare, replay, self.much)):
                scores.append(torch.nan_to_num(self.score([view for view, _ in told]).double(), 0.0))
                truth += [coin for _, coin in told]
        every, has = torch.cat(scores), torch.tensor(truth, dtype=torch.bool)
        return TwoSides(every[has], every[~has])
