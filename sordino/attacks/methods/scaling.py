"""Blanchard, El Mhamdi, Guerraoui and Stainer, NeurIPS 2017: one upload of any length decides a plain mean.

Deviations: the direction is the attacker's own honest one; only the length is false.
"""

from __future__ import annotations

from dataclasses import dataclass

from sordino import tree
from sordino.attacks.attacked_run import AttackedRun
from sordino.attacks.poisoned import LiarsView
from sordino.attacks.poisoning import Poisoning
from sordino.tree import Tree


@dataclass(frozen=True)
class Scaling(Poisoning, name="scaling"):
    """Sends the change of the model that it should, a thousand times as long."""

    strength: float = 1000.0

    def sent(self, upload: Tree, moment: LiarsView, run: AttackedRun) -> Tree:
        return tree.scale(self.strength, upload)
