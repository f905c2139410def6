"""Every layer clipped on its own, for the cost of one: the joint release of all layers costs as much as one Gaussian
vector.

Layer l is clipped to C_l and scaled to norm sqrt(a_l), with shares a_l >= 0 that add up to 1; the noise that follows is
then C_l sigma / sqrt(a_l) in the layer's own units. The shares are equal, or those with the least noise energy, in
proportion to C_l sqrt(m_l).

Guarantees: the 2-norm of the encoded upload is at most 1. Proof: its square is at most the sum of a_l. Radii are
public: typed, or computed from released means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch

from sordino import tree
from sordino.errors import ConfigError
from sordino.privacy.uplink.stages import Clip, Stage, check_told, clip_factor
from sordino.tree import Tree
from sordino.types import Bound, Grant, Params

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ClipLayers(Stage):
    """A clip of every layer to a radius of its own. Put it right before the noise.

    adapt: factor from the estimated norm of a layer's last mean without its noise to its next radius, kept between
    `least` and `most`; None: radii stay.
    """

    radius: float
    shares: Literal["equal", "energy"] = "equal"
    adapt: float | None = None
    least: float = 1e-3
    most: float = 1e3
    _each: tuple[float, ...] = ()  # this round's radii

    def __post_init__(self) -> None:
        for number in (self.radius, self.least, self.most, 1.0 if self.adapt is None else self.adapt):
            Clip(number)  # refuses what is not a radius
        if not 1e-30 < self.least <= self.most:
            raise ConfigError(
                f"least is {self.least} and most is {self.most}",
                why="the smallest radius must be above 1e-30, and at most as large as the largest",
                fix="choose `least` above 1e-30, and `most` not below `least`",
                code="radius-out-of-range",
            )

    def bound(self, bound: Bound, coordinates: int) -> Bound:
        return Bound(l1=math.sqrt(coordinates), l2=1.0)

    def encode(self, x: Tree, bound: Bound, grant: Grant) -> Tree:
        leaves, found = tree.leaves(x), []
        for leaf, (radius, share) in zip(leaves, self._layers(x), strict=True):
            factor = clip_factor(torch.linalg.vector_norm(leaf.double()), radius, leaf.dtype)
            found.append(torch.where(torch.isfinite(leaf), leaf, 0.0) * factor * (math.sqrt(share) / radius))
        return tree.like(x, found)

    def decode(self, y: Tree, like: Tree) -> Tree:
        pairs = zip(tree.leaves(y), self._layers(like), strict=True)
        return tree.like(y, [leaf * (radius / math.sqrt(share)) for leaf, (radius, share) in pairs])

    def _layers(self, x: Tree) -> list[tuple[float, float]]:
        """Radius and share of each layer."""
        leaves = tree.leaves(x)
        radii = self._each or (self.radius,) * len(leaves)
        parts = [
            r * math.sqrt(leaf.numel()) if self.shares == "energy" else 1.0
            for r, leaf in zip(radii, leaves, strict=True)
        ]
        # rounded down, so that they cannot add up to more than 1
        return [
            (radius, part / (math.fsum(parts) or 1.0) * (1 - 1e-12)) for radius, part in zip(radii, parts, strict=True)
        ]

    # radii that go down with the model --------------------------------------------------------------------------------

    @property
    def learns(self) -> bool:
        return self.adapt is not None

    def begin(self, x: Tree, model: Params) -> Tree:
        return torch.full((len(tree.leaves(x)),), self.radius, dtype=torch.float64) if self.learns else ()

    def at(self, t: int, public: Tree) -> Stage:
        if not self.learns:
            return self
        told = tuple(public.tolist())
        check_told(t, "radii of layers", told, min(self.least, self.radius), max(self.most, self.radius))
        return replace(self, _each=told)

    def learn(self, mean: Tree, like: Tree, std: float, each: Sequence[Tree]) -> Tree:
        if self.adapt is None:
            return ()
        layers = zip(tree.leaves(mean), self._layers(like), strict=True)
        return torch.tensor([self._next(leaf, std, *layer) for leaf, layer in layers], dtype=torch.float64)

    def _next(self, mean: Tensor, std: float, radius: float, share: float) -> float:
        """The next radius, from the estimated norm of the mean without its noise. It stays where the noise hides that
        norm, as in an empty round, and changes by a factor of at most 2.
        """
        assert self.adapt is not None
        noise = mean.numel() * std**2
        beneath = float((mean.double() ** 2).sum()) - noise
        if not beneath > noise * math.sqrt(2 / max(1, mean.numel())):
            return radius
        wanted = self.adapt * math.sqrt(beneath / share) * radius
        return min(max(wanted, radius / 2, self.least), 2 * radius, self.most)
