"""Fang, Cao, Jia and Gong, USENIX Security 2020: label l becomes C - 1 - l; Bhagoji, Chakraborty, Mittal and Calo, ICML
2019: the change is boosted.

Deviations: none.
"""

from __future__ import annotations

from dataclasses import dataclass

from sordino.attacks.attacked_run import AttackedRun
from sordino.attacks.poisoned import LiarsView
from sordino.attacks.poisoning import Poisoning, boosted
from sordino.tree import Tree
from sordino.types import Examples


@dataclass(frozen=True)
class LabelFlip(Poisoning, name="label_flip"):
    """Trains on wrong labels, and sends its change boosted, so that attackers outweigh all others in a plain mean."""

    def rows(self, own: Examples, classes: int) -> Examples:
        return own._replace(y=classes - 1 - own.y)

    def sent(self, upload: Tree, moment: LiarsView, run: AttackedRun) -> Tree:
        return boosted(upload, moment)
