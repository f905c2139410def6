"""Compression rates of layers, from their norms (Li, Xiao and Chen 2024, algorithm 2).

The published rule is V-shaped in a layer's share of the whole norm: small layers are kept at the largest rate, although
the text wants to compress them most. The rule `monotone` follows the text.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

import torch

from sordino import tree
from sordino.errors import FRACTION, ConfigError, check_range
from sordino.privacy.uplink.stages import Stage, check_told
from sordino.tree import Tree
from sordino.types import Bound, Grant, Params

if TYPE_CHECKING:
    from torch import Tensor


Rule = Literal["published", "monotone"]
Share = Literal["norm_of_whole", "sum_of_norms"]


def check_ends(least: float, most: float) -> None:
    tenths = all(math.isclose(10 * end, round(10 * end)) for end in (least, most))
    if not (0 < least <= most <= 1 and tenths):
        raise ConfigError(
            f"least is {least} and most is {most}",
            why="both are shares of the numbers that are kept, in tenths, and least must not be above most",
            fix="set for example least = 0.2, most = 0.5",
            code="rate-out-of-range",
        )


def rate(share: float, most: float = 0.5, least: float = 0.2, rule: Rule = "published") -> float:
    """The compression rate, in tenths, of a layer with this share of the norm: the share of its numbers that is kept.
    Rounding is Python's, half to even on the binary number, as published.
    """
    check_ends(least, most)
    if rule == "monotone":
        found = round(share, 1)
    elif share < least:
        found = round(most - round(share, 2), 1)
    else:
        found = min(round(share, 1), most)
    return min(max(found, least), most)


def rates(
    norms: Sequence[float],
    most: float = 0.5,
    least: float = 0.2,
    rule: Rule = "published",
    share: Share = "norm_of_whole",
) -> list[float]:
    """The compression rate of every layer; the largest one for all where all norms are 0."""
    whole = math.fsum(norms) if share == "sum_of_norms" else math.hypot(*norms)
    return [rate(norm / whole, most, least, rule) if whole else most for norm in norms]


@dataclass(frozen=True)
class LayerByLayer(Stage, ABC):
    """Base of all compressions of single layers, with their rates.

    rate: one for every layer and round, or "dynamic": from the norms of the model's layers at first, then from those of
    the last update that the server rebuilt. Dynamic rates go down with the model, in tenths. The bound holds for rates
    from `least` to `most`, and others are refused, since a server that sends the model could send any rate.
    """

    rate: float | Literal["dynamic"] = 0.5
    most: float = 0.5  # of dynamic rates
    least: float = 0.2
    rule: Rule = "published"
    share: Share = "norm_of_whole"
    _each: tuple[float, ...] = ()  # of this round's layers

    def __post_init__(self) -> None:
        if self.rate == "dynamic":
            check_ends(self.least, self.most)
        else:
            why = "it is the share of the numbers that is kept"
            check_range(
                "a compression rate", self.rate, FRACTION, "rate-out-of-range", why=why, fix="set for example 0.3"
            )

    @abstractmethod
    def measured(self, layer: Tensor, rate: float) -> Tensor: ...

    @abstractmethod
    def kept(self, layer: Tensor, rate: float) -> int:
        """Number of coordinates that are kept of a layer."""

    @abstractmethod
    def rebuilt(self, y: Tensor, like: Tensor, rate: float) -> Tensor: ...

    def encode(self, x: Tree, bound: Bound, grant: Grant) -> Tree:
        pairs = zip(tree.leaves(x), self._rates(x), strict=True)
        return tree.like(x, [self.measured(leaf, rate) for leaf, rate in pairs])

    def shape(self, x: Tree) -> Tree:
        pairs = zip(tree.leaves(x), self._rates(x), strict=True)
        return tree.like(x, [leaf.new_zeros(self.kept(leaf, rate)) for leaf, rate in pairs])

    def decode(self, y: Tree, like: Tree) -> Tree:
        pairs = zip(tree.leaves(y), tree.leaves(like), self._rates(like), strict=True)
        return tree.like(like, [self.rebuilt(leaf, template, rate) for leaf, template, rate in pairs])

    @property
    def _least(self) -> float:
        return self.least if self.rate == "dynamic" else self.rate

    def _rates(self, x: Tree) -> Sequence[float]:
        return self._each or [self.most if self.rate == "dynamic" else self.rate] * len(tree.leaves(x))

    # from round to round ----------------------------------------------------------------------------------------------

    @property
    def learns(self) -> bool:
        return self.rate == "dynamic"

    def begin(self, x: Tree, model: Params) -> Tree:
        return self._chosen([model.get(name.rpartition("/")[2], leaf) for name, leaf in tree.named(x)])

    def at(self, t: int, public: Tree) -> Self:
        if not self.learns:
            return self
        told = tuple(tenths / 10 for tenths in public.tolist())
        check_told(t, "compression rates", told, round(10 * self.least) / 10, round(10 * self.most) / 10)
        return replace(self, _each=told)

    def learn(self, mean: Tree, like: Tree, std: float, each: Sequence[Tree]) -> Tree:
        return self._chosen(tree.leaves(self.decode(mean, like)))

    def _chosen(self, layers: Sequence[Tensor]) -> Tree:
        if not self.learns:
            return ()
        norms = [float(torch.linalg.vector_norm(layer.double())) for layer in layers]
        if not all(map(math.isfinite, norms)):  # the model is lost, and the run says so
            norms = [0.0] * len(norms)
        found = rates(norms, self.most, self.least, self.rule, self.share)
        return torch.tensor([round(10 * rate) for rate in found], dtype=torch.uint8)
