"""Li, Xu, Chen, Giannakis and Ling, "RSA", AAAI 2019: the sign-flipping attack.

Deviations: ten times the length, so that a fifth of the clients turns a plain mean around.
"""

from __future__ import annotations

from dataclasses import dataclass

from sordino import tree
from sordino.attacks.attacked_run import AttackedRun
from sordino.attacks.poisoned import LiarsView
from sordino.attacks.poisoning import Poisoning
from sordino.tree import Tree


@dataclass(frozen=True)
class SignFlip(Poisoning, name="sign_flip"):
    """Sends the change of the model that it should, in the opposite direction and ten times as long."""

    strength: float = 10.0

    def sent(self, upload: Tree, moment: LiarsView, run: AttackedRun) -> Tree:
        return tree.scale(-self.strength, upload)
