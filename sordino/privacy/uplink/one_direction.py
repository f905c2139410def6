"""Local privacy for a whole update by its direction alone: PrivUnit (Bhowmick et al., arXiv:1812.00984, 2018) as a
noise stage.

Guarantees: epsilon = 1/multiplier for everything a client holds, against everybody, whatever it holds: the length of an
update is never sent, and an update of length 0 has a random direction. Proof: the density of an answer takes two
values, whose ratio is at most e^epsilon. The expected answer is the clip radius times the direction of the update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from sordino import tree
from sordino.accounting import events
from sordino.accounting.pricing import NoisePricing, Pure
from sordino.privacy.noise.privunit import FLOAT_ERROR, parameters, privunit
from sordino.privacy.uplink.stages import Noise
from sordino.tree import Tree
from sordino.types import Bound, NoiseSource


@dataclass(frozen=True)
class PureDirection:
    """The price of one random direction: in composition any pure mechanism costs at most as much as a binary randomised
    response of the same epsilon (Kairouz, Oh and Viswanath, ICML 2015).
    """

    order: ClassVar[int] = 2
    spread: ClassVar[float] = 1.0
    pricing: ClassVar[NoisePricing] = Pure()

    def event(self, multiplier: float) -> events.Event:
        return events.Response(1 / multiplier, 2)


@dataclass(frozen=True)
class OneDirection(Noise):
    """Random directions that lean towards those of the updates, all of one length. A clip must come before it."""

    mechanism: PureDirection = PureDirection()  # type: ignore[assignment]

    def std(self, bound: Bound, multiplier: float, coordinates: int) -> float:
        self.sensitivity(bound)
        return bound.l2 * parameters(coordinates, 1 / multiplier).length / math.sqrt(coordinates)

    def release(self, x: Tree, bound: Bound, multiplier: float, source: NoiseSource) -> Tree:
        self.sensitivity(bound)
        flat = tree.flat(x).double()
        cap = parameters(len(flat), 1 / multiplier)
        answer = privunit(flat, cap, source.child("direction")).reshape(-1)
        return tree.unflat(bound.l2 * answer, tree.map(lambda leaf: leaf.double(), x))

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (f"floating-point arithmetic adds at most {FLOAT_ERROR:g} to delta for each coordinate of an upload",)
