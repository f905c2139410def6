"""Uploads as integers, which secure sums can add and discrete noise can protect.

Guarantees: an integer upload has at most `scale` times the norm of the real upload, plus 1/2 for every coordinate (in
the 2-norm: plus sqrt(d)/2), whatever it holds. Proof: rounding moves a coordinate by at most 1/2, and cutting to the
range moves none away from zero. NaN and infinity are refused, not encoded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sordino import tree
from sordino.device import here
from sordino.privacy.uplink.layout import Layout
from sordino.privacy.uplink.stages import Stage
from sordino.tree import Tree
from sordino.types import Bound, Grant


@dataclass(frozen=True)
class Quantise(Stage):
    """Real numbers as whole steps of a public grid; `strict`: a run stops where more than one value in a thousand is
    beyond the range; otherwise such values are cut to it and counted.
    """

    layout: Layout = Layout()
    strict: bool = False

    @property
    def scale(self) -> float:
        return self.layout.scale

    def bound(self, bound: Bound, coordinates: int) -> Bound:
        l1 = min(bound.l1 * self.scale + coordinates / 2, float(coordinates * self.layout.offset))
        l2 = min(bound.l2 * self.scale + math.sqrt(coordinates) / 2, math.sqrt(coordinates) * self.layout.offset)
        return Bound(l1=l1, l2=min(l1, l2))

    def encode(self, x: Tree, bound: Bound, grant: Grant) -> Tree:
        values, _ = self.layout.encode(tree.flat(tree.formed(x)).detach().cpu().numpy(), grant.client)
        return tree.unflat(here(torch.from_numpy(values)), self.shape(x))

    def shape(self, x: Tree) -> Tree:
        return tree.map(lambda leaf: torch.zeros(leaf.shape, dtype=torch.int64), x)

    def decode(self, y: Tree, like: Tree) -> Tree:
        return tree.map(lambda leaf: leaf / self.scale, y)
